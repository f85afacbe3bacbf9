"""Callbacks that set the learning rate by epoch: a schedule, and a warm-up for large batches."""

from collections.abc import Callable
from typing import Any

from tfddl import _compat
from tfddl.keras.callbacks import momentum_correction
from tfddl.runtime import basics
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set, members

Callback: Any = _compat.keras().callbacks.Callback


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` between two epochs.

    Epochs are absolute, also in a training that was resumed or began with `initial_epoch`. At the end of each epoch the
    callback puts the current rate into the logs as `lr`. With `steps_per_execution=N` Keras calls it once for N batches,
    which then share one rate.

    The momentum of SGD and RMSprop contains the learning rate. When the rate changes, momentum correction scales that
    momentum by the same factor, as in https://arxiv.org/abs/1706.02677, section 3. Horovod changes the coefficient for one
    step instead.

    Args:
        initial_lr: The learning rate to be multiplied.
        multiplier: A function of the epoch (an int with `staircase`, else a float that grows batch by batch)
            that returns a factor; or a number `multiplier`, which means `multiplier ** (epoch - start_epoch)`.
        start_epoch: First epoch in which the rate is set. Defaults to `0`.
        end_epoch: First epoch in which the rate is no longer set. Defaults to `None`: no end.
        staircase: Whether the rate changes once per epoch, not with each batch. Defaults to `True`.
        momentum_correction: Whether to scale the momentum of SGD and RMSprop. Defaults to `True`.
        steps_per_epoch: Number of batches in an epoch, for `staircase=False`. Defaults to the number that Keras knows.

    Attributes:
        first_batch: The number of batches that were done before Keras' batch 0, in an epoch that goes on after a loss.

    Raises:
        ValueError: If `initial_lr` is not a number. When training begins: if the optimizer's learning rate
            cannot be set, or the number of batches is unknown.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = _number(initial_lr)
        self.multiplier = multiplier if callable(multiplier) else _exponential(multiplier, start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = self.first_batch = 0
        self._steps_given = steps_per_epoch is not None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that the rate can be set, and counts the batches."""
        _check_settable(self.model.optimizer, type(self).__name__)
        if not self.staircase and not self._steps_given:
            self.steps_per_epoch = _compat.fit_params(self).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} does not know how many batches an epoch has: pass it "
                    "steps_per_epoch, or pass that to fit. Received: steps_per_epoch=None"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Sets the rate for the following batches."""
        self._set_at(batch)
        super().on_train_batch_begin(batch, logs)  # calls on_batch_begin of a subclass

    def _set_at(self, batch: int) -> None:
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._set(self._epoch_at(self.first_batch + batch))
        elif batch == 0:
            self._set(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the rate."""
        if logs is not None:
            logs["lr"] = _compat.learning_rate(self.model.optimizer)

    def _epoch_at(self, batch: int) -> float:
        return self.current_epoch + batch / (self.steps_per_epoch or 1)

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before = _compat.learning_rate(optimizer)
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        if self.momentum_correction:
            momentum_correction.follow(optimizer, before, _compat.learning_rate(optimizer))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr`, batch by batch.

    `initial_lr` is the rate of the whole job, `hvd.size()` times that of one process; make the optimizer with it. See
    https://arxiv.org/abs/1706.02677, section 2.2. If schedules follow, give them `start_epoch=warmup_epochs`.

    Args:
        initial_lr: The learning rate to reach, that of the whole job.
        warmup_epochs: The number of epochs of the warm-up; may be fractional. Defaults to `5`.
        momentum_correction: See `LearningRateScheduleCallback`.
        steps_per_epoch: See `LearningRateScheduleCallback`.
        verbose: 1 prints a line on the first rank when the rate is reached. Defaults to `0`.
        process_set: The ranks that train together; `size` is their number. Defaults to all.

    Raises:
        ValueError: As `LearningRateScheduleCallback`.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(
            initial_lr,
            self._factor,
            end_epoch=warmup_epochs,  # type: ignore[arg-type]
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose
        self.process_set = check_type(process_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the rate, and prints a line when the warm-up ends."""
        super().on_epoch_end(epoch, logs)
        if (
            self.verbose > 0
            and basics.rank() == members(self.process_set)[0]
            and epoch < self.warmup_epochs <= epoch + 1
        ):
            rate = _compat.learning_rate(self.model.optimizer)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")

    def _epoch_at(self, batch: int) -> float:
        """The epoch at the end of the following batches, so that the last batches of the warm-up have the full rate."""
        return super()._epoch_at(
            min(batch + _compat.steps_per_execution(self.model), self.steps_per_epoch or 1)
        )

    def _factor(self, epoch: float) -> float:
        size = len(members(self.process_set))
        return min(1.0, (epoch * (size - 1) / self.warmup_epochs + 1) / size)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            "`initial_lr` is the learning rate to be multiplied: pass the number that the optimizer is made with. "
            f"Received: initial_lr={value!r}"
        ) from None


def _exponential(base: float, start: int) -> Callable[[float], float]:
    return lambda epoch: base ** (epoch - start)


def _check_settable(optimizer: Any, callback: str) -> None:
    """Refuses an optimizer whose rate a LearningRateSchedule or a function computes: it would overrule the callback."""
    rate = _compat.settable_learning_rate(optimizer)
    if rate is None:
        raise ValueError(
            f"{callback} sets the learning rate of the model's optimizer, which computes its own: make the optimizer "
            "with a number as its learning_rate, or leave the callback out and put warm-up and decay into the "
            "LearningRateSchedule (CosineDecay takes warmup_target and warmup_steps). "
            f"Received: optimizer={optimizer!r}"
        )
