"""ElasticCallback: a `fit` that goes on after a loss, in the middle of an epoch."""

from __future__ import annotations

from typing import Any

from tfddl import _compat
from tfddl.elastic import fit_data, hand_over, survive
from tfddl.elastic.callback_states import CallbackStates
from tfddl.elastic.commits import Commits
from tfddl.elastic.errors import HostsUpdatedInterrupt
from tfddl.elastic.fit_state import Training, training_of
from tfddl.elastic.variables_state import CannotBuildError, refuse_local
from tfddl.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from tfddl.keras.callbacks.learning_rate import LearningRateScheduleCallback
from tfddl.keras.callbacks.sharded_checkpoint import ShardedCheckpoint
from tfddl.keras.consistency import callback_list
from tfddl.keras.consistency.callback_list import LocalStepsCallback, PreparingCallback, callbacks_of
from tfddl.keras.distributed import patches
from tfddl.keras.distributed.status import passes_done
from tfddl.keras.local_steps import LocalSGD
from tfddl.keras.parallel.data_parallel import DataParallel
from tfddl.ops.objects import broadcast_object
from tfddl.runtime import basics
from tfddl.runtime.log import warn
from tfddl.runtime.rank_queries import may_survive

_COMMIT_EVERY = 100


class ElasticCallback(PreparingCallback):
    """Lets `fit` go on after a loss, in a job of `tfddlrun --elastic`. In other jobs it does nothing.

        model.fit(x, y, epochs=10, callbacks=[hvd.callbacks.ElasticCallback()])

    A commit holds the weights, the optimizer, the residuals of its compression, the outer state of LocalSGD and DiLoCo, the
    history, the counts of callbacks such as EarlyStopping, and how far the epoch is done. After a loss the program runs
    again from its first line. Calls of `fit` that had ended train no more, and the one that was cut goes on from the newest
    commit. Under `DataParallel`, with arrays or a `PyDataset`, `fit` can go on in the processes that are left (ULFM).

    Each row counts once in an epoch if `fit` gets NumPy arrays of `hvd.data.shard`, or an `hvd.data.ShardedPyDataset`: then
    all ranks draw one order of the rows, and the rows that are left are dealt to the ranks that are left. Of a
    `tf.data.Dataset` the batches that are done are skipped, divided by the new number of ranks. Other data, and Keras 2,
    begin the epoch anew. Under `DataParallel` arrays and a `keras.utils.PyDataset` are whole, and the global batch stays
    the same after a loss.

    Place it on all ranks; it works as the last of the list.

    Args:
        commit_every: The number of batches between two commits. The end of an epoch is a commit too. With gradient
            accumulation the commit comes with the next update. Defaults to 100.
        scale_learning_rate: Whether the learning rate is multiplied by the new number of ranks over the old one, because the
            global batch changes by that factor (the linear scaling rule, arXiv 1706.02677).
        seed: int, of the orders of rows: each epoch of each `fit` has its own. Under `DataParallel` they also depend on that
            seed. Defaults to 0.

    Raises:
        ValueError: `commit_every` is not positive. In `fit`: there is another ElasticCallback, a `BackupAndRestore` or a
            `ShardedCheckpoint`; an optimizer beside `model.optimizer` has `use_ema` and is not built; or
            `scale_learning_rate` is set, and the learning rate is computed by a schedule, or DataParallel keeps the global
            batch.
    """

    def __init__(
        self, commit_every: int = _COMMIT_EVERY, *, scale_learning_rate: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        if commit_every < 1:
            raise ValueError(f"commit_every must be 1 or more: pass one. Received: {commit_every!r}")
        self._commit_every, self._scales, self._seed = commit_every, scale_learning_rate, seed
        self._training: Training | None = None
        self.is_automatic = False
        # The rest belongs to the call of `fit` that is under way.
        self._found = False  # a commit of it
        self._data = fit_data.FitData()
        self._others: list[Any] = []
        self._states = CallbackStates([])
        self._local_steps: LocalSGD | None = None
        self._restores_local_steps = False
        self._factor = 1.0
        self._steps: int | None = None
        self._since = self._last = 0  # batches: since the last commit, and done in the epoch
        callback_list.watch()
        if may_survive():
            patches.repeat_fits(_goes_on)

    def prepare(self, model: Any, arguments: dict[str, Any]) -> None:
        """Restores the newest commit, and makes `fit` begin where it was made. All ranks call it.

        Args:
            model: The compiled model.
            arguments: Those of `fit`; changed.
        """
        if not Commits.are_kept() or getattr(model, "optimizer", None) is None:
            return
        self._check(model, arguments)
        try:
            training = self._training = training_of(model, arguments.get("x"))
        except CannotBuildError as error:
            if not self.is_automatic:
                raise
            warn(
                f"Build the model and its optimizers before fit: else this fit begins anew after a loss. Received: {error}"
            )
            return
        hand_over.watch_sigterm()
        first, epochs = arguments.get("initial_epoch", 0), arguments.get("epochs", 1)
        state = training.state
        self._found = training.begin_fit(first, (*DataParallel.seeds(), self._seed))
        self._data = fit_data.take(arguments, state.seed)
        if training.is_over:
            first = epochs
        elif self._found:
            first = epochs if state.stopped else state.epoch
            if first < epochs:
                if not self._data.go_on(state.order, state.done):
                    first, state.order, state.done = first + 1, state.order + 1, 0
                    state.epoch = first
                self._data.go_on(state.order, 0)  # `fit` counts the batches of a whole epoch
            self._factor = basics.size() / state.size if self._scales else 1.0
            self._scale(model)
        else:
            state.order = self._data.order
        state.size = basics.size()
        arguments["initial_epoch"] = first
        self._others = [each for each in callbacks_of(arguments) if each is not self]
        self._local_steps = None
        arguments["callbacks"] = [*self._others, self]
        self._since = self._last = 0
        if may_survive():  # else nothing takes it out after an exception
            _under_way[id(model)] = self

    def go_on(self, model: Any) -> bool:
        """Goes back to the last commit of this call of `fit`, if other ranks have died. All ranks that are left call it.

        Args:
            model: The model.

        Returns:
            Whether `fit` is to run again. False if no rank has died, or the program has to start again.
        """
        if self._training is None or not isinstance(self._data, fit_data.OrderedData):
            return False
        if not self._training.can_go_on or not survive.goes_on(in_fit=True):
            return False
        self._training.go_on()
        _compat.forget_functions(model)
        return True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Gives other callbacks back what they have found out.

        Raises:
            ValueError: `fit` was called before this callback was made, so that it could not restore.
        """
        if self._training is None:
            if Commits.are_kept() and not self.is_automatic:
                raise ValueError(
                    "This ElasticCallback was made after Python had looked up model.fit: write callbacks = [...] in a line "
                    "before. "
                    "Received: model.fit(callbacks=[ElasticCallback()])"
                )
            return
        self._steps = _compat.fit_params(self).get("steps")
        self._states = CallbackStates(self._others)
        self._restores_local_steps = self._found and self._training.is_newest
        if self._restores_local_steps:
            self._states.restore(self._training.state.callbacks)
        elif may_survive() and not self._training.is_over:  # a loss may come before the first commit
            self._training.state.callbacks = self._changed()
            self._training.state.save()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Tells Keras and other callbacks which batches the epoch has."""
        if self._training is None:
            return
        first_batch = 0
        if self._found and self._training.state.done:
            # Other callbacks have begun this epoch before, for example with another learning rate.
            self._training.state.restore_variables()
            self._scale(self.model)
            self._states.restore(self._training.state.callbacks)
            self._data.go_on(self._training.state.order, self._training.state.done)
            first_batch = self._data.first_batch
        if self._steps:
            self.params["steps"] = max(self._steps - first_batch, 1)
        for each in self._others:
            if isinstance(each, LearningRateScheduleCallback):
                each.first_batch = first_batch
        self._give_history_back()
        self._last = 0
        fit_data.shorten_next(self._data)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Before the first step: LocalSGD and DiLoCo have made only now what a commit holds of them."""
        super().on_train_batch_begin(batch, logs)  # calls on_batch_begin of a subclass
        if self._training is None or self._local_steps is not None:
            return
        found = (each.current for each in self._others if isinstance(each, LocalStepsCallback))
        self._local_steps = next(found, None)
        if self._local_steps is not None:
            self._training.state.watch(self._local_steps, restore=self._restores_local_steps)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits if it is time."""
        super().on_train_batch_end(batch, logs)  # calls on_batch_end of a subclass
        if self._training is None:
            return
        done = _compat.batches_done(self.model, batch)
        self._since, self._last = self._since + done - self._last, done
        # The end of the epoch is a commit of its own: other callbacks have to see that end.
        if not self._data.is_over_after(done):
            self._commit_when_due(self._data.done_after(done))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commits."""
        if self._training is None:
            return
        self._training.state.epoch = epoch + 1
        self._training.note(epoch, logs or {})
        self._since = self._commit_every
        self._commit_when_due(0)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Commits what other callbacks have made of the weights at the end."""
        if self._training is None:
            return
        self._give_history_back()
        if not self._training.is_over:
            self._training.state.over = True
            self._commit()
        _under_way.pop(id(self.model), None)

    def _commit_when_due(self, done: int) -> None:
        # Sums of gradients are each rank's own, and no part of a commit.
        due = self._since >= self._commit_every and passes_done(self.model.optimizer) == 0
        if self._training is not None and due:
            self._training.state.done = done
            self._commit()

    def _commit(self) -> None:
        assert self._training is not None
        self._since = 0
        state = self._training.state
        state.order = self._data.order
        state.callbacks = self._changed()
        state.stopped = bool(self.model.stop_training)
        try:
            with hand_over.possible():
                state.commit()
        except HostsUpdatedInterrupt:
            hand_over.end_if_agreed()
            raise

    def _changed(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The results of this rank's callbacks, and of callbacks that only rank 0 has: rank 0 may be lost."""
        changed = self._states.changed()
        of_rank_0: dict[tuple[str, int], dict[str, Any]] = broadcast_object(changed, name="elastic.callbacks")
        return of_rank_0 | changed

    def _scale(self, model: Any) -> None:
        if self._factor != 1.0:
            rate = model.optimizer.learning_rate
            rate.assign(rate * self._factor)

    def _give_history_back(self) -> None:
        if self._found and self._training is not None:
            self._training.fill_history(self.model.history)
        self._found = False

    def _check(self, model: Any, arguments: dict[str, Any]) -> None:
        ours = sum(isinstance(each, ElasticCallback) for each in callbacks_of(arguments))
        if ours > 1:
            raise ValueError(f"fit needs one ElasticCallback: leave the others out. Received: {ours} of them")
        others = [type(each).__name__ for each in callbacks_of(arguments) if isinstance(each, _restoring())]
        if others:
            raise ValueError(
                f"Both restore the model: leave {others[0]} out in a job of tfddlrun --elastic. "
                f"Received: callbacks with ElasticCallback and {others[0]}"
            )
        kind = BroadcastGlobalVariablesCallback
        broadcasts = [each for each in callbacks_of(arguments) if isinstance(each, kind)]
        variables = model.variables if _compat.tells_weights(model) else []
        refuse_local([each for each in variables if any(one.is_local(each) for one in broadcasts)])
        if self._scales and DataParallel.divides():
            raise ValueError(
                "DataParallel keeps the global batch: leave scale_learning_rate out. Received: scale_learning_rate=True"
            )
        if self._scales and _compat.settable_learning_rate(model.optimizer) is None:
            raise ValueError(
                "The learning rate of the optimizer cannot be set: leave scale_learning_rate out, and compute the rate from "
                f"hvd.size(). Received: learning_rate={model.optimizer.learning_rate!r}"
            )


_under_way: dict[int, ElasticCallback] = {}  # by the model's id


def _goes_on(model: Any) -> bool:
    callback = _under_way.pop(id(model), None)
    return callback is not None and callback.go_on(model)


def add_to_every_fit() -> None:
    """`tfddlrun --auto --elastic`: each `fit` gets an ElasticCallback, unless it has a callback that restores."""
    patches.prepare_fits(_add)
    if may_survive():
        patches.repeat_fits(_goes_on)


def _add(model: Any, arguments: dict[str, Any]) -> None:
    listed = callbacks_of(arguments)
    if not any(isinstance(each, (ElasticCallback, *_restoring())) for each in listed):
        added = ElasticCallback()
        added.is_automatic = True
        arguments["callbacks"] = [*listed, added]


def _restoring() -> tuple[Any, ...]:
    """Other callbacks that restore the model."""
    return _compat.keras().callbacks.BackupAndRestore, ShardedCheckpoint
