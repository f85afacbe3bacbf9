"""DataParallel reads a dataset no earlier than one process does."""

from tests.harness import run_script

SHARED_SHUFFLE = """
import keras
import numpy as np
import tfddl as hvd
from tests.keras.parallel.programs import batched_dataset

hvd.init()
keras.utils.set_random_seed(5)
_, alone = batched_dataset()
parallel = hvd.DataParallel(seed=5)
_, together = batched_dataset()
parallel.stop()
for name, values in alone.items():
    np.testing.assert_allclose(together[name], values, rtol=2e-5, err_msg=name)
print("equal", flush=True)
"""


def test_a_shuffle_that_training_and_validation_share():
    """Its next pass begins between the same batches. In a process of many tests TensorFlow did not read ahead."""
    result = run_script(2, SHARED_SHUFFLE)
    assert result.code == 0, result.output
    assert result.output.count("equal") == 2
