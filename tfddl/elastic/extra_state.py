"""Values that a state keeps beside its variables: the outer state of local steps, and the residuals of compressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.gradients import residuals
from tfddl.keras.consistency.model_contents import compressions_of
from tfddl.keras.local_steps import LocalSGD
from tfddl.ops.compression import StatefulCompressor


class ExtraState:
    """Values that are made, or change their shape, while a program trains, so that they are no variables of a state.

    Args:
        local_steps: A `LocalSGD` or `DiLoCo`, or None. May be set later.
        compression: A compression that keeps its errors, or None.
        optimizers: Optimizers whose compressions are kept too, in front of the given one.

    Raises:
        TypeError: An argument is something else.
    """

    def __init__(self, local_steps: Any, compression: Any, optimizers: Iterable[Any] = ()) -> None:
        if local_steps is not None and not isinstance(local_steps, LocalSGD):
            raise TypeError(
                "local_steps takes an hvd.LocalSGD or hvd.DiLoCo: choose another name for an attribute of your own. "
                f"Received: local_steps={local_steps!r}"
            )
        if compression is not None and not isinstance(compression, StatefulCompressor):
            raise TypeError(
                "A state keeps compressions with residuals: pass the hvd.PowerSGD(...) or hvd.Compression.int8() of your "
                f"tapes, and leave others out. Received: compression={compression!r}"
            )
        self._local: LocalSGD | None = local_steps
        self._compressions = compressions_of(optimizers, compression)
        self._progress: dict[str, Any] | None = None
        self._outer: list[np.ndarray] = []
        self._residuals: list[dict[str, np.ndarray]] = []

    def watch(self, local_steps: LocalSGD, *, restore: bool) -> None:
        """Takes the local steps of a `fit`, which are made before its first step.

        Args:
            local_steps: Those of the callback.
            restore: Whether they go on from the saved values.
        """
        self._local = local_steps
        if restore:
            self._restore_local()
        else:
            self.save()

    def save(self) -> None:
        """Copies values. All ranks call it: it waits for an exchange of local steps, and takes the mean of residuals.

        After an error, such as the loss of a rank, all is as it was saved before.
        """
        local = self._copied_local()
        self._residuals = list(map(residuals.of_the_job, self._compressions))
        self._progress, self._outer = local

    def restore(self) -> None:
        """Takes the saved values."""
        self._restore_local()
        self._restore_residuals()

    def sync(self, broadcast: Callable[[Any], Any]) -> None:
        """Takes the local steps of rank 0. Residuals stay each rank's own.

        Args:
            broadcast: Sends an object of rank 0 to all.
        """
        if self._local is not None:
            self._progress, self._outer = broadcast(self._copied_local())
            self._restore_local()

    def take_residuals_of_rank_0(self, broadcast: Callable[[Any], Any]) -> None:
        """Takes the saved residuals of rank 0, where the ranks have saved them at different steps.

        Args:
            broadcast: Sends an object of rank 0 to all.
        """
        if self._compressions:
            self._residuals = broadcast(self._residuals)
            self._restore_residuals()

    def content(self) -> Any:
        """The copies of the last `save`."""
        return self._progress, self._outer, self._residuals

    def load(self, content: Any) -> None:
        """Takes the result of `content` in a process before, for the next `restore`."""
        self._progress, self._outer, self._residuals = content

    def _copied_local(self) -> tuple[dict[str, Any] | None, list[np.ndarray]]:
        if self._local is None:
            return self._progress, self._outer
        outer = [np.array(tf.convert_to_tensor(each)) for each in self._local.checkpoint_variables()]
        return self._local.progress(), outer

    def _restore_residuals(self) -> None:
        for compression, values in zip(self._compressions, self._residuals, strict=False):
            compression.resume(values)

    def _restore_local(self) -> None:
        if self._local is None or self._progress is None:
            return
        self._local.resume(self._progress)
        for variable, value in zip(self._local.checkpoint_variables(), self._outer, strict=True):
            variable.assign(value)
