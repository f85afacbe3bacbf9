"""ShardedCheckpoint: each rank writes its part of a checkpoint, while training goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tfddl.keras.consistency import model_contents
from tfddl.keras.sharded import contents
from tfddl.keras.sharded.contents import Entry
from tfddl.keras.sharded.parts import (
    Folder,
    Parts,
    another_job_saves,
    complete_folders,
    leave_mark,
    newest_number,
    remove_failed,
    remove_mark,
    remove_old,
    sees_mark,
    why_not_writable,
)
from tfddl.ops.compression import StatefulCompressor
from tfddl.ops.objects import allgather_object, broadcast_object
from tfddl.runtime import basics, library
from tfddl.runtime.agreement import by_rank
from tfddl.runtime.log import warn, warn_on_this_rank

_NAME = "ShardedCheckpoint"
_TRAINED = "trained_by_optimizers"
_MADE_OF = "made_of"
_SAVES = "saving a ShardedCheckpoint, of which each rank writes a part; call save on all ranks, after the same step"
_RESTORES = "restoring a ShardedCheckpoint; call restore on all ranks"
_last_to_save: dict[Path, int] = {}  # the id of a ShardedCheckpoint, by directory


class ShardedCheckpoint:
    """Saves a model and its optimizer, of which each rank writes a part, and restores them on any number of ranks.

    A checkpoint holds the variables of the model and of its optimizers, with the slices of all ranks of a
    `tfddl.ShardedOptimizer`; the state of local steps (`tfddl.DiLoCo`); and values that each rank has for itself: the state
    of random layers, local layers of an optimizer or tape, `local_variables` of a broadcast, and the residuals of a
    compression, whose mean all ranks get on another number of ranks. `save` copies the values and returns; a thread writes
    them. A part gets its name when it is complete. So a rank that is killed while it writes leaves the checkpoints before as
    they were.

        checkpoint = hvd.ShardedCheckpoint("checkpoints", model)
        found = checkpoint.restore()
        for epoch in range(found.get("epoch", 0), epochs):
            ...
            checkpoint.save(epoch=epoch + 1)
        checkpoint.wait()

    Args:
        directory: Where checkpoints lie, on a file system that all ranks see. It is made if it does not exist.
        model: The model, built.
        optimizer: An optimizer that is no attribute of the model. Defaults to none.
        local_steps: A `tfddl.LocalSGD` or `tfddl.DiLoCo`, with which each rank trains alone for some steps.
        compression: A `tfddl.PowerSGD` or `tfddl.Compression.int8` that tapes use; those of optimizers are found. Defaults
            to none.
        keep: How many checkpoints stay. Defaults to 2.

    Attributes:
        local_steps: The argument; may be set later.
        has_restored: Whether `restore` has found a checkpoint.

    Raises:
        ValueError: The model is not built, `keep` is not positive, or `directory` is a URL.
    """

    def __init__(
        self,
        directory: Any,
        model: Any,
        optimizer: Any = None,
        *,
        local_steps: Any = None,
        compression: Any = None,
        keep: int = 2,
    ) -> None:
        if not getattr(model, "built", True):
            raise ValueError(
                f"{_NAME} needs the weights: call model.build(input_shape) first. Received: {model!r}"
            )
        check_keep(keep)
        if re.match(r"\w+:/", os.fspath(directory)):  # of gs://bucket Path makes gs:/bucket
            raise ValueError(
                f"{_NAME} writes files with Python: pass a directory of a file system that all ranks have mounted. "
                f"Received: {directory!r}"
            )
        self._base, self._keep = Path(directory), keep
        self._model, self._optimizer, self.local_steps = model, optimizer, local_steps
        self._compression = compression
        self._number, self._token, self._has_saved, self.has_restored = 0, "", False, False
        self._thread = ThreadPoolExecutor(1, _NAME)
        self._writing: Future[None] | None = None

    def restore(self) -> dict[str, Any]:
        """Takes the newest checkpoint that is complete. All ranks call it, before the first `save`.

        A rank takes values that were each rank's own from the rank with its number, modulo the number of ranks then.

        Returns:
            What `save` was given; empty if there is no checkpoint.

        Raises:
            ValueError: On every rank: the checkpoint is that of another model, or a rank cannot read it, cannot write to the
                directory, or sees another directory than rank 0.
        """
        folder = self._begin(_RESTORES)
        if folder is None:
            return {}
        about, error = self._read(Folder(folder.number, folder.ranks, folder.token, self._base))
        errors = dict(enumerate(allgather_object(error, name=f"{_NAME}.read")))
        if any(errors.values()):
            raise ValueError(
                f"The checkpoint {folder.path} cannot be restored: use another directory, or remove this checkpoint to go "
                f"on from an older one. Received: {by_rank(errors)}"
            )
        if basics.rank() == 0 and not self.has_restored:  # the callback restores again, for its local steps
            print(f"tfddl: going on from {folder.path}, saved with {about}...", file=sys.stderr)
        self.has_restored = True
        return about

    def save(self, **about: Any) -> None:
        """Copies all values and has them written. All ranks call it after the same step.

        It waits for the checkpoint before, if that is not written yet. If there is no room on the disk, a warning says
        so, and the checkpoints before stay.

        Args:
            **about: What JSON takes, for example `epoch=3`; the same on all ranks.

        Raises:
            ValueError: On every rank: another `ShardedCheckpoint` of this program saves to the directory, too; or at the
                first call, a rank cannot write to it or sees another one than rank 0.
        """
        self.wait()
        if not self._token:
            self._begin(_SAVES)
        self._refuse_another()
        self._number += 1
        rank, ranks = basics.rank(), basics.size()
        entries = contents.those_that_differ(self._entries(), self._model)
        entries += contents.residuals(self._compressions())
        mine = contents.written_by(entries, rank, ranks)
        arrays = {entry.key: entry.value() for entry in mine}
        folder = Folder(self._number, ranks, self._token, self._base)
        trained = contents.trained_by(self._model, self._optimizer)
        about |= {_MADE_OF: contents.made_of(self._model, self._optimizer)}
        about |= {_TRAINED: trained} if trained else {}
        if self.local_steps is not None:
            about |= {"local_steps": self.local_steps.progress()}
        self._writing = self._thread.submit(self._write, folder, rank, json.dumps(about), arrays)

    def wait(self) -> None:
        """Returns when this rank's part of the last checkpoint is on the disk."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(self, folder: Folder, rank: int, about: str, arrays: dict[str, np.ndarray]) -> None:
        try:
            remove_failed(self._base, folder.number)
            folder.write(rank, about, arrays)
            # All ranks call it, as the last rank that writes makes the checkpoint complete.
            remove_old(self._base, self._keep)
        except OSError as error:
            remedy = "make room in" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the directory"
            warn_on_this_rank(
                f"Rank {rank} could not write its part of checkpoint {folder.number}, so that a job goes on from an older "
                f"one: {remedy} {self._base}. Received: {error}"
            )

    def _begin(self, note: str) -> Folder | None:
        """Checks the directory, and numbers checkpoints behind those that it has. Returns the newest complete one."""
        library.note(0, f"{_NAME}.token.size", note)
        refusal = why_not_writable(self._base)
        newest, number, token = None, 0, secrets.token_hex(4)
        if basics.rank() == 0 and not refusal:
            try:
                newest, number = next(iter(complete_folders(self._base)), None), newest_number(self._base)
                leave_mark(self._base, token)
            except OSError as error:
                refusal = str(error)
        of_rank_0, newest, number, token = broadcast_object(
            (refusal, newest, number, token), name=f"{_NAME}.token"
        )
        if not (refusal or of_rank_0 or sees_mark(self._base, token)):
            refusal = f"{self._base.resolve()} is another directory than that of rank 0"
        found = enumerate(allgather_object(refusal, name=f"{_NAME}.directory"))
        refusals = {rank: reason for rank, reason in found if reason}
        remove_mark(self._base, token)
        if refusals:
            raise ValueError(
                f"{_NAME} cannot write: use a directory that all ranks share, and can make and write to. "
                f"Received: {by_rank(refusals)}"
            )
        self._number, self._token = number, token
        if basics.rank() == 0 and another_job_saves(self._base):
            warn(
                f"Another job saves its checkpoints to {self._base}: each job removes those of the other, and may go on "
                "from them. Use a directory for each job."
            )
        return newest

    def _refuse_another(self) -> None:
        """Two that save by turns would remove and restore each other's checkpoints."""
        base = self._base.resolve()
        if self._has_saved and _last_to_save.get(base) != id(self):
            raise ValueError(
                f"Two {_NAME}s save to one directory, and would restore each other's weights: give each a directory of its "
                f"own. Received: {str(self._base)!r}"
            )
        _last_to_save[base], self._has_saved = id(self), True

    def _entries(self, trained: dict[str, list[int]] | None = None) -> list[Entry]:
        alone = self.local_steps is not None
        found = contents.entries_of(self._model, self._optimizer, alone, trained)
        if self.local_steps is not None:
            found += contents.listed("local_steps", self.local_steps.checkpoint_variables())
        return found

    def _compressions(self) -> list[StatefulCompressor]:
        optimizers = [*model_contents.optimizers_of(self._model), self._optimizer]
        return model_contents.compressions_of(optimizers, self._compression)

    def _read(self, folder: Folder) -> tuple[dict[str, Any], str]:
        """What `save` was given, and an error; never raises, as the other ranks wait."""
        rank = basics.rank()
        try:
            with Parts(folder) as parts:
                about = parts.about(rank % folder.ranks)
                contents.check_made_of(about.pop(_MADE_OF, None), self._model, self._optimizer)
                progress = about.pop("local_steps", None)
                if self.local_steps is not None:
                    if progress is None:
                        raise ValueError(
                            "it was saved without local steps: use another directory for training with them"
                        )
                    self.local_steps.resume(progress)
                for entry in self._entries(about.pop(_TRAINED, None)):
                    entry.restore(parts, rank)
                contents.resume_residuals(self._compressions(), parts, rank)
            model_contents.finalize_layers(self._model)
            return about, ""
        except Exception as error:
            return {}, f"{type(error).__name__}: {error}"


def check_keep(keep: Any) -> None:
    """Raises a ValueError if `keep` is no number of checkpoints."""
    if not isinstance(keep, int) or keep < 1:
        raise ValueError(
            f"keep is the number of checkpoints that stay: pass 1 or more. Received: keep={keep!r}"
        )
