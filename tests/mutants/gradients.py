"""Faults of the Python side of gradients and collectives."""

from tests.mutants.fault import Fault

FAULTS = {
    "the last bucket is dropped": Fault(
        "tfddl/gradients/buckets.py",
        "    closed.extend(bucket.members for bucket in open_buckets.values())\n",
        "",
        "tests/gradients/test_buckets.py::test_fills_from_the_last_gradient",
    ),
    "buckets start in the order of the variables": Fault(
        "tfddl/gradients/buckets.py",
        "closed.sort(key=lambda members: members[-1], reverse=True)",
        "closed.sort(key=lambda members: members[-1])",
        "tests/gradients/test_buckets.py::test_fills_from_the_last_gradient",
    ),
    "dtypes are mixed in a bucket": Fault(
        "tfddl/gradients/buckets.py",
        "bucket = open_buckets.get(dtype)",
        "bucket = next(iter(open_buckets.values()), None)",
        "tests/gradients/test_buckets.py::test_random_plans_hold_every_gradient_once_and_keep_the_limits",
    ),
    "a plan's signature misses the shapes at its end": Fault(
        "tfddl/gradients/buckets.py",
        "hashlib.sha256(text.encode())",
        "hashlib.sha256(text[:_READABLE_SIGNATURE].encode())",
        "tests/gradients/test_buckets.py::test_signature_stays_short_and_still_sees_the_last_shape",
    ),
    "megabytes are bytes": Fault(
        "tfddl/gradients/buckets.py",
        "return BucketSizes(max(1, int(first * 2**20)), max(1, int(later * 2**20)))",
        "return BucketSizes(max(1, int(first)), max(1, int(later)))",
        "tests/gradients/test_buckets.py::test_sizes_from_the_environment",
    ),
    "gradients come back in the order of the buckets": Fault(
        "tfddl/gradients/reduction.py",
        "    return [reduced[index] for index in range(len(tensors))]\n",
        "    return list(reduced.values())\n",
        "tests/gradients/test_reduction.py::test_many_buckets_keep_their_order",
    ),
    "the predivide factor divides twice": Fault(
        "tfddl/gradients/reduction.py",
        '        "postscale": options.gradient_predivide_factor,\n',
        '        "postscale": 1 / options.gradient_predivide_factor,\n',
        "tests/gradients/test_options.py::test_predivide_keeps_a_sum_finite",
    ),
    "the predivide factor of rows is never undone": Fault(
        "tfddl/gradients/reduction.py",
        "            postscale=options.gradient_predivide_factor,\n",
        "",
        "tests/gradients/test_options.py::test_predivide_of_rows",
    ),
    "reduced gradients are reduced again": Fault(
        "tfddl/gradients/reduction.py",
        "None if gradient is None or is_reduced(gradient) else gradient",
        "None if gradient is None else gradient",
        "tests/gradients/test_reduction.py::test_only_what_is_not_marked_is_reduced",
    ),
    "local gradients are reduced": Fault(
        "tfddl/gradients/tape.py",
        "            local=self._local,\n",
        "",
        "tests/gradients/test_options.py::test_local_sources",
    ),
    "local gradients are not divided": Fault(
        "tfddl/gradients/local_sources.py",
        "    return gradient / tf.cast(size, gradient.dtype)\n",
        "    return gradient / tf.ones([], gradient.dtype)\n",
        "tests/gradients/test_options.py::test_local_sources",
    ),
    "the tape forgets output gradients": Fault(
        "tfddl/gradients/tape.py",
        "self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)",
        "self._wrapped.gradient(target, sources, None, unconnected_gradients)",
        "tests/gradients/test_tape.py::test_unconnected_zero_and_output_gradients",
    ),
    "compression is not undone": Fault(
        "tfddl/ops/compression.py",
        "return tensor if tensor.dtype == context else tf.cast(tensor, context)",
        "return tensor",
        "tests/ops/test_compression.py::test_round_trip",
    ),
    "a compressor of the user's own is not undone": Fault(
        "tfddl/gradients/reduction.py",
        "            options.compression.decompress(tensor, restore)\n",
        "            tensor\n",
        "tests/ops/test_compression.py::test_a_compressor_of_the_users_own",
    ),
    "the compression of an allreduce is not undone": Fault(
        "tfddl/ops/compression.py",
        "[compression.decompress(y, context) for y, context in zip(results, contexts, strict=True)]",
        "list(results)",
        "tests/ops/test_allreduce.py::test_compression_keeps_dtype_and_exact_values",
    ),
    "the gradient of a maximum counts shared values twice": Fault(
        "tfddl/ops/allreduce_gradient.py",
        "tf.stop_gradient(hit / count)",
        "tf.stop_gradient(hit)",
        "tests/ops/test_reduction_gradients.py::test_ranks_with_the_same_value_share",
    ),
    "the gradient of a product lacks the factor of the own rank": Fault(
        "tfddl/ops/allreduce_gradient.py",
        "tf.constant(prescale * postscale, wide.dtype)",
        "tf.constant(postscale, wide.dtype)",
        "tests/ops/test_reduction_gradients.py::test_finite_differences",
    ),
    "the gradient of a broadcast goes to all ranks": Fault(
        "tfddl/ops/broadcast.py",
        "return tf.where(False, total, tf.zeros([], total.dtype))",
        "return total",
        "tests/ops/test_gradients.py::test_broadcast",
    ),
    "the zeros of a broadcast's gradient do not depend on the sum": Fault(
        "tfddl/ops/broadcast.py",
        "return tf.where(False, total, tf.zeros([], total.dtype))",
        "return tf.zeros_like(total)",
        "tests/v1/test_gradients.py::test_every_rank_takes_part",
    ),
    "the gradient of an allgather takes the rows of rank 0": Fault(
        "tfddl/ops/allgather.py",
        "begins = tf.cumsum(rows, axis=1, exclusive=True)[:, rank]",
        "begins = tf.cumsum(rows, axis=1, exclusive=True)[:, 0]",
        "tests/ops/test_gradients.py::test_allgather",
        ranks=3,
    ),
    "the gradient of an alltoall goes back by the splits of the way there": Fault(
        "tfddl/ops/alltoall.py",
        "tf.convert_to_tensor(cotangent), operation.outputs[1], name, number)",
        "tf.convert_to_tensor(cotangent), tf.cast(operation.outputs[1][::-1], tf.int64), name, number)",
        "tests/ops/test_alltoall.py::test_gradient_by_finite_differences",
    ),
    "the gradient of an averaging reducescatter is that of a sum": Fault(
        "tfddl/ops/reducescatter.py",
        "        factor = factor / tf.cast(gathered.divisor, tf.float64)\n",
        "        factor = factor / tf.cast(gathered.divisor // gathered.divisor, tf.float64)\n",
        "tests/ops/test_reducescatter.py::test_gradient_by_finite_differences",
    ),
    "rows of one index are not added up": Fault(
        "tfddl/ops/sparse.py",
        "tf.math.unsorted_segment_sum(values, segments, tf.size(unique))",
        "tf.math.unsorted_segment_max(values, segments, tf.size(unique))",
        "tests/gradients/test_tape.py::test_indexed_slices_have_each_index_once",
    ),
    "an average of rows is their sum": Fault(
        "tfddl/ops/sparse.py",
        "factor = postscale / tf.cast(divisor, tf.float64) if op == Average else postscale",
        "factor = postscale",
        "tests/gradients/test_tape.py::test_indexed_slices_have_each_index_once",
    ),
    "ranks of a process set are those of the job": Fault(
        "tfddl/runtime/process_sets.py",
        "return (self.ranks or []).index(job.rank)",
        "return job.rank",
        "tests/sets/test_table.py::test_attributes",
        ranks=3,
    ),
    "passes of a TF1 optimizer are added up and not averaged": Fault(
        "tfddl/gradients/gradient_sums.py",
        "    scale = passes if average else 1\n",
        "    scale = 1\n",
        "tests/v1/test_optimizer.py::test_backward_passes_per_step",
    ),
}
