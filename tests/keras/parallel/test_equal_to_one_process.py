"""Unchanged programs: N ranks compute the weights and the history of one process."""

import keras
import numpy as np
import pytest

from tests.harness import long, on_ranks, slow
from tests.keras import support
from tests.keras.parallel.programs import PROGRAMS

SEED = 5


# Of each rule one program; the others run in a full run.
THIN = {
    "arrays",
    "batch_normalization",
    "gan",
    "generator",
    "lstm_with_mask",
    "other_optimizers_within_a_fit",
    "recomputed",
    "state_of_its_own",
    "step_of_its_own",
} & PROGRAMS.keys()


@pytest.mark.parametrize("program", [name if name in THIN else slow(name) for name in sorted(PROGRAMS)])
@on_ranks(2)
def test_a_program(hvd, program):
    compare(hvd, program)


@pytest.mark.parametrize(
    "program", [slow(name) if name in ("arrays", "generator") else long(name) for name in sorted(THIN)]
)
@on_ranks(1, 3)
def test_on_other_ranks(hvd, program):
    compare(hvd, program)


def compare(hvd, program):
    keras.utils.set_random_seed(SEED)
    alone, expected = PROGRAMS[program]()
    parallel = hvd.DataParallel(seed=SEED)
    together, history = PROGRAMS[program]()
    parallel.stop()
    assert history.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(support.weights(together), support.weights(alone), rtol=1e-4, atol=2e-5)
    support.check_equal_on_all_ranks(hvd, together.variables)
