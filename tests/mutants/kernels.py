"""Faults of the TensorFlow ops and of the handlers that XLA calls."""

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
}
