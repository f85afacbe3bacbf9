"""Faults in compressions that keep their errors."""

from tests.mutants.fault import Fault

_TESTS = "tests/gradients/test_compressed.py::"
_OPTIMIZERS = "tests/keras/distributed/test_compression.py::"

FAULTS = {
    "PowerSGD forgets what it has not sent": Fault(
        "tfddl/gradients/power_sgd.py",
        "[shape.rows, shape.columns]) + error\n",
        "[shape.rows, shape.columns])\n",
        _TESTS + "test_power_sgd_is_the_paper",
    ),
    "PowerSGD begins each step with the first Q": Fault(
        "tfddl/gradients/power_sgd.py",
        "        error_feedback.update(finite, list(zip(warm, coefficients, strict=True)))\n",
        "",
        _TESTS + "test_power_sgd_is_the_paper",
    ),
    "PowerSGD takes ranks that have joined for part of the mean": Fault(
        "tfddl/gradients/power_sgd.py",
        "each - product / times for",
        "each - product for",
        _TESTS + "test_ranks_that_have_joined",
    ),
    "PowerSGD does not orthogonalise": Fault(
        "tfddl/gradients/power_sgd.py",
        "tf.linalg.qr(each).q for",
        "tf.math.l2_normalize(each, axis=0) for",
        _TESTS + "test_power_sgd_is_the_paper",
    ),
    "the owner of a slice forgets its second rounding": Fault(
        "tfddl/gradients/quantized.py",
        "total / size + slice_left",
        "total / size",
        _TESTS + "test_int8_keeps_what_it_has_not_sent",
    ),
    "a host forgets what it has not sent": Fault(
        "tfddl/gradients/quantized.py",
        "    unsent = tf.reshape(sums - sent, ",
        "    unsent = tf.reshape(sums - sums, ",
        _TESTS + "test_int8_by_hosts",
        ranks=4,
    ),
    "slices of a host go to the wrong owners": Fault(
        "tfddl/gradients/quantized.py",
        "    columns = [sorted(column) for column in zip(*hosts, strict=True)]\n",
        "    columns = [list(column) for column in zip(*hosts, strict=True)]\n",
        _TESTS + "test_int8_by_hosts",
        ranks=4,
    ),
    "int8 of several ranks on a host goes from each rank to each": Fault(
        "tfddl/gradients/quantized.py",
        "else even_hosts(ranks)\n",
        "else None\n",
        _TESTS + "test_int8_by_hosts",
        ranks=4,
    ),
    "all steps round with one seed": Fault(
        "tfddl/gradients/compressed.py",
        "    step.assign_add(1)\n",
        "",
        _TESTS + "test_int8_keeps_what_it_has_not_sent",
    ),
    "a result that is not finite changes the state": Fault(
        "tfddl/gradients/error_feedback.py",
        "variable.assign(tf.where(finite, value, variable))",
        "variable.assign(value)",
        _TESTS + "test_results_that_are_not_finite",
    ),
    "a NaN travels as zero": Fault(
        "tfddl/gradients/quantized.py",
        'tf.where(finite, largest / _LARGEST, float("nan"))',
        "tf.where(finite, largest / _LARGEST, 0.0)",
        _TESTS + "test_results_that_are_not_finite",
    ),
    "residuals have the scale of the loss": Fault(
        "tfddl/keras/distributed/loss_scale_optimizer.py",
        "or settings.sharded or is_stateful(settings.options.compression)",
        "or settings.sharded",
        _OPTIMIZERS + "test_a_skipped_step_and_another_loss_scale",
    ),
    "two copies of an optimizer share residuals": Fault(
        "tfddl/gradients/error_feedback.py",
        "reduction.owner, *_identities(reduction)",
        '"", reduction.process_set, *[each.shape.num_elements() for each in reduction.tensors]',
        _OPTIMIZERS + "test_copies_begin_without_residuals",
    ),
    "PowerSGD multiplies its factors by a matmul": Fault(
        "tfddl/gradients/power_sgd.py",
        "[_product(*pair) for pair",
        "[tf.matmul(*pair, transpose_b=True) for pair",
        _TESTS + "test_power_sgd_on_different_processors",
    ),
}
