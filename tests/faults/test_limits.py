"""The limits of docs/errors.md, lowered in proportion: 60 s and 1,800 s become 1 and 8 s."""

import re

import pytest

from tests.faults.support import run, start, tfddlrun
from tests.harness import long

TRAINING = """
import ctypes
import keras

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile={jit})
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    def keep_lock(epoch, logs):  # Python's lock, as code that writes files may
        while epoch == 0 and {until!r} not in open(os.environ["TMPDIR"] + "/output.txt", errors="replace").read():
            ctypes.PyDLL(None).sleep(1)
    callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=keep_lock))
model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
print("trained")
"""


def train(until: str, jit: bool = False):
    """Two epochs. At the end of the first one rank 0 is busy, as with a checkpoint, until a rank has said a text."""
    return run(2, start(warning=1, limit=8) + TRAINING.format(until=until, jit=jit), tfddlrun(2))


def test_rank_0_may_be_busy_at_the_end_of_an_epoch():
    result = train("has waited")
    assert result.code == 0, result.output
    assert result.output.count("trained") == 2
    assert re.search(r"tfddl: rank 1 has waited \d+ s for '.*; rank 0 has not submitted it", result.output)


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, long(True)])
def test_rank_0_is_silent_at_the_end_of_an_epoch(jit):
    result = train("never said", jit)
    assert result.code == 1, result.output
    assert "trained" not in result.output
    last = result.output.rstrip().splitlines()[-1]
    assert re.search(r"Stalled: rank 1 has waited \d+ s for '.*; rank 0 has not submitted it", last)
    assert "TFDDL_STALL_LIMIT=8 seconds" in last
