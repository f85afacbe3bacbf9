"""LocalSGD and DiLoCo as callbacks of `fit`."""

from __future__ import annotations

from typing import Any

from tfddl import _compat
from tfddl.keras import fragments as outer
from tfddl.keras import local_steps
from tfddl.keras.callbacks import stop
from tfddl.keras.consistency import callback_list, model_contents
from tfddl.keras.consistency.callback_list import LocalStepsCallback
from tfddl.keras.distributed.status import all_settings, is_distributed
from tfddl.ops.compression import Compression
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set


class LocalSGD(LocalStepsCallback):
    """Lets each rank train alone in `fit`, and averages weights after every so many steps. See `tfddl.LocalSGD`.

    The model is compiled with a plain optimizer, not with `DistributedOptimizer`. Place it on all ranks, before or behind
    `BroadcastGlobalVariablesCallback`, which gives all ranks the same first weights. The moving statistics of layers are
    averaged too. An exchange follows the last step of `fit`. With `use_ema=True` Keras ends `fit` with moving averages, of
    which all ranks get the mean. Until an exchange, validation, ModelCheckpoint and other callbacks see the weights of their
    own rank; metrics differ by rank, so that `MetricAverageCallback` is of use.

        model.compile(keras.optimizers.Adam(1e-3), "mse")
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.LocalSGD(every=16),
        ]

    Args:
        every: The number of steps between two exchanges; a multiple of `steps_per_execution`.
        compression: How values travel; see `Compression`.
        process_set: The ranks that exchange. Defaults to all.

    Raises:
        TypeError: `compression` is none for single values.
        ValueError: `every` is not positive. When training begins: it is no multiple of `steps_per_execution`, the model has
            no weights yet, its optimizer is distributed over as many ranks, or there is a second such callback. After the
            first step: a `train_step` of your own trains a `tf.Variable` that the model does not track.
    """

    def __init__(
        self,
        every: int,
        *,
        compression: Any = Compression.none,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        callback_list.watch()
        local_steps.check_every(every, type(self).__name__)
        local_steps.check_rounding(compression, type(self).__name__)
        self.every, self.process_set = every, check_type(process_set)
        self._options: dict[str, Any] = {"compression": compression, "process_set": process_set}
        self._between: tuple[int, ...] = (every,)
        self._local: local_steps.LocalSGD | None = None
        self._variables: list[Any] = []  # of the model that it trains
        self._begins = False
        self._last = 0

    def on_list(self, callbacks: Any) -> None:
        """Adds a StopTogetherCallback, since an EarlyStopping may restore other weights on each rank."""
        stop.add_to(callbacks, self.process_set, trains_alone=True)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the model."""
        kind, executed = type(self).__name__, _compat.steps_per_execution(self.model)
        if any(number % executed for number in self._between):
            raise ValueError(
                f"{kind} exchanges between two executions: make every, every / fragments and delay multiples of "
                f"steps_per_execution. Received: every={self.every}, steps_per_execution={executed}"
            )
        if not self.model.built:
            raise ValueError(
                f"{kind} needs the weights before the first step: call model.build(input_shape) first. "
                f"Received: {self.model!r}"
            )
        model_contents.build_members(self.model)
        for optimizer in model_contents.optimizers_of(self.model):
            if self._trains_all_ranks(optimizer):
                raise ValueError(
                    f"With {kind} each rank trains alone: compile the model with a plain optimizer. "
                    f"Received: optimizer={optimizer!r}, a distributed one"
                )
        self._begins, self._last, self.finishes = True, 0, True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keras counts batches anew."""
        self._last = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Before the first step, when all callbacks have begun: the weights are those of the broadcast.

        Before the first step of a later epoch: a callback may have given the model other layers, or frozen some.
        """
        if not self._last:
            before, current = self._local, self._current()
            if before is not None and before is not current and not self._begins:
                before.finish()
            if self._begins or before is not current:
                current.begin()
            self._begins = False
        super().on_train_batch_begin(batch, logs)  # calls on_batch_begin of a subclass

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts steps, and exchanges if it is time."""
        if not self._last:
            self._check_trained()
        done = _compat.batches_done(self.model, batch)
        # Keras counts the last execution of an epoch in full, also if the data ended in it.
        done = min(done, _compat.fit_params(self).get("steps") or done)
        if self._local is not None:
            self._local.step(done - self._last)
        self._last = done
        super().on_train_batch_end(batch, logs)  # calls on_batch_end of a subclass

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Exchanges what is left. The next `fit` of the same variables goes on with the outer state."""
        if model_contents.ends_with_averages(self.model):
            # Keras has replaced the weights by moving averages, which each rank has for itself, even without a step.
            local = self._current()
            if self.finishes:
                local.average()
                local.begin()
        elif self._local is not None and self.finishes:
            self._local.finish()

    def _current(self) -> local_steps.LocalSGD:
        """The exchange of the `fit` before, or a new one if the model trains other variables now."""
        trained, others = self.model.trainable_variables, self.model.non_trainable_weights
        variables = [*trained, None, *others]  # a frozen layer moves its variables behind None
        if self._local is None or list(map(id, variables)) != list(map(id, self._variables)):
            self._local, self._variables = self._new(trained, others), variables
        return self._local

    def _check_trained(self) -> None:
        """After an epoch's first execution, which builds the optimizer if a `train_step` trains variables of its own."""
        others = model_contents.untracked_variables(self.model)
        if others:
            raise ValueError(
                f"{type(self).__name__} exchanges the weights of the model, and the optimizer trains variables that the "
                "model does not track: make them with self.add_weight(...). "
                f"Received: {', '.join(f'{each.name} of shape {each.shape}' for each in others)}"
            )

    def _trains_all_ranks(self, optimizer: Any) -> bool:
        """Whether a distributed optimizer leaves nothing to exchange. On one rank, too, if both have the same set."""
        sets = [settings.options.process_set for settings in all_settings(optimizer)]
        if not sets:
            return is_distributed(optimizer)  # an optimizer of TF1
        size = self.process_set.size() or 1
        return any(each is self.process_set or (each.size() or 1) >= size > 1 for each in sets)

    @property
    def current(self) -> local_steps.LocalSGD | None:
        """The object that counts steps and exchanges; None before the first step."""
        return self._local

    def _new(self, variables: Any, statistics: Any) -> local_steps.LocalSGD:
        return local_steps.LocalSGD(variables, self.every, statistics=statistics, **self._options)


class DiLoCo(LocalSGD):
    """Lets each rank train alone in `fit`, with a step of an outer optimizer after every so many. See `tfddl.DiLoCo`.

    See `LocalSGD` above for the model, the order of callbacks, and what they see.

    Args:
        every: See `LocalSGD`.
        outer_optimizer: An optimizer of Keras. Defaults to `SGD(0.7, momentum=0.9, nesterov=True)`.
        fragments: See `tfddl.DiLoCo`, as for the next two: with them training goes on during an exchange.
        delay: The number of steps that an exchange may take.
        mixing: How much of a rank's own weights stays.
        compression: See `LocalSGD`.
        process_set: See `LocalSGD`.

    Raises:
        TypeError: `outer_optimizer` is no optimizer of Keras.
        ValueError: As `LocalSGD`.
    """

    def __init__(
        self,
        every: int,
        outer_optimizer: Any = None,
        *,
        fragments: int = 1,
        delay: int = 0,
        mixing: float = 0.0,
        compression: Any = Compression.none,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(every, compression=compression, process_set=process_set)
        outer.check_fragments(every, fragments, delay, mixing)
        self._options |= {"fragments": fragments, "delay": delay, "mixing": mixing}
        self._between = every // fragments, delay
        new = outer_optimizer is None
        self._outer = outer.new_outer_optimizer() if new else outer.check_outer(outer_optimizer)

    @property
    def outer_variables(self) -> list[Any]:
        """theta and the state of the outer optimizer, for a checkpoint; empty before the first step."""
        return self._local.outer_variables if isinstance(self._local, local_steps.DiLoCo) else []

    def _new(self, variables: Any, statistics: Any) -> local_steps.LocalSGD:
        return local_steps.DiLoCo(variables, self.every, self._outer, statistics=statistics, **self._options)
