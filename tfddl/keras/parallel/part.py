"""One rank's part of a global batch, and the part of the step that is being traced."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf

from tfddl import _compat
from tfddl.runtime import basics, rank_queries

TRACED = "hvd.DataParallel"
"""What `rank_queries` notes about a step that has the ranks of a job as constants."""


class Part(NamedTuple):
    """A rank's rows of a global batch.

    A batch with fewer rows than there are ranks is whole on every rank.

    Attributes:
        rows: int64 scalar, the number of these rows.
        total: int64 scalar, the number of rows of the global batch.
        data: The rows, in the structure of the batch.
    """

    rows: tf.Tensor
    total: tf.Tensor
    data: Any

    @property
    def is_whole(self) -> tf.Tensor:
        """Boolean scalar: whether every rank has all rows."""
        return tf.less(self.total, basics.size())

    def weight(self, dtype: Any) -> tf.Tensor:
        """The factor that makes the sum over ranks of means over rows the mean over all rows.

        It is `rows / total`. A batch that all ranks have counts on rank 0 alone.
        """
        own = tf.cast(self.rows, tf.float64) / tf.cast(self.total, tf.float64)
        alone = tf.constant(1 if basics.rank() == 0 else 0, tf.float64)
        return tf.cast(tf.where(self.is_whole, alone, own), dtype)

    def inverse_share(self, dtype: Any) -> tf.Tensor:
        """`total / rows`."""
        return tf.cast(tf.cast(self.total, tf.float64) / tf.cast(self.rows, tf.float64), dtype)


def take(data: Any) -> Part:
    """This rank's part of a global batch: contiguous rows, whose numbers differ by one at most.

    Args:
        data: A structure of arrays, or dense, ragged or sparse tensors, with the same first dimension.

    Raises:
        ValueError: A tensor is a scalar, or the first dimensions differ.
    """
    data = tf.nest.map_structure(_as_tensor, data)
    total = rows_of(data)
    rank_queries.note_trace(TRACED)
    size, rank = basics.size(), basics.rank()
    whole = tf.less(total, size)
    low, high = bounds(total, rank, size)
    low, high = tf.where(whole, tf.zeros_like(total), low), tf.where(whole, total, high)

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            rest = leaf.dense_shape[1:]
            start = tf.concat([[low], tf.zeros_like(rest)], 0)
            return tf.sparse.slice(leaf, start, tf.concat([[high - low], rest], 0))
        return leaf if is_optional(leaf) else _of_any_length(leaf[low:high])

    return Part(high - low, total, tf.nest.map_structure(cut, data))


def bounds(total: Any, rank: int, size: int) -> tuple[Any, Any]:
    """The first row of a rank's part, and the row behind its last. `total` is an int or an int64 scalar."""
    return total * rank // size, total * (rank + 1) // size


def _as_tensor(leaf: Any) -> Any:
    """Keras 3.4 gives the arrays of `train_on_batch` as they are."""
    return leaf if is_optional(leaf) or tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)


def _of_any_length(leaf: Any) -> Any:
    """The same, without a static first dimension: a model that is built on it is not one for this batch size."""
    if isinstance(leaf, tf.RaggedTensor):
        return leaf
    return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]])


def rows_of(data: Any) -> tf.Tensor:
    """int64 scalar: the first dimension of the tensors of a batch.

    Raises:
        ValueError: A tensor is a scalar, or the first dimensions differ.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if not is_optional(leaf)]
    shapes = [leaf.shape for leaf in leaves]
    known = {int(shape[0]) for shape in shapes if shape.rank and shape[0] is not None}
    if len(known) > 1 or not leaves or any(shape.rank == 0 for shape in shapes):
        raise ValueError(
            "DataParallel divides a global batch by its first dimension, which has to be the same in all its tensors: "
            f"let the dataset yield batches. Received: shapes {[tuple(shape) for shape in shapes]}"
        )
    counts = [_count(leaf) for leaf in leaves]
    checks = [
        tf.debugging.assert_equal(
            count,
            counts[0],
            "DataParallel divides a global batch by its first dimension, which has to be the same in all its tensors",
        )
        for count in counts[1:]
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(counts[0])


def _count(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int64)
    return tf.cast(leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0], tf.int64)


def is_optional(leaf: Any) -> bool:
    """Whether a leaf of a batch is None, or the Optional that tf.data makes of None: it has no rows."""
    return leaf is None or isinstance(leaf, tf.experimental.Optional)


_CURRENT: ContextVar[Part | None] = ContextVar("part", default=None)


def current() -> Part | None:
    """The part of the step that is being traced, or that runs eagerly; None outside of one."""
    return _CURRENT.get()


def trace_key() -> object:
    """Tells the current part in the cache of each `tf.function` that the step calls.

    A trace holds the rules of a part, and its numbers of rows: tensors of the graph around it, or constants in eager mode.
    """
    part = current()
    if part is None:
        return None
    if tf.is_symbolic_tensor(part.rows):
        return _compat.reference(part.rows)
    return int(part.rows), int(part.total)


@contextmanager
def under_way(part: Part) -> Iterator[None]:
    """Makes `part` the current one."""
    token = _CURRENT.set(part)
    try:
        yield
    finally:
        _CURRENT.reset(token)
