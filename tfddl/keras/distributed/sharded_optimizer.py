"""The class that is put in front of an optimizer of Keras 3 whose state is divided among the ranks (ZeRO-1)."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import reduced_marks, scatter
from tfddl.keras.distributed import apply_call, loss_weight, sharded_state
from tfddl.keras.distributed.backward_passes import undo_mean
from tfddl.keras.distributed.base_optimizer import Distributed
from tfddl.keras.distributed.dynamic_subclass import is_subclassed
from tfddl.keras.distributed.settings import settings_of
from tfddl.keras.distributed.slices import Slice, Slices
from tfddl.ops import names
from tfddl.ops.allreduce import allreduce
from tfddl.ops.compression import is_stateful
from tfddl.ops.constants import Sum
from tfddl.ops.variables import whole_values
from tfddl.runtime.process_sets import id_of, members

_SLICES = "_tfddl_slices"
_COLLECTED = "_tfddl_collected"
_ACCUMULATOR = "gradient_accumulator"


class Sharded(Distributed):
    """Updates one slice of each variable, where Keras would update the variable (arXiv 1910.02054, section 5.1).

    Keras builds the optimizer for flat variables, the slices of this rank, and so makes slots of their size. Gradients are
    reduced and divided where Keras clips; weight decay and constraints see whole variables.
    """

    _trainable_variables: Any
    _trainable_variables_indices: dict[Any, int]
    _var_key: Any
    variables: list[Any]
    built: bool
    clipnorm: float | None
    global_clipnorm: float | None

    def build(self, variables: Iterable[Any]) -> None:
        """See `keras.optimizers.Optimizer.build`. Ranks must be known: after `tfddl.init`."""
        plain: Any = super()
        if self.built:
            return
        settings, variables = settings_of(self), list(variables)
        id_of(settings.options.process_set, settings.name)  # raises the error of a program without init
        slices = vars(self)[_SLICES] = Slices(variables, settings.options.process_set)
        with slices.building():
            plain.build(slices.parts)
        for index, variable in enumerate(variables):
            self._trainable_variables_indices[self._var_key(variable)] = index
        vars(self)["_trainable_variables"] = variables

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, *arguments: Any, **options: Any
    ) -> Any:
        """See `keras.optimizers.Optimizer.add_variable_from_reference`. Gradients are accumulated whole."""
        plain: Any = super()
        slices: Slices | None = vars(self).get(_SLICES)
        piece = None if slices is None else slices.with_part(reference_variable)
        if slices is None or piece is None:
            return plain.add_variable_from_reference(reference_variable, name, *arguments, **options)
        is_whole = name == _ACCUMULATOR and not _compat.clips_each_batch()
        reference = piece.whole if is_whole else reference_variable
        with slices.with_reference():
            slot = plain.add_variable_from_reference(reference, name, *arguments, **options)
        if not is_whole:
            slices.add_slot(slot, piece)
        return slot

    def add_variable(self, shape: Any, *arguments: Any, **options: Any) -> Any:
        """See `keras.optimizers.Optimizer.add_variable`. Some optimizers make the slots of all variables by it."""
        plain: Any = super()
        slot = plain.add_variable(shape, *arguments, **options)
        slices: Slices | None = vars(self).get(_SLICES)
        if slices is not None and slices.builds and len(shape):
            slices.add_slot(slot, slices.next_of(options.get("name"), tuple(shape)))
        return slot

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.Optimizer.apply`.

        Raises:
            ValueError: A tape has left a gradient to its rank, or tfddl is not initialized.
        """
        settings = settings_of(self)
        id_of(settings.options.process_set, settings.name)  # raises the error of a program without init
        if any(map(reduced_marks.is_local, grads)):
            raise _local_error(f"the gradient of a local source, one of {len(grads)} gradients")
        known = self._trainable_variables if trainable_variables is None else trainable_variables
        return super().apply(grads, list(known))

    def register_local_var(self, variable: Any) -> None:
        """Raises a ValueError."""
        raise _local_error(f"register_local_var({_compat.path(variable)})")

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Slices of the reduced gradients, clipped."""
        plain: Any = super(Distributed, self)
        settings, slices = settings_of(self), self._slices
        call = apply_call.current(self) or apply_call.new(settings, grads, self._trainable_variables)
        call.reached = True
        variables = call.variables or []
        mine = slices.of(variables[slot] for slot in call.slots)
        keeps_errors = is_stateful(settings.options.compression)
        if keeps_errors:  # those of whole gradients
            grads = call.reduce(grads)
        if call.reduced or keeps_errors or slices.ranks == 1:
            parts = [each.of(grad) for each, grad in zip(mine, grads, strict=True)]
        else:
            grads = [
                tf.ensure_shape(tf.convert_to_tensor(grad), each.whole.shape)
                for each, grad in zip(mine, grads, strict=True)
            ]
            parts = scatter.scatter_gradients(
                grads,
                call.slots,
                len(variables),
                slices.rank,
                owner=settings.owner,
                options=loss_weight.options_under_way(settings.options),
            )
        parts = list(undo_mean(settings, parts))
        norm = self.clipnorm or self.global_clipnorm
        return self._clipped(parts, norm) if norm else plain._clip_gradients(parts)

    def _clipped(self, parts: Sequence[tf.Tensor], largest: float) -> list[tf.Tensor]:
        """Clips by the norms of whole gradients: each by its own, or all by their global norm."""
        settings = settings_of(self)
        squares = tf.stack([tf.reduce_sum(tf.square(tf.cast(part, tf.float32))) for part in parts])
        if self._slices.ranks > 1:
            process_set = settings.options.process_set
            name = names.unique(f"{settings.owner}.norms", id_of(process_set, settings.owner))
            # The scope is the optimizer's name, which has another number on a rank that has made other optimizers too.
            squares = allreduce(squares, op=Sum, name=name, ignore_name_scope=True, process_set=process_set)
        norms = tf.sqrt(squares if self.clipnorm else tf.fill([len(parts)], tf.reduce_sum(squares)))
        scales = largest / tf.maximum(norms, largest)
        return [
            part * tf.cast(scale, part.dtype) for part, scale in zip(parts, tf.unstack(scales), strict=True)
        ]

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        plain: Any = super()
        mine = self._taken(trainable_variables)
        plain._backend_update_step(grads, [each.part for each in mine], learning_rate)
        self._spread(mine)

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        plain: Any = super()
        plain._update_model_variables_moving_average([each.part for each in self._taken(trainable_variables)])

    def _overwrite_model_variables_with_average_value(self, trainable_variables: Any) -> None:
        """Overwrites the slices, then gathers them."""
        plain: Any = super()
        mine = self._slices.of(trainable_variables)
        plain._overwrite_model_variables_with_average_value([each.part for each in mine])
        self._spread(mine)

    def save_own_variables(self, store: Any) -> None:
        """See `keras.optimizers.Optimizer.save_own_variables`: whole variables. All ranks call it."""
        if not self.built:
            plain: Any = super()
            plain.save_own_variables(store)
            return
        for index, value in enumerate(vars(self).get(_COLLECTED) or self.whole_values()):
            store[str(index)] = value

    def whole_values(self) -> Iterator[np.ndarray]:
        """The values of all variables, as the plain optimizer would have them, few at a time. All ranks read all of them."""
        return whole_values(self.variables, lambda each: tf.convert_to_tensor(each).numpy())

    @contextmanager
    def collected(self, values: list[np.ndarray]) -> Iterator[None]:
        """Within it, `save_own_variables` stores these whole values, and needs no other rank."""
        vars(self)[_COLLECTED] = values
        try:
            yield
        finally:
            del vars(self)[_COLLECTED]

    def load_own_variables(self, store: Any) -> None:
        """See `keras.optimizers.Optimizer.load_own_variables`: takes this rank's slices of whole variables."""
        if self.built and len(store.keys()) == len(self.variables):
            sharded_state.load(self, store)
            return
        plain: Any = super()
        plain.load_own_variables(store)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> Any:
        if save_type == "checkpoint" and _SLICES in vars(self) and self._slices.ranks > 1:
            raise ValueError(
                "A tf.train.Checkpoint would hold the slices of one rank: use hvd.callbacks.ShardedCheckpoint, or "
                f"model.save on all ranks. Received: a ShardedOptimizer on {self._slices.ranks} ranks, {self!r}"
            )
        plain: Any = super()
        return plain._trackable_children(save_type, **options)

    @property
    def _slices(self) -> Slices:
        return vars(self)[_SLICES]

    def _taken(self, variables: Any) -> list[Slice]:
        """The slices of variables, with their present values."""
        mine = self._slices.of(variables)
        for each in mine:
            each.take()
        return mine

    def _spread(self, slices: Sequence[Slice]) -> None:
        settings = settings_of(self)
        self._slices.spread(slices, settings.owner, settings.options)


def _local_error(received: str) -> ValueError:
    return ValueError(
        "Variables that are local to each rank cannot be divided among the ranks: use hvd.PartialDistributedOptimizer. "
        f"Received: {received}"
    )


def is_sharded(optimizer: Any) -> bool:
    """Whether an optimizer's state is, or will be, divided among several ranks."""
    if not (is_subclassed(optimizer) and settings_of(optimizer).sharded):
        return False
    process_set = settings_of(optimizer).options.process_set
    return bool(process_set.included()) and len(members(process_set)) > 1
