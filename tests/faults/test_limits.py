"""The limits of docs/errors.md, lowered in proportion: 60 s, 1,800 s and 20 minutes of rank 0 become 1, 8 and 5 s."""

import pytest

from tests.faults.support import check_quoted, run, start, tfddlrun
from tests.harness import long

TRAINING = """
import ctypes
import keras

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile={jit})
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    # It keeps Python's lock, as code that writes files may.
    callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: epoch or ctypes.PyDLL(None).sleep({busy})))
model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
print("trained")
"""


def train(busy: int, jit: bool = False):
    """Two epochs. At the end of the first one rank 0 is busy for some seconds, as with a checkpoint."""
    return run(2, start(warning=1, limit=8) + TRAINING.format(busy=busy, jit=jit), tfddlrun(2))


def test_rank_0_may_be_busy_at_the_end_of_an_epoch():
    result = train(5)
    assert result.code == 0, result.output
    assert result.output.count("trained") == 2
    check_quoted(result, "tfddl: rank 1 has waited 1 s for '", "; rank 0 has not submitted it")


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, long(True)])
def test_rank_0_is_silent_at_the_end_of_an_epoch(jit):
    result = train(300, jit)
    assert result.code == 1, result.output
    assert "trained" not in result.output
    last = result.output.rstrip().splitlines()[-1]
    assert "Stalled: rank 1 has waited 8 s for '" in last and "; rank 0 has not submitted it" in last
    assert "TFDDL_STALL_LIMIT=8 seconds" in last
