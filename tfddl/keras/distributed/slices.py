"""The slices of an optimizer's variables that one rank updates, and the state that belongs to them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import scatter
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.ops import join
from tfddl.ops.allgather import allgather
from tfddl.ops.variables import leave_to_its_rank
from tfddl.runtime import library, rank_queries
from tfddl.runtime.process_sets import ProcessSet, id_of, members, rank_in

_NOTE = (
    "collecting the state of a ShardedOptimizer, of which each rank has a slice; save on all ranks, not on one alone: "
    "rank 0 writes the file"
)


class Slice:
    """A slice of one variable, as a flat variable of its own.

    Args:
        variable: The whole variable, of Keras or TensorFlow.
        rank: This rank in its process set.
        ranks: The number of ranks.

    Attributes:
        whole: The variable.
        count: The number of its values.
        part: The flat variable `[slice]`, which the optimizer updates. Its value counts during an update only.
    """

    def __init__(self, variable: Any, rank: int, ranks: int) -> None:
        self.whole = variable
        self.count = int(np.prod(variable.shape))
        self._begin, self._end = scatter.bounds(self.count, rank, ranks)
        self.part = _compat.variable_like(variable, (self._end - self._begin,))

    def of(self, whole: Any) -> tf.Tensor:
        """The slice of a tensor, or of `tf.IndexedSlices`, in the shape of the variable."""
        return tf.reshape(tf.convert_to_tensor(whole), [-1])[self._begin : self._end]

    def of_array(self, whole: Any) -> np.ndarray:
        """The slice of an array in the shape of the variable."""
        return np.reshape(whole, [-1])[self._begin : self._end]

    def take(self) -> None:
        """Gives `part` the present values of the variable."""
        self.part.assign(self.of(self.whole))


class WholeSlot:
    """The whole of which a variable of an optimizer's state holds a slice, as the plain optimizer would have it.

    Args:
        slot: The variable.
        piece: The slice of the optimizer's variable that it belongs to.
        ranks: The number of ranks that share it.
        process_set: These ranks.

    Attributes:
        shape: The shape of the whole.
        ranks: The argument.
    """

    def __init__(self, slot: Any, piece: Slice, ranks: int, process_set: ProcessSet) -> None:
        self.shape, self.ranks = tuple(piece.whole.shape), ranks
        self._slot, self._piece, self._process_set = slot, piece, process_set

    def value(self, number: int) -> np.ndarray:
        """The slices of all ranks. All ranks that share them call this at the same point.

        If other ranks train on instead, the watchdog ends the job after ten seconds, and its message contains `_NOTE`.

        Args:
            number: Its number among the values that are gathered together; names the collective.
        """
        value = tf.convert_to_tensor(self._slot)
        if self.ranks > 1:
            name = f"ShardedOptimizer.state.{number}"
            library.note(id_of(self._process_set, name), name, _NOTE)
            value = allgather(value, name, ignore_name_scope=True, process_set=self._process_set)
        return value.numpy().reshape(self.shape)

    def assign(self, value: Any) -> None:
        """Gives the slot this rank's slice of a whole value."""
        self._slot.assign(self._piece.of_array(value))


class Slices:
    """The slices of all variables of an optimizer.

    Args:
        variables: The variables, in the order of the optimizer.
        process_set: The ranks that share the state.

    Attributes:
        rank: This rank in the process set; 0 outside of it.
        ranks: The number of ranks that share the state; 1 outside of the process set.
        each: The slices, one for each variable.
        builds: Whether the optimizer is making its slots, without saying for which variable.
    """

    def __init__(self, variables: Sequence[Any], process_set: ProcessSet) -> None:
        inside = process_set.included()
        self.rank = rank_in(process_set) if inside else 0
        self.ranks = len(members(process_set)) if inside else 1
        self.each = [Slice(variable, self.rank, self.ranks) for variable in variables]
        self._process_set = process_set
        rank_queries.note_divided("hvd.ShardedOptimizer")
        if self.ranks > 1:
            join.need_all(process_set, self)
        self.builds = False
        self._by_variable = {_compat.reference(each.whole): each for each in self.each}
        self._by_part = {_compat.reference(each.part): each for each in self.each}
        self._made: Counter[str | None] = Counter()

    @property
    def parts(self) -> list[Any]:
        """The flat variables."""
        return [each.part for each in self.each]

    def of(self, variables: Iterable[Any]) -> list[Slice]:
        """The slices of some whole variables."""
        return [self._by_variable[_compat.reference(variable)] for variable in variables]

    def with_part(self, part: Any) -> Slice | None:
        """The slice with this flat variable; None for another variable."""
        return self._by_part.get(_compat.reference(part))

    def add_slot(self, slot: Any, piece: Slice) -> None:
        """A variable of the optimizer's state, in the shape of a part. No broadcast changes it."""
        leave_to_its_rank(slot, WholeSlot(slot, piece, self.ranks, self._process_set))

    @contextmanager
    def building(self, builds: bool = True) -> Iterator[None]:
        """Within it the optimizer makes its slots."""
        before, self.builds = self.builds, builds
        try:
            yield
        finally:
            self.builds = before

    def with_reference(self) -> AbstractContextManager[None]:
        """Within it the optimizer makes one slot, for a variable that it has named."""
        return self.building(False)

    def next_of(self, name: str | None, shape: tuple[int, ...]) -> Slice:
        """The slice for the next slot of this name: optimizers make the slots of a name in the order of the variables.

        Raises:
            ValueError: The shape is not that of the slice.
        """
        index = self._made[name]
        self._made[name] += 1
        if index >= len(self.each) or shape != tuple(self.each[index].part.shape):
            raise ValueError(
                "ShardedOptimizer divides slots in the shapes of variables: use DistributedOptimizer for this optimizer. "
                f"Received: a slot {name!r} of shape {shape}"
            )
        return self.each[index]

    def spread(self, slices: Sequence[Slice], owner: str, options: GradientOptions) -> None:
        """Gives the whole variables of all ranks the values of the parts of all ranks."""
        values = [tf.convert_to_tensor(each.part) for each in slices]
        if self.ranks > 1:
            counts = [each.count for each in slices]
            values = scatter.gather_slices(values, counts, self.rank, owner=owner, options=options)
        for each, value in zip(slices, values, strict=True):
            each.whole.assign(tf.reshape(value, each.whole.shape))
