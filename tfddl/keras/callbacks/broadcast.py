"""BroadcastGlobalVariablesCallback: equal weights at the start, and checks that the ranks train together."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl import _compat, runtime
from tfddl.gradients import reduced_marks
from tfddl.keras.callbacks import stop
from tfddl.keras.consistency import (
    adapted_check,
    backup_check,
    cache_check,
    callback_list,
    model_check,
    model_contents,
    own_state,
    rows_check,
    setup_check,
    sharded_check,
    steps_check,
    weights_check,
)
from tfddl.keras.consistency.divergence import DivergenceCheck
from tfddl.keras.consistency.model_contents import variable_id
from tfddl.keras.consistency.variables_check import check_variables
from tfddl.ops.broadcast import broadcast, root_index
from tfddl.ops.exchange import all_numbers
from tfddl.ops.variables import broadcast_variables
from tfddl.runtime import basics
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set, members


class BroadcastGlobalVariablesCallback(callback_list.ListedCallback):
    """Gives all ranks the root's variables when training begins.

    It sends the variables of the model and of its optimizers before the first step, and builds the optimizer if necessary.
    Variables that a model makes only in its first step follow after that step; so does a `tf.Variable` that only a
    `train_step` of your own trains. The state of random layers stays each
    rank's own, and so do sums of gradients that wait for `gradient_accumulation_steps` and an optimizer's
    state of local variables. After a `keras.callbacks.BackupAndRestore`, placed before this callback, all ranks resume at
    the root's epoch, and only the root has to find a backup.

    It also checks that the gradients of the model are combined and that the ranks take the same steps. It warns if weights
    diverge in a `train_step` of your own, if it changes a learning rate, and if the ranks' backups would not let them resume
    together. With `TFDDL_CHECK=n` it compares the weights of all ranks every n steps. It turns `jit_compile` off if there
    are no XLA kernels (docs/xla.md), and adds a `StopTogetherCallback` to the end of `fit`'s callbacks if there is none.

    Args:
        root_rank: The rank that sends its values; a rank of the job.
        local_variables: One variable or several, of Keras or TensorFlow, that stay each rank's own. Defaults to none.
        process_set: The ranks that train together ("all ranks" above). Defaults to all.

    Raises:
        TypeError: `root_rank` is no integer.
        ValueError: `local_variables` holds anything else. `root_rank` is no rank of the job; before `tfddl.init` this shows
            only when training begins. On every rank when training begins: the optimizer is not distributed and there are
            several ranks; or the ranks have different numbers of batches or epochs, begin with different epochs, have
            variables that differ in number, name, shape or dtype, preprocessing layers that were adapted to different
            data, have given `hvd.data.shard` different rows, or share a file of `Dataset.cache` for different shards. On
            every rank at the end of an epoch: the ranks had different numbers of batches. On every rank after a step that
            `TFDDL_CHECK` checks: weights differ.

    Example:
        On 2 ranks:

        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        >>> callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        >>> history = model.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0, callbacks=callbacks)
        >>> weights = hvd.allgather_object(model.get_weights()[0].tolist())
        >>> weights[0] == weights[1]
        True
    """

    looks_after = True

    def __init__(
        self,
        root_rank: int,
        local_variables: Iterable[Any] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        callback_list.watch()
        self.root_rank = _checked_root(root_rank)
        self.process_set = check_type(process_set)
        self._local = {variable_id(variable) for variable in _listed(local_variables)}
        self._sent: set[int] = set()
        self.refuses_divergence = False  # see DivergenceCheck
        self._check_first_step = False
        self._checked_optimizer: Any = None
        self._divergence: DivergenceCheck | None = None
        self._weights_check: weights_check.WeightsCheck | None = None
        self._callbacks: list[Any] = []
        self._requests = 0
        self._first_epoch, self._first_batch = True, True
        self._batches = 0

    def register_local_var(self, variable: Any) -> None:
        """Keeps `variable` out of the broadcast."""
        self._local.add(variable_id(variable))

    def keeps(self, variable: Any) -> bool:
        """Whether a variable stays each rank's own: a local one, or one by which all ranks would drop the same units."""
        return self.is_local(variable) or _compat.is_seed_state(variable)

    def is_local(self, variable: Any) -> bool:
        """Whether the user has named a variable as each rank's own."""
        return variable_id(variable) in self._local

    def check_distributed(self) -> bool:
        """Checks that the ranks combine the model's gradients. Returns whether the first step has to be checked as well.

        Raises:
            ValueError: Each rank would train on its own.
        """
        if self._trains_alone():
            return False
        return model_check.check_distributed(self.model, self.process_set)

    def on_list(self, callbacks: Any) -> None:
        """Adds a StopTogetherCallback to the end of the list if there is none."""
        self._callbacks = callbacks.callbacks
        stop.add_to(callbacks, self.process_set)

    def set_model(self, model: Any) -> None:
        """Called by Keras before the train function is made."""
        super().set_model(model)
        model_check.turn_off_jit(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the model and broadcasts the variables that exist."""
        _checked_root(self.root_rank, self.process_set)
        steps_check.check_plan(
            _compat.fit_params(self), self.model, self._collective("steps"), self.process_set
        )
        model_contents.build_members(self.model)
        setup_check.check_optimizer(self.model, self._collective("optimizer"), self.process_set)
        adapted_check.check_adapted(self.model, self._collective("adapted"), self.process_set, self.is_local)
        rows_check.check_noted(self._collective("rows"), self.process_set)
        if not self.refuses_divergence:  # that of DataParallel, which divides the rows
            rows_check.warn_of_same(self._collective("same_rows"), self.process_set)
        cache_check.check_noted(self._collective("caches"), self.process_set)
        # Behind the comparison, which raises on all ranks if the optimizers of some of them are distributed.
        self._check_first_step = self.check_distributed()
        self._checked_optimizer = getattr(self.model, "optimizer", None)
        self._divergence = self._new_divergence_check()
        if not self._trains_alone():
            self._weights_check = weights_check.from_environment(
                self._collective("weights"), self.process_set
            )
        self._sent.clear()
        self._first_epoch, self._first_batch = True, True
        if not self.refuses_divergence:  # DataParallel has rank 0 write, and restore before the broadcast
            backup_check.warn_of_backups(self._callbacks, self, self._collective("backups"), self.process_set)
        if not self._step_builds():
            model_contents.build_optimizer(self.model)
        sharded_check.check_iterations(self.model, self._collective("iterations"), self.process_set)
        setup_check.warn_of_rates(
            self.model, self.root_rank, self._collective("learning_rate"), self.process_set
        )
        if not self.waits_for_first_batch():
            self._broadcast_new()
        self._agree_on_epoch()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares the first epoch."""
        self._batches = 0
        if self._weights_check is not None:
            self._weights_check.begin_epoch()
        if self._first_epoch:
            self._first_epoch = False
            steps_check.check_first_epoch(epoch, self._collective("first_epoch"), self.process_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares the number of batches."""
        steps_check.check_epoch(epoch, self._batches, self._collective("end_of_epoch"), self.process_set)
        # Again: a weight may be younger than the first step, and an optimizer may take a step every few batches.
        self._look_for_divergence()
        self._divergence = None

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Before the first step: counts collectives. Before the first with another optimizer: broadcasts new variables."""
        if self._first_batch:
            self._requests = runtime.request_count()
        elif self._has_other_optimizer():
            self._broadcast_new()  # of layers that came with it
        super().on_train_batch_begin(batch, logs)  # calls on_batch_begin of a subclass

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """After the first step: broadcasts the variables that the step has made."""
        self.after_batch(batch)
        super().on_train_batch_end(batch, logs)  # calls on_batch_end of a subclass

    def waits_for_first_batch(self) -> bool:
        """Whether nothing is broadcast before the first step. Equal on all ranks."""
        return False

    def after_batch(self, batch: int) -> None:
        """Does the work of `on_train_batch_end`."""
        self._batches = batch + 1
        if self._first_batch:
            self._first_batch = False
            if self._check_first_step:
                model_check.check_reduced_since(self._requests)
            self._look_for_divergence()
            self._broadcast_new()
        elif self._has_other_optimizer():
            self._checked_optimizer = self.model.optimizer
            self.check_distributed()
            self._broadcast_new()
        if self._weights_check is not None:
            self._weights_check.after_batch(self._batches, self._shared_weights)

    def _has_other_optimizer(self) -> bool:
        """Whether a callback has compiled the model again, as to train layers that were frozen."""
        return getattr(self.model, "optimizer", None) is not self._checked_optimizer

    def _step_builds(self) -> bool:
        """Whether the optimizer stays without variables until the first step, on all ranks."""
        waits = model_contents.is_built_by_step(self.model)
        (all_wait,) = all_numbers(waits, name=self._collective("built"), process_set=self.process_set)
        return all(all_wait.values())

    def _trains_alone(self) -> bool:
        """Whether each rank trains alone for some steps (LocalSGD, DiLoCo)."""
        return any(isinstance(each, callback_list.LocalStepsCallback) for each in self._callbacks)

    def _collective(self, part: str) -> str:
        return f"{type(self).__name__}.{part}"

    def _new_divergence_check(self) -> DivergenceCheck | None:
        """None with Keras' own `train_step`: its only optimizer has been checked."""
        stock = _compat.trains_with_stock_step(self.model)
        if self.process_set.size() == 1 or stock or self._trains_alone():
            return None
        refuses = self.refuses_divergence
        return DivergenceCheck(self.model, self._collective("divergence"), self.process_set, refuses)

    def _look_for_divergence(self) -> None:
        """Warns once, or raises, if weights that have been broadcast differ."""
        if self._divergence is not None and self._divergence.differ(self._shared_weights()):
            self._divergence = None

    def _shared_weights(self) -> list[Any]:
        """The trainable weights that have been broadcast and whose gradients are combined."""
        weights = list(self.model.trainable_weights)
        local = setup_check.local_slots(self.model, weights)
        return [
            weight
            for slot, weight in enumerate(weights)
            if variable_id(weight) in self._sent and not self.keeps(weight) and slot not in local
        ]

    def _broadcast_new(self) -> None:
        """Broadcasts the variables that have not been broadcast yet. All ranks call it."""
        everything = model_contents.all_variables(self.model)
        reduced_marks.leave_own(each for each in everything if variable_id(each) in self._local)
        own = own_state.own_state(self.model, self.keeps, self._collective("steps_taken"), self.process_set)
        skipped = self._sent | own
        variables = [each for each in everything if not self.keeps(each) and variable_id(each) not in skipped]
        check_variables(variables, everything, self._collective("variables"), self.process_set)
        if variables:
            setup_check.check_roles(self.model, self._collective("roles"), self.process_set, self.is_local)
            broadcast_variables(variables, self.root_rank, self.process_set)
        self._sent.update(map(variable_id, variables))

    def _agree_on_epoch(self) -> None:
        """Gives all ranks the root's epoch to resume at, which BackupAndRestore leaves in the model."""
        mine = _compat.resumed_epoch(self.model)
        own = tf.constant(-1 if mine is None else mine, tf.int64)
        name = self._collective("initial_epoch")
        epoch = int(broadcast(own, self.root_rank, name=name, process_set=self.process_set))
        if epoch >= 0 or mine is not None:
            _compat.resume_at(self.model, epoch if epoch >= 0 else None)


def _checked_root(root_rank: Any, process_set: ProcessSet | None = None) -> int:
    """Returns the root if it is a rank of the job, as far as that is known, and of the process set."""
    root = root_index(root_rank)
    if process_set is not None and root not in members(process_set):
        raise ValueError(
            "root_rank is the rank that sends its values, a rank of the job that takes part: choose one of "
            f"{list(members(process_set))}. Received: root_rank={root}"
        )
    if basics.is_initialized() and not 0 <= root < basics.size():
        raise ValueError(
            f"root_rank is a rank of the job: choose one from 0 to {basics.size() - 1} here. Received: root_rank={root}, in "
            f"a job of {basics.size()}"
        )
    return root


def _listed(local_variables: Any) -> list[Any]:
    if _compat.is_variable(local_variables):
        return [local_variables]
    variables = [] if local_variables is None else list(local_variables)
    for variable in variables:
        if not _compat.is_variable(variable):
            raise ValueError(
                "local_variables takes variables of Keras or TensorFlow, which stay out of the broadcast: pass a list, as "
                "layer.variables is. "
                f"Received: local_variables={local_variables!r}"
            )
    return variables
