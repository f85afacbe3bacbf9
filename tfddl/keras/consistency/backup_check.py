"""Warns of a `keras.callbacks.BackupAndRestore` by which the ranks would not resume together."""

import os
import socket
from typing import Any

from tfddl import _compat
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics
from tfddl.runtime.agreement import in_words
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import ProcessSet


def warn_of_backups(callbacks: list[Any], broadcast: Any, name: str, process_set: ProcessSet) -> None:
    """Looks at the callbacks of `fit` on all ranks. All ranks call it.

    Args:
        callbacks: The callbacks of `fit`; empty if they are not known.
        broadcast: The broadcast callback among them.
        name: Names the collective.
        process_set: The ranks that train.
    """
    backups = [each for each in callbacks if isinstance(each, _compat.keras().callbacks.BackupAndRestore)]
    late = any(callbacks.index(each) > callbacks.index(broadcast) for each in backups)
    folders = [os.path.abspath(str(each.backup_dir)) for each in backups]
    mine = (basics.rank(), socket.gethostname(), folders, late)
    found = allgather_object(mine, name=name, process_set=process_set)
    late_ranks = [rank for rank, _, _, is_late in found if is_late]
    if late_ranks:
        warn(
            "BackupAndRestore restores variables after BroadcastGlobalVariablesCallback has made them equal, so the ranks "
            "go on with different ones: place BackupAndRestore before it in fit's callbacks. "
            f"Received: BackupAndRestore after it on {in_words(late_ranks)}",
            process_set,
        )
    users: dict[tuple[str, str], list[int]] = {}
    for rank, host, each_folders, _ in found:
        for folder in each_folders:
            users.setdefault((host, folder), []).append(rank)
    for (_, folder), ranks in users.items():
        if len(ranks) > 1:
            warn(
                "Several ranks back up to one folder, where they overwrite each other's files: give BackupAndRestore to the "
                "root alone, whose backup BroadcastGlobalVariablesCallback gives to all ranks, or give each rank a folder. "
                f"Received: backup_dir={folder!r} on {in_words(ranks)}",
                process_set,
            )
