"""The reductions of gradients whose compression keeps its errors."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfddl.gradients import error_feedback, power_sgd, quantized, residuals
from tfddl.gradients.buckets import BucketPlan, bucket_sizes, plan_buckets
from tfddl.gradients.error_feedback import Reduction
from tfddl.gradients.power_sgd import PowerSGD
from tfddl.ops.constants import Sum


@tf.autograph.experimental.do_not_convert
def reduce(reduction: Reduction) -> list[tf.Tensor]:
    """Reduces dense gradients as their `StatefulCompressor` does.

    Returns:
        The reduced gradients, in their dtypes; the same bits on all ranks.
    """
    compression = reduction.options.compression
    if isinstance(compression, PowerSGD):
        return power_sgd.reduce(reduction, compression)
    return _reduce_int8(reduction)


def _reduce_int8(reduction: Reduction) -> list[tf.Tensor]:
    """Rounds twice, and remembers both errors.

    With e, the residual of a rank's gradient g, and s, the residual of the slice of means that the rank adds up:

        M = g + e, or the sum of g + e over the ranks of a host;    e = M - int8(M)
        T = mean of int8(M) + s;    s = T - int8(T)

    Each bucket is an exchange of its own, which begins as soon as its gradients exist.
    """
    tensors, size = reduction.tensors, reduction.size
    small = [slot for slot, each in enumerate(tensors) if error_feedback.is_compressible(each)]
    plain = [slot for slot in range(len(tensors)) if slot not in small]
    plan = _plan(reduction, small)
    buckets = [[small[number] for number in members] for members in plan.buckets]
    # Two ranks with other gradients may have equally many blocks.
    context = f"gradients={plan.signature} {reduction.context}".strip()
    counts = [quantized.block_count([tensors[slot] for slot in members], size) for members in buckets]
    state = error_feedback.state_of(reduction, lambda: _initial(counts, size), (size, *counts))
    step, *kept = state.variables.values()
    errors, slices = kept[: len(counts)], kept[len(counts) :]
    results: dict[int, tf.Tensor] = {}
    pairs = []
    seed = tf.convert_to_tensor(step)
    for index, members in enumerate(buckets):
        mine = [tensors[slot] for slot in members]
        total = quantized.to_blocks(mine, size) + errors[index]
        name = f"{reduction.name}.int8.{index}"
        found = quantized.exchange(total, slices[index], name, reduction.process_set, seed, index, context)
        pairs += [(errors[index], found.left), (slices[index], found.slice_left)]
        means = found.means * float(size) if reduction.options.op == Sum else found.means
        results.update(zip(members, quantized.from_blocks(means, mine), strict=True))
    uncompressed = [tensors[slot] for slot in plain]
    if plain:
        results.update(zip(plain, reduction.allreduce(uncompressed, (), reduction.name), strict=True))
    error_feedback.update(error_feedback.all_finite(list(results.values())), pairs)
    step.assign_add(1)
    rows = [tf.TensorSpec([count, quantized.ROW_BYTES], tf.int8) for count in counts]
    state.traffic = error_feedback.traffic(reduction, rows, uncompressed)
    return [results[slot] for slot in range(len(tensors))]


def _plan(reduction: Reduction, slots: list[int]) -> BucketPlan:
    """The plan of the gradients of `slots`."""
    place = {slot: number for number, slot in enumerate(slots)}
    together = [[place[slot] for slot in group if slot in place] for group in reduction.together]
    specifications = [
        (reduction.tensors[slot].dtype.name, reduction.tensors[slot].shape.as_list()) for slot in slots
    ]
    return plan_buckets(specifications, bucket_sizes(), together)


def _initial(counts: list[int], size: int) -> dict[str, np.ndarray]:
    """The number of steps, the residuals of the gradients, and those of the slices."""
    errors = [np.zeros([count, quantized.BLOCK], np.float32) for count in counts]
    slices = [np.zeros([count // size, quantized.BLOCK], np.float32) for count in counts]
    return {
        **residuals.named(residuals.EQUAL, [np.zeros([], np.int64)]),
        **residuals.named(residuals.UNSENT, errors),
        **residuals.named(residuals.UNSENT_MEANS, slices),
    }
