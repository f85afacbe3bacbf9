"""Unchanged programs: N ranks compute the weights and the history of one process."""

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras import support
from tests.keras.parallel.programs import PROGRAMS

SEED = 5


@pytest.mark.parametrize("program", sorted(PROGRAMS))
@on_ranks(2, 3)
def test_a_program(hvd, program):
    keras.utils.set_random_seed(SEED)
    alone, expected = PROGRAMS[program]()
    parallel = hvd.DataParallel(seed=SEED)
    together, history = PROGRAMS[program]()
    parallel.stop()
    assert history.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(support.weights(together), support.weights(alone), rtol=1e-4, atol=1e-6 * 20)
    streams = "seed_generator_state"  # of random layers, whose numbers differ by rank
    shared = [variable for variable in together.variables if not variable.path.endswith(streams)]
    support.check_equal_on_all_ranks(hvd, shared)
