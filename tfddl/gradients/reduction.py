"""One gradient computation, reduced over all ranks: the only place where gradients meet the collectives."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients.buckets import bucket_sizes, plan_buckets
from tfddl.gradients.compression import Compression, Compressor, run_compressed
from tfddl.ops import allreduce_gradient, names, native  # noqa: F401 the first registers the gradient
from tfddl.ops.constants import NAMES, Adasum, Average, Sum
from tfddl.ops.sparse import allreduce_slices
from tfddl.runtime import xla
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of

_MARK = "_tfddl_reduced"
_SEARCH_LIMIT = 64
"""Ops looked at behind each gradient for a reduction by a tape: clipping and scaling need about ten."""


def check_op(op: int) -> int:
    """Returns `op` if gradients can be combined with it.

    Raises:
        ValueError: If it is none of `tfddl.Average`, `tfddl.Sum` and `tfddl.Adasum`.
    """
    if op not in (Average, Sum, Adasum):
        raise ValueError(
            "Gradients are combined with op=tfddl.Average, op=tfddl.Sum or op=tfddl.Adasum. "
            f"Received: op={NAMES.get(op, op)}"
        )
    return op


def is_reduced(gradient: Any) -> bool:
    """Whether `gradient` is a result of `reduce_gradients`, untouched since."""
    return getattr(gradient, _MARK, False)


def all_reduced(gradients: Iterable[Any]) -> bool:
    """Whether there are gradients and none of them still needs a reduction."""
    present = [gradient for gradient in gradients if gradient is not None]
    return bool(present) and all(is_reduced(gradient) for gradient in present)


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any] | None = None,
    *,
    owner: str,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Combines one set of gradients over all ranks.

    The gradients are put into buckets (see `tfddl.gradients.buckets`), each reduced by one op. All ranks have
    to come here with gradients of the same number, kinds, dtypes and shapes; where they do not, every rank
    gets the same error.

    A `tf.IndexedSlices`, which is what an embedding's gradient is, becomes one with the rows of all ranks,
    those of the same index added up (see `tfddl.ops.sparse`).

    Args:
        gradients: Tensors, `tf.IndexedSlices` or None, in the order of the model's variables.
        variables: What the gradients belong to, one for each. Used for shapes that tracing does not know.
        owner: Names the reduction; equal on all ranks and different for each optimizer.
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`, which takes each gradient for one vector.
        compression: What gradients travel as.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes a dense tensor first. That is faster where the
            rows of all ranks together are about as many as the variable has, or more. Inside a function
            compiled by XLA it always does.
        process_set: Whose ranks take part. On another rank the gradients stay what they are.

    Returns:
        A list like `gradients`, and None where None was. The gradients are marked, so that an optimizer does
        not reduce them again (`is_reduced`).

    Raises:
        ValueError: For another `op`, for `tfddl.Adasum` and a `tf.IndexedSlices`, or inside a function compiled by XLA
            where there are no XLA kernels.
        TypeError: If `compression` is no compressor.
    """
    check_op(op)
    xla.require(owner)
    results: list[Any] = list(gradients)
    number = id_of(process_set, owner)
    if process_set.included() is False:
        return results
    sparse = [index for index, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)]
    if sparse_as_dense or _compat.in_xla_context():  # whose shapes are fixed, while rows come in any number
        sparse = []
    if sparse and op == Adasum:
        raise ValueError(
            "op=tfddl.Adasum combines dense gradients: use DistributedGradientTape(..., sparse_as_dense=True). "
            f"Received: a tf.IndexedSlices, gradient {sparse[0]} of {len(results)}"
        )
    dense = [
        index for index, gradient in enumerate(gradients) if gradient is not None and index not in sparse
    ]
    if not dense and not sparse:
        return results
    sequence = names.unique(owner, number)
    tensors = [_dense(gradients[index], None if variables is None else variables[index]) for index in dense]
    # Two ranks that lack the gradient of different variables may have equal shapes otherwise.
    context = "" if len(dense) == len(results) else f"dense gradients {dense} of {len(results)}"
    reduced = run_compressed(
        lambda compressed: _reduce_in_buckets(compressed, sequence, op, context, number), tensors, compression
    )
    for index, tensor in zip(dense, reduced, strict=True):
        results[index] = _marked(tensor)
    # After the buckets, whose context tells where the ranks differ in what is sparse.
    for index in sparse:
        slices = allreduce_slices(
            gradients[index],
            op,
            f"{sequence}.slices.{index}",
            kind=owner,
            compression=compression,
            process_set=process_set,
        )
        results[index] = _marked(slices)
    return results


def reduce_missing(
    gradients: Sequence[Any], variables: Sequence[Any] | None = None, **options: Any
) -> list[Any]:
    """Reduces the gradients that are not marked as reduced; takes what `reduce_gradients` takes."""
    waiting = [None if gradient is None or is_reduced(gradient) else gradient for gradient in gradients]
    reduced = reduce_gradients(waiting, variables, **options)
    return [new if new is not None else old for new, old in zip(reduced, gradients, strict=True)]


def comes_from_a_reduction(gradients: Iterable[Any]) -> bool:
    """Whether a gradient in a graph was computed from reduced ones, by clipping them for example.

    Looks only at the nearest ops: far behind a gradient lies the whole model, which may hold reductions of
    its own, such as those of a gradient penalty.
    """
    return any(
        _reduction_nearby(gradient)
        for gradient in map(_values, gradients)
        if tf.is_symbolic_tensor(gradient) and not is_reduced(gradient)
    )


def _reduction_nearby(gradient: tf.Tensor) -> bool:
    queue, seen = [gradient], {id(gradient)}
    for _ in range(_SEARCH_LIMIT):
        if not queue:
            return False
        tensor = queue.pop(0)
        if is_reduced(tensor):
            return True
        for source in tensor.op.inputs:
            if id(source) not in seen:
                seen.add(id(source))
                queue.append(source)
    return False


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _marked(gradient: Any) -> Any:
    setattr(_values(gradient), _MARK, True)
    setattr(gradient, _MARK, True)
    return gradient


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
    """The gradient as one tensor, with the variable's static shape if its own is not known."""
    tensor = tf.convert_to_tensor(gradient)
    shape = getattr(variable, "shape", None)
    if shape is not None and not tensor.shape.is_fully_defined():
        tensor = tf.ensure_shape(tensor, shape)
    return tensor


def _reduce_in_buckets(
    tensors: list[tf.Tensor], sequence: str, op: int, context: str, process_set: int
) -> list[tf.Tensor]:
    """One op a bucket; together they are one sequence, agreed on as a whole."""
    specifications = [(tensor.dtype.name, _static_shape(tensor)) for tensor in tensors]
    plan = plan_buckets(specifications, bucket_sizes())
    # A sequence is agreed on by the shapes known at trace time, and its buckets belong to one step. Where a shape shows
    # only at run time, and in eager mode, where each op is a step of its own, each bucket is agreed on by itself.
    apart = tf.executing_eagerly() or not all(tensor.shape.is_fully_defined() for tensor in tensors)
    reduced: dict[int, tf.Tensor] = {}
    for number, members in enumerate(plan.buckets):
        outputs = native.allreduce(
            [tensors[index] for index in members],
            op,
            f"{sequence}.{number}" if apart else sequence,
            context=context if apart else f"{plan.signature} {context}".strip(),
            bucket=0 if apart else number,
            buckets=1 if apart else len(plan.buckets),
            process_set=process_set,
        )
        reduced.update(zip(members, outputs, strict=True))
    return [reduced[index] for index in range(len(tensors))]


def _static_shape(tensor: tf.Tensor) -> list[int | None] | None:
    return None if tensor.shape.rank is None else tensor.shape.as_list()
