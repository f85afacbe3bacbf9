"""Warns of callbacks of Keras by which the ranks would not resume together, or would write one file at the same time."""

import os
import socket
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency import model_contents
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics
from tfddl.runtime.agreement import in_words
from tfddl.runtime.log import warn, warn_once
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
    # The files of a ShardedOptimizer need all ranks.
    files = [] if model_contents.sharded_optimizers(broadcast.model) else _files(callbacks)
    mine = (basics.rank(), socket.gethostname(), folders, files, late)
    found = allgather_object(mine, name=name, process_set=process_set)
    late_ranks = [rank for rank, *_, is_late in found if is_late]
    if late_ranks:
        warn(
            "BackupAndRestore restores variables after BroadcastGlobalVariablesCallback has made them equal, so the ranks "
            "go on with different ones: place BackupAndRestore before it in fit's callbacks. "
            f"Received: BackupAndRestore after it on {in_words(late_ranks)}",
            process_set,
        )
    for folder, ranks in _shared([(rank, host, own) for rank, host, own, *_ in found]):
        warn(
            "Several ranks back up to one folder, where they overwrite each other's files: give BackupAndRestore to the "
            "root alone, whose backup BroadcastGlobalVariablesCallback gives to all ranks, or give each rank a folder. "
            f"Received: backup_dir={folder!r} on {in_words(ranks)}",
            process_set,
        )
    for file, ranks in _shared([(rank, host, files) for rank, host, _, files, _ in found]):
        warn_once(  # a program may call fit many times
            "Several ranks write one file at the same time, which can break it: let one rank write, as "
            "hvd.callbacks.rank_zero_only(ModelCheckpoint(...)) does. "
            f"Received: {file} on {in_words(ranks)}",
            process_set,
        )


def _files(callbacks: list[Any]) -> list[str]:
    """The files that callbacks of Keras write. Callbacks of tfddl write on one rank."""
    found = []
    for each in callbacks:
        for kind, attribute in (("ModelCheckpoint", "filepath"), ("CSVLogger", "filename")):
            if type(each) is getattr(_compat.keras().callbacks, kind):
                found.append(f"{kind}({os.path.abspath(str(getattr(each, attribute)))!r})")
    return found


def _shared(names: list[tuple[int, str, list[str]]]) -> list[tuple[str, list[int]]]:
    """Finds the names that several ranks of one host have.

    Args:
        names: The rank, the host and the names of each rank.

    Returns:
        Each name with its ranks.
    """
    users: dict[tuple[str, str], list[int]] = {}
    for rank, host, own in names:
        for name in own:
            users.setdefault((host, name), []).append(rank)
    return [(name, ranks) for (_, name), ranks in users.items() if len(ranks) > 1]
