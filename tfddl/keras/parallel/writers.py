"""Callbacks of Keras that write files: all ranks run them, and rank 0 writes.

On the other ranks, a class of this file stands between Keras' class and a subclass of the program. So the program's own code
runs on all ranks, and its `super()` reaches a method that writes nothing.
"""

import os
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.ops.objects import broadcast_object
from tfddl.runtime import basics

_HOME: Any = _compat.keras().callbacks


def _nothing(self: Any, *arguments: Any, **options: Any) -> None:
    """Instead of a method that writes."""


@contextmanager
def _attributes(callback: Any, **values: Any) -> Iterator[None]:
    """Inside, attributes of the callback have these values."""
    before = {name: getattr(callback, name) for name in values}
    vars(callback).update(values)
    try:
        yield
    finally:
        vars(callback).update(before)


class _Backup(_HOME.BackupAndRestore):  # type: ignore[misc]
    on_train_begin = _nothing  # the broadcast gives this rank what rank 0 restores
    on_train_end = _nothing
    _save_model = _nothing


class _Logger(_HOME.CSVLogger):  # type: ignore[misc]
    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens a file, since a subclass may write to `self.csv_file`."""
        with _attributes(self, filename=os.devnull):
            super().on_train_begin(logs)


class _Unsaved:
    """In place of a model that is not saved."""

    save = save_weights = _nothing


class _Checkpoint(_HOME.ModelCheckpoint):  # type: ignore[misc]
    def _save_model(self, *arguments: Any, **options: Any) -> None:
        """Follows the best value, and saves nothing, also where the model has a `save` of its own."""
        # Keras would make the file's folder, and print.
        with _attributes(self, filepath=os.devnull, verbose=0, _model=_Unsaved()):
            super()._save_model(*arguments, **options)


class _Monitor(_HOME.RemoteMonitor):  # type: ignore[misc]
    on_epoch_end = _nothing


class _Board(_HOME.TensorBoard):  # type: ignore[misc]
    """A subclass may write summaries by `self._train_writer`."""

    _train_writer = _val_writer = property(lambda self: tf.summary.create_noop_writer())
    _write_keras_model_summary = _configure_embeddings = _nothing  # in set_model
    on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = _nothing
    on_train_batch_begin = on_train_batch_end = _nothing
    on_test_begin = on_test_end = on_test_batch_begin = _nothing


_SILENT: tuple[type, ...] = (_Backup, _Logger, _Checkpoint, _Monitor, _Board)


@contextmanager
def writing_on_rank_0(callbacks: Sequence[Any]) -> Iterator[None]:
    """Inside, callbacks that write do so on rank 0 only.

    Args:
        callbacks: The callbacks of `fit`. Outside, each has its own class.
    """
    given = [(each, type(each)) for each in callbacks if basics.rank() > 0]
    try:
        for each, kind in given:
            each.__class__ = _silenced(kind)
        yield
    finally:
        for each, kind in given:
            each.__class__ = kind


def _silenced(kind: type) -> type:
    silent = [one for one in _SILENT if issubclass(kind, one.__bases__)]
    if not silent:
        return kind
    own = [] if kind in silent[0].__bases__ else [kind]
    made = types.new_class(kind.__name__, (*own, *silent))
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    return made


def share_best(callbacks: Sequence[Any]) -> None:
    """Gives all ranks the best value of rank 0. With a `save_freq` in batches, each has followed the metrics of its rows.

    All ranks call it.

    Args:
        callbacks: The callbacks of `fit`.
    """
    mine = [each for each in callbacks if is_checkpoint(each)]
    theirs = broadcast_object([each.best for each in mine], name="DataParallel.best")
    if len(mine) == len(theirs):  # else the program gives some ranks other callbacks
        for each, best in zip(mine, theirs, strict=True):
            each.best = best


def is_backup(callback: Any) -> bool:
    """Whether a callback restores the training when `fit` begins."""
    return isinstance(callback, _HOME.BackupAndRestore)


def is_checkpoint(callback: Any) -> bool:
    """Whether a callback saves the model under its `filepath`."""
    return isinstance(callback, _HOME.ModelCheckpoint)
