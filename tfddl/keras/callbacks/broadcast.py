"""BroadcastGlobalVariablesCallback: equal weights at the start, and ranks that stay together."""

import operator
import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency import callback_list, model_check, setup_check, steps_check
from tfddl.keras.consistency.divergence import ApartWatch
from tfddl.keras.exchange import differing_lists
from tfddl.ops.broadcast import broadcast
from tfddl.ops.variables import broadcast_variables
from tfddl.runtime import basics
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set, members

Callback: Any = _compat.keras().callbacks.Callback

_SEED = "seed_generator_state"
"""Variables of random layers; each rank keeps its own, or all would drop the same units."""


class BroadcastGlobalVariablesCallback(Callback):
    """Gives all ranks the root's variables when training begins.

    Sends the model's variables and the optimizer's, building the optimizer if need be, before the first
    step. Variables that a model makes only in its first step follow after that step. State of random layers
    stays each rank's own. After a `keras.callbacks.BackupAndRestore`, placed before this callback, the
    epoch to go on with is the root's too, and only the root has to find a backup.

    It also checks that the gradients of the model are combined at all and that the ranks take the same steps, warns if
    weights come apart in a `train_step` of your own, turns `jit_compile` off where there are no XLA kernels (docs/xla.md),
    and has `fit` add a `StopTogetherCallback` to the end of the list.

    Args:
        root_rank: Rank whose values all get; a rank of the job.
        local_variables: Variables, Keras' or TensorFlow's, that stay each rank's own; one, or several. Defaults to
            none.
        process_set: Whose ranks train together; "all ranks" means those. Defaults to all.

    Raises:
        TypeError: If `root_rank` is no integer.
        ValueError: If `local_variables` holds anything else, or `root_rank` is no rank of the job, which shows when training
            begins if `tfddl.init` has not been called. At the beginning of training, if the optimizer is not
            distributed while there are several ranks, or if the ranks have different numbers of batches or
            epochs, begin with different epochs, or have variables that differ in number, name, shape or dtype. At
            the end of an epoch, if the ranks had different numbers of batches. On every rank.
    """

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
        self._local = {_key(variable) for variable in _listed(local_variables)}
        self._sent: set[int] = set()
        self._to_be_seen = False
        self._watch: ApartWatch | None = None
        self._requests = 0
        self._first_epoch, self._first_batch = True, True
        self._batches = 0

    def register_local_var(self, variable: Any) -> None:
        """Keeps `variable` out of the broadcast."""
        self._local.add(_key(variable))

    def set_model(self, model: Any) -> None:
        """Called by Keras before the train function is made."""
        super().set_model(model)
        model_check.turn_off_jit(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the model and broadcasts what exists."""
        _checked_root(self.root_rank, self.process_set)
        self._to_be_seen = model_check.check_distributed(self.model, self.process_set)
        steps_check.check_plan(
            _compat.fit_params(self), self.model, f"{type(self).__name__}.steps", self.process_set
        )
        setup_check.check_optimizer(self.model, f"{type(self).__name__}.optimizer", self.process_set)
        self._watch = self._new_watch()
        self._sent.clear()
        self._first_epoch, self._first_batch = True, True
        model_check.build_optimizer(self.model)
        self._broadcast_new()
        self._agree_on_epoch()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares the epoch to begin with."""
        self._batches = 0
        if self._first_epoch:
            self._first_epoch = False
            steps_check.check_first_epoch(epoch, f"{type(self).__name__}.first_epoch", self.process_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares the number of batches."""
        steps_check.check_epoch(epoch, self._batches, f"{type(self).__name__}.end_of_epoch", self.process_set)
        self._look_for_differences()  # of weights that the first step has made, too, or of one in several batches
        self._watch = None

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Before the first step: counts collectives."""
        if self._first_batch:
            self._requests = model_check.request_count()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """After the first step: broadcasts what that step has made."""
        self._batches = batch + 1
        if not self._first_batch:
            return
        self._first_batch = False
        if self._to_be_seen:
            model_check.check_reduced_since(self._requests)
        self._look_for_differences()
        self._broadcast_new()

    def _new_watch(self) -> ApartWatch | None:
        """Keras' own `train_step` has one optimizer only, which has been checked."""
        if self.process_set.size() == 1 or _compat.trains_with_stock_step(self.model):
            return None
        return ApartWatch(self.model, f"{type(self).__name__}.apart", self.process_set)

    def _look_for_differences(self) -> None:
        """Warns once if weights that have been broadcast differ."""
        if self._watch is None:
            return
        weights = list(self.model.trainable_weights)
        local = setup_check.local_among(self.model, weights)
        shared = [
            weight
            for place, weight in enumerate(weights)
            if _key(weight) in self._sent and not self.keeps(weight) and place not in local
        ]
        if self._watch.look(shared):
            self._watch = None

    def _broadcast_new(self) -> None:
        """Broadcasts the variables that have not been before; all ranks come here together."""
        everything = _unique(model_check.all_variables(self.model))
        variables = [variable for variable in everything if self._sends(variable)]
        owners = {_compat.path(variable).replace("/", "_"): _own_name(variable) for variable in everything}
        different = differing_lists(
            [_describe(variable, owners) for variable in variables],
            f"{type(self).__name__}.variables",
            self.process_set,
        )
        if different is not None:
            raise ValueError(_difference(different))
        if variables:
            setup_check.check_roles(self.model, f"{type(self).__name__}.roles", self.process_set)
            broadcast_variables(variables, self.root_rank, self.process_set)
        self._sent.update(_key(variable) for variable in variables)

    def keeps(self, variable: Any) -> bool:
        """Whether a variable stays each rank's own."""
        return _key(variable) in self._local or _compat.path(variable).endswith(_SEED)

    def _sends(self, variable: Any) -> bool:
        return not (self.keeps(variable) or _key(variable) in self._sent)

    def _agree_on_epoch(self) -> None:
        """BackupAndRestore leaves the epoch to resume from in the model."""
        mine = _compat.resumed_epoch(self.model)
        name = f"{type(self).__name__}.initial_epoch"
        own = tf.constant(-1 if mine is None else mine, tf.int64)
        epoch = int(broadcast(own, self.root_rank, name=name, process_set=self.process_set))
        if epoch >= 0 or mine is not None:
            _compat.resume_at(self.model, epoch if epoch >= 0 else None)


def _checked_root(root_rank: Any, process_set: ProcessSet | None = None) -> int:
    """Returns the root if it is a rank of the job, as far as that is known, and of the process set."""
    try:
        root = operator.index(root_rank)
    except TypeError:
        raise TypeError(f"root_rank is the number of a rank. Received: root_rank={root_rank!r}") from None
    if process_set is not None and root not in members(process_set):
        raise ValueError(
            "root_rank is the rank in the job of one that takes part, whose values all get: one of "
            f"{list(members(process_set))}. Received: root_rank={root}"
        )
    if basics.is_initialized() and not 0 <= root < basics.size():
        raise ValueError(
            f"root_rank is a rank of the job, from 0 to {basics.size() - 1} here. Received: root_rank={root}, in a job of "
            f"{basics.size()}"
        )
    return root


def _listed(local_variables: Any) -> list[Any]:
    if _compat.is_variable(local_variables):
        return [local_variables]
    variables = [] if local_variables is None else list(local_variables)
    for variable in variables:
        if not _compat.is_variable(variable):
            raise ValueError(
                "local_variables holds variables of Keras or TensorFlow, those that are not to be broadcast. "
                f"Received: local_variables={local_variables!r}"
            )
    return variables


def _key(variable: Any) -> int:
    """Tells variables apart: a Keras variable and the tf.Variable inside are the same one."""
    return id(_compat.tf_variable(variable))


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list({_key(variable): variable for variable in variables}.values())


def _own_name(variable: Any) -> str:
    return _compat.path(variable).rsplit("/", 1)[-1]


def _describe(variable: Any, owners: dict[str, str]) -> str:
    """What has to be equal on all ranks: neither the numbers in names, which count earlier models, nor the path of a
    slot's variable, which is another one in a model that was loaded."""
    dtype = variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
    name = _own_name(variable)
    for cut in (i for i, letter in enumerate(name) if letter == "_"):
        if name[:cut] in owners:
            name = owners[name[:cut]] + name[cut:]
            break
    return f"{dtype}{tuple(variable.shape)} {re.sub(r'_[0-9]+', '', name)}"


def _difference(lists: dict[int, list[str]]) -> str:
    """Names the first variable in which the ranks differ."""
    counts = ", ".join(f"rank {rank}: {len(lines)}" for rank, lines in lists.items())
    first = next(
        i
        for i in range(max(map(len, lists.values())))
        if len({tuple(lines[i : i + 1]) for lines in lists.values()}) > 1
    )
    examples = "; ".join(
        f"rank {r}: {lines[first] if first < len(lines) else 'none'}" for r, lines in lists.items()
    )
    return (
        "The ranks have different variables: make the same model and optimizer on all, built or loaded "
        f"on all. Received: {counts} variables; number {first} is {examples}"
    )
