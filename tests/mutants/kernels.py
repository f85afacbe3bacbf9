"""Faults of the TensorFlow ops and of XLA: its handlers, and the processor that it compiles for."""

from tests.mutants.fault import Fault

FAULTS = {
    "an op takes the prescale factor for the postscale factor": Fault(
        "custom_ops/tensorflow/attributes.h",
        'GetAttr("postscale", &call->postscale)',
        'GetAttr("prescale", &call->postscale)',
        "tests/ops/test_allreduce.py::test_scale_factors",
    ),
    "alltoall reports received rows in the wrong order": Fault(
        "custom_ops/tensorflow/alltoall_op.cc",
        "std::copy(rows.begin(), rows.end(), received->flat<int32_t>().data());",
        "std::copy(rows.rbegin(), rows.rend(), received->flat<int32_t>().data());",
        "tests/ops/test_alltoall.py::test_splits",
    ),
    "reducescatter allocates the rows of rank 0": Fault(
        "custom_ops/tensorflow/reducescatter_op.cc",
        "RowsOf(rows, engine->rank(), engine->size())",
        "RowsOf(rows, 0, engine->size())",
        "tests/ops/test_reducescatter.py::test_values_and_rows",
    ),
    "a compiled program starts a call before the last one of its name has ended": Fault(
        "custom_ops/xla/emit.cc",
        "std::exchange(finishes, {})",
        "{}",
        "tests/xla/test_buckets.py::test_a_function_that_is_called_twice",
    ),
    "XLA compiles for the largest instruction set": Fault(
        "tfddl/runtime/processors.py",
        "in sets else min(sets",
        "in sets else max(sets",
        "tests/xla/test_processors.py::test_compiled_weights",
    ),
    "a processor without fused operations counts as AVX2": Fault(
        "tfddl/runtime/processors.py",
        '{"avx2", "fma"}',
        '{"avx2"}',
        "tests/xla/test_processors.py::test_instruction_set",
    ),
}
