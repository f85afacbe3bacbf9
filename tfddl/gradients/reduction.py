"""Reduces the gradients of one computation over all ranks. This file and scatter.py alone pass gradients to collectives."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfddl import _compat, _graphs
from tfddl.gradients import compressed, gradient_groups
from tfddl.gradients.buckets import bucket_sizes, plan_buckets
from tfddl.gradients.error_feedback import Reduction
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.gradients.local_sources import LocalSources, scaled
from tfddl.gradients.reduced_marks import is_reduced, leave_own, mark
from tfddl.ops import allreduce_gradient, names, native  # noqa: F401 the first registers the gradient
from tfddl.ops.compression import Compression, is_stateful
from tfddl.ops.constants import Adasum, Max
from tfddl.ops.sparse import SlicesReduction, allreduce_slices
from tfddl.ops.topology import size_op
from tfddl.runtime import xla
from tfddl.runtime.process_sets import id_of

_DEFAULT = GradientOptions()


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any] | None = None,
    *,
    owner: str,
    options: GradientOptions = _DEFAULT,
    local: LocalSources | None = None,
) -> list[Any]:
    """Combines one set of gradients over all ranks.

    The gradients are put into buckets (see `tfddl.gradients.buckets`), and one op reduces each bucket. All ranks have to
    bring the same number of gradients that are not local, with the same kinds, dtypes and shapes; else all ranks get the
    same error. A rank without any gradient calls no collective, and the others wait for its next call.

    A `tf.IndexedSlices`, for example an embedding's gradient, becomes one with the rows of all ranks; rows of the same
    index are added up (see `tfddl.ops.sparse`). XLA knows fixed shapes only, so in a function that XLA compiles it always
    becomes a dense tensor.

    Args:
        gradients: Tensors, `tf.IndexedSlices` or None, in the order of the model's variables.
        variables: One for each gradient. They tell shapes that tracing does not know, groups, local variables, and
            variables that are overwritten by their gradient.
        owner: Names the reduction; equal on all ranks and different for each optimizer.
        options: How to combine. Adasum combines each gradient as one vector.
        local: Variables whose gradients are not combined. The ranks may have different numbers of them in one place.

    Returns:
        A list like `gradients`, with None where None was. The gradients are marked, so that an optimizer does not reduce
        them again (`reduced_marks.is_reduced`). A rank outside the process set gets its own gradients back, unmarked.

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
    own = local.among(variables) if local else set()
    if variables is not None:
        waiting -= _keep_local(results, waiting & own, variables, options)
    waiting -= _reduce_overwritten(results, waiting, variables, owner, number)
    sparse = _sparse_slots(results, waiting, options)
    dense = [index for index in sorted(waiting) if index not in sparse]
    if not waiting:
        return results
    shared = _Shared.of(len(results), own)
    call = _Call(variables, owner, names.unique(owner, number), options, number, shared)
    _reduce_dense(results, dense, sparse, call)
    # After the buckets: their context names the sparse slots, in which the ranks may differ.
    _reduce_sparse(results, sparse, call)
    return results


def reduce_missing(gradients: Sequence[Any], variables: Sequence[Any] | None, **options: Any) -> list[Any]:
    """Reduces the gradients that are not marked as reduced. The arguments are those of `reduce_gradients`."""
    waiting = [None if gradient is None or is_reduced(gradient) else gradient for gradient in gradients]
    reduced = reduce_gradients(waiting, variables, **options)
    return [new if new is not None else old for new, old in zip(reduced, gradients, strict=True)]


def is_overwritten(variable: Any) -> bool:
    """Whether the variable's "gradient" is its next value, as for the scales of a float8 layer."""
    return getattr(variable, "overwrite_with_gradient", False)


def _reduce_overwritten(
    results: list[Any], waiting: set[int], variables: Sequence[Any] | None, owner: str, process_set: int
) -> set[int]:
    """Replaces each next value in `results` by the largest of all ranks, in place; returns their slots.

    The values are the largest magnitudes that a float8 layer has seen, and scales that grow with them. One process with
    the rows of all ranks would have the largest.
    """
    slots = [index for index in sorted(waiting) if variables and is_overwritten(variables[index])]
    if slots:
        name = names.unique(f"{owner}.overwritten", process_set)
        tensors = [tf.cast(results[index], tf.float32) for index in slots]
        largest = native.allreduce(
            tensors, Max, name, context="gradients=next values", process_set=process_set
        )
        for index, value in zip(slots, largest, strict=True):
            results[index] = mark(tf.cast(value, results[index].dtype))
    return set(slots)


def _keep_local(
    results: list[Any], slots: set[int], variables: Sequence[Any], options: GradientOptions
) -> set[int]:
    """Scales and marks the gradients of local variables, in place; returns their slots."""
    leave_own(variables[index] for index in slots)
    scales = bool(slots) and options.scale_local_gradients and options.process_set.registered()
    size = size_op(options.process_set) if scales else 1
    for index in slots:
        # The next value of a float8 variable is not a share of a mean, so it is not scaled.
        if not is_overwritten(variables[index]):
            results[index] = scaled(results[index], size)
        mark(results[index], local=True)
    return slots


class _Shared(NamedTuple):
    """The gradients that are not local, as ranks with different numbers of local ones describe them to each other.

    Attributes:
        numbers: The slot of each -> its number among them.
        local: Before which of these numbers there are local ones; empty if there are none.
    """

    numbers: dict[int, int]
    local: str

    @classmethod
    def of(cls, count: int, local: set[int]) -> "_Shared":
        slots = [slot for slot in range(count) if slot not in local]
        places = sorted({slot - before for before, slot in enumerate(sorted(local))})
        text = f"local ones before {places}" if local else ""
        return cls({slot: number for number, slot in enumerate(slots)}, text)

    def described(self, kind: str, slots: Sequence[int]) -> str:
        return f"{kind} {[self.numbers[slot] for slot in slots]}"


class _Call(NamedTuple):
    """The arguments of one call of `reduce_gradients`, and the name of its collectives."""

    variables: Sequence[Any] | None
    owner: str
    sequence: str
    options: GradientOptions
    process_set: int
    shared: _Shared


def _sparse_slots(results: list[Any], waiting: set[int], options: GradientOptions) -> list[int]:
    """The slots of the gradients that are reduced as `tf.IndexedSlices`.

    Raises:
        ValueError: For `tfddl.Adasum`, if there are any.
    """
    if options.sparse_as_dense or _graphs.in_xla_context():
        return []
    sparse = [index for index in sorted(waiting) if isinstance(results[index], tf.IndexedSlices)]
    if sparse and options.op == Adasum:
        raise ValueError(
            "op=tfddl.Adasum combines dense gradients: use sparse_as_dense=True. "
            f"Received: a tf.IndexedSlices, gradient {sparse[0]} of {len(results)}"
        )
    return sparse


def _reduce_sparse(results: list[Any], sparse: Sequence[int], call: _Call) -> None:
    """Reduces the sparse gradients of `results`, in place."""
    variables, shared, options = call.variables, call.shared, call.options
    reduction = SlicesReduction(
        kind=call.owner,
        op=options.op,
        # Errors of rows that are not in the next batch would never be sent.
        compression=Compression.none if is_stateful(options.compression) else options.compression,
        prescale=1 / options.gradient_predivide_factor,
        postscale=options.gradient_predivide_factor,
        process_set=options.process_set,
        merge=options.merge_slices,
    )
    for index in sparse:
        number = shared.numbers[index]
        parts = [
            f"number {number} of {len(shared.numbers)}",
            _rows(variables and variables[index]),
            shared.local,
        ]
        context = "gradients=" + ", ".join(filter(None, parts))
        results[index] = mark(
            allreduce_slices(results[index], f"{call.sequence}.slices.{number}", context, reduction)
        )


def _rows(variable: Any) -> str:
    """How many rows a variable has; empty if it is a tensor, whose shape one rank may know and another rank may not."""
    rows = variable.shape[0] if _compat.is_variable(variable) else None
    return "" if rows is None else f"variable of {rows} rows"


def _reduce_dense(results: list[Any], dense: Sequence[int], sparse: Sequence[int], call: _Call) -> None:
    """Reduces the dense gradients of `results`, in place."""
    if not dense:
        return
    variables, owner, sequence, options, process_set, shared = call
    mine = None if variables is None else [variables[index] for index in dense]
    tensors = [_dense(results[index], mine and mine[number]) for number, index in enumerate(dense)]
    together = gradient_groups.members(options.groups, len(dense), mine)
    # Two ranks that lack the gradients of different variables, or leave different ones local, may still have equal shapes.
    # And if an embedding is local on one rank only, the others would wait for that rank's rows.
    count = len(shared.numbers)
    parts = [
        "" if len(dense) == count else f"{shared.described('dense gradients', dense)} of {count}",
        shared.described("sparse", sparse) if sparse else "",
        shared.local,
    ]
    context = ", ".join(filter(None, parts))

    def allreduce(
        tensors: list[tf.Tensor], groups: Sequence[Sequence[int]] = together, name: str = sequence
    ) -> list[tf.Tensor]:
        return _reduce_in_buckets(tensors, groups, name, options, context, process_set)

    if is_stateful(options.compression):
        reduced = compressed.reduce(
            Reduction(tensors, mine, owner, sequence, together, context, options, process_set, allreduce)
        )
    else:
        # Not run_compressed, which would call back into this file.
        sent = [options.compression.compress(tensor) for tensor in tensors]
        came = allreduce([tensor for tensor, _ in sent])
        reduced = [
            options.compression.decompress(tensor, restore)
            for tensor, (_, restore) in zip(came, sent, strict=True)
        ]
    for index, tensor in zip(dense, reduced, strict=True):
        results[index] = mark(tensor)


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
    """The gradient as a dense tensor, with the variable's static shape if the gradient's is not fully known."""
    tensor = tf.convert_to_tensor(gradient)
    shape = getattr(variable, "shape", None)
    if shape is not None and not tensor.shape.is_fully_defined():
        tensor = tf.ensure_shape(tensor, shape)
    return tensor


def _reduce_in_buckets(
    tensors: list[tf.Tensor],
    together: Sequence[Sequence[int]],
    sequence: str,
    options: GradientOptions,
    context: str,
    process_set: int,
) -> list[tf.Tensor]:
    """Runs one op for each bucket, in XLA one op for all. The ranks agree on all buckets at once."""
    specifications = [(tensor.dtype.name, _static_shape(tensor)) for tensor in tensors]
    plan = plan_buckets(specifications, bucket_sizes(), together)
    # Ranks agree on all buckets at once by the shapes known at trace time. If a shape is known only at run time, and in
    # eager mode, where each op is a step of its own, ranks agree on each bucket alone.
    one_by_one = tf.executing_eagerly() or not all(tensor.shape.is_fully_defined() for tensor in tensors)
    # Two groupings of the gradients may have equal shapes.
    context = f"{context} {gradient_groups.description(together)}".strip()
    shared: dict[str, Any] = {
        "prescale": 1 / options.gradient_predivide_factor,
        "postscale": options.gradient_predivide_factor,
        "process_set": process_set,
    }
    described = context or f"{len(tensors)} gradients"
    agreed_context = "gradients=" + (described if one_by_one else f"{plan.signature} {context}".strip())
    buckets = [[tensors[index] for index in members] for members in plan.buckets]
    if not one_by_one and _graphs.in_xla_context():
        outputs = native.allreduce_buckets(buckets, options.op, sequence, context=agreed_context, **shared)
    else:
        outputs = [
            native.allreduce(
                bucket,
                options.op,
                f"{sequence}.bucket.{number}" if one_by_one else sequence,
                context=agreed_context,
                bucket=0 if one_by_one else number,
                buckets=1 if one_by_one else len(buckets),
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
