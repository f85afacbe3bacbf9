"""One gradient computation, reduced over all ranks: the only place where gradients meet the collectives."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import gradient_groups
from tfddl.gradients.buckets import bucket_sizes, plan_buckets
from tfddl.gradients.gradient_options import Options
from tfddl.gradients.local_sources import LocalSources, scaled
from tfddl.gradients.reduced_marks import is_reduced, leave_own, mark
from tfddl.ops import allreduce_gradient, names, native  # noqa: F401 the first registers the gradient
from tfddl.ops.compression import run_compressed
from tfddl.ops.constants import Adasum, Max
from tfddl.ops.sparse import allreduce_slices
from tfddl.runtime import xla
from tfddl.runtime.process_sets import id_of

_DEFAULT = Options()


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any] | None = None,
    *,
    owner: str,
    options: Options = _DEFAULT,
    local: LocalSources | None = None,
) -> list[Any]:
    """Combines one set of gradients over all ranks.

    The gradients are put into buckets (see `tfddl.gradients.buckets`), each reduced by one op. All ranks have
    to come here with gradients of the same number, kinds, dtypes and shapes; where they do not, every rank
    gets the same error.

    A `tf.IndexedSlices`, which is what an embedding's gradient is, becomes one with the rows of all ranks,
    those of the same index added up (see `tfddl.ops.sparse`). Inside a function compiled by XLA it always becomes a
    dense tensor: shapes are fixed there, while rows come in any number.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or None, in the order of the model's variables.
        variables: What the gradients belong to, one for each. Used for shapes that tracing does not know, groups,
            local variables, and those that are overwritten by their gradient.
        owner: Names the reduction; equal on all ranks and different for each optimizer.
        options: How to combine. Adasum takes each gradient for one vector.
        local: Variables whose gradients stay each rank's own.

    Returns:
        A list like `gradients`, and None where None was. The gradients are marked, so that an optimizer does
        not reduce them again (`marks.is_reduced`). On a rank outside the process set they are what they were.

    Raises:
        ValueError: For `tfddl.Adasum` and a `tf.IndexedSlices`, or inside a function compiled by XLA where there
            are no XLA kernels.
    """
    xla.require(owner)
    number = id_of(options.process_set, owner)
    if options.process_set.included() is False:
        leave_own(variables or ())
        return list(gradients)
    results = list(gradients)
    waiting = {index for index, result in enumerate(results) if result is not None}
    mine = waiting & local.among(variables) if local else set()
    leave_own(variables[index] for index in mine if variables)
    for index in mine:
        # A next value is no part of a mean.
        next_value = variables is not None and is_overwritten(variables[index])
        results[index] = mark(results[index], True) if next_value else _left_alone(results[index], options)
    waiting -= mine
    waiting -= _reduce_overwritten(results, waiting, variables, owner, number)
    sparse = [index for index in sorted(waiting) if isinstance(results[index], tf.IndexedSlices)]
    if options.sparse_as_dense or _compat.in_xla_context():
        sparse = []
    if sparse and options.op == Adasum:
        raise ValueError(
            "op=tfddl.Adasum combines dense gradients: use sparse_as_dense=True. "
            f"Received: a tf.IndexedSlices, gradient {sparse[0]} of {len(results)}"
        )
    dense = [index for index in sorted(waiting) if index not in sparse]
    if not waiting:
        return results
    sequence = names.unique(owner, number)
    _reduce_dense(results, dense, sparse, variables, sequence, options, number)
    # After the buckets, whose context tells where the ranks differ in what is sparse.
    for index in sparse:
        slices = allreduce_slices(
            results[index],
            options.op,
            f"{sequence}.slices.{index}",
            kind=owner,
            compression=options.compression,
            prescale=1 / options.gradient_predivide_factor,
            postscale=options.gradient_predivide_factor,
            process_set=options.process_set,
        )
        results[index] = mark(slices)
    return results


def reduce_missing(
    gradients: Sequence[Any], variables: Sequence[Any] | None = None, **options: Any
) -> list[Any]:
    """Reduces the gradients that are not marked as reduced; takes what `reduce_gradients` takes."""
    waiting = [None if gradient is None or is_reduced(gradient) else gradient for gradient in gradients]
    reduced = reduce_gradients(waiting, variables, **options)
    return [new if new is not None else old for new, old in zip(reduced, gradients, strict=True)]


def is_overwritten(variable: Any) -> bool:
    """Whether the variable's "gradient" is its next value, as that of a float8 layer's scales is."""
    return getattr(variable, "overwrite_with_gradient", False)


def _reduce_overwritten(
    results: list[Any], waiting: set[int], variables: Sequence[Any] | None, owner: str, process_set: int
) -> set[int]:
    """Takes the largest value of all ranks, in place, where a gradient is the variable's next value; returns where.

    Those are the largest magnitudes that a float8 layer has seen, and scales that grow with them: the largest of all
    ranks are what one process with the rows of all would have.
    """
    places = [index for index in sorted(waiting) if variables and is_overwritten(variables[index])]
    if places:
        name = names.unique(f"{owner}.overwritten", process_set)
        tensors = [tf.cast(results[index], tf.float32) for index in places]
        largest = native.allreduce(tensors, Max, name, process_set=process_set)
        for index, value in zip(places, largest, strict=True):
            results[index] = mark(tf.cast(value, results[index].dtype))
    return set(places)


def _left_alone(gradient: Any, options: Options) -> Any:
    """A local variable's gradient."""
    size = options.process_set.size() or 1
    return mark(scaled(gradient, size if options.scale_local_gradients else 1), local=True)


def _reduce_dense(
    results: list[Any],
    dense: Sequence[int],
    sparse: Sequence[int],
    variables: Sequence[Any] | None,
    sequence: str,
    options: Options,
    process_set: int,
) -> None:
    """Reduces the dense gradients of `results`, in place."""
    if not dense:
        return
    mine = None if variables is None else [variables[index] for index in dense]
    tensors = [_dense(results[index], mine and mine[place]) for place, index in enumerate(dense)]
    together = gradient_groups.places(options.groups, len(dense), mine)
    # Two ranks that lack the gradient of different variables may have equal shapes otherwise; and one for which an embedding
    # is local would leave the others waiting for its rows.
    context = "" if len(dense) == len(results) else f"dense gradients {list(dense)} of {len(results)}"
    if sparse:
        context += f", sparse {list(sparse)}"
    reduced = run_compressed(
        lambda compressed: _reduce_in_buckets(compressed, together, sequence, options, context, process_set),
        tensors,
        options.compression,
    )
    for index, tensor in zip(dense, reduced, strict=True):
        results[index] = mark(tensor)


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
    """The gradient as one tensor, with the variable's static shape if its own is not known."""
    tensor = tf.convert_to_tensor(gradient)
    shape = getattr(variable, "shape", None)
    if shape is not None and not tensor.shape.is_fully_defined():
        tensor = tf.ensure_shape(tensor, shape)
    return tensor


def _reduce_in_buckets(
    tensors: list[tf.Tensor],
    together: Sequence[Sequence[int]],
    sequence: str,
    options: Options,
    context: str,
    process_set: int,
) -> list[tf.Tensor]:
    """One op a bucket, or in XLA one for all; together they are one sequence, agreed on as a whole."""
    specifications = [(tensor.dtype.name, _static_shape(tensor)) for tensor in tensors]
    plan = plan_buckets(specifications, bucket_sizes(), together)
    # A sequence is agreed on by the shapes known at trace time, and its buckets belong to one step. Where a shape shows
    # only at run time, and in eager mode, where each op is a step of its own, each bucket is agreed on by itself.
    apart = tf.executing_eagerly() or not all(tensor.shape.is_fully_defined() for tensor in tensors)
    # Groups of other gradients may have equal shapes.
    context = f"{context} {gradient_groups.description(together)}".strip()
    shared: dict[str, Any] = {
        "prescale": 1 / options.gradient_predivide_factor,
        "postscale": options.gradient_predivide_factor,
        "process_set": process_set,
    }
    agreed_context = context if apart else f"{plan.signature} {context}".strip()
    buckets = [[tensors[index] for index in members] for members in plan.buckets]
    if not apart and _compat.in_xla_context():
        outputs = native.allreduce_buckets(buckets, options.op, sequence, context=agreed_context, **shared)
    else:
        outputs = [
            native.allreduce(
                bucket,
                options.op,
                f"{sequence}.{number}" if apart else sequence,
                context=agreed_context,
                bucket=0 if apart else number,
                buckets=1 if apart else len(buckets),
                **shared,
            )
            for number, bucket in enumerate(buckets)
        ]
    reduced: dict[int, tf.Tensor] = {}
    for members, output in zip(plan.buckets, outputs, strict=True):
        reduced.update(zip(members, output, strict=True))
    return [reduced[index] for index in range(len(tensors))]


def _static_shape(tensor: tf.Tensor) -> list[int | None] | None:
    return None if tensor.shape.rank is None else tensor.shape.as_list()
