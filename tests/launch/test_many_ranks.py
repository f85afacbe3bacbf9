"""More ranks on one host than it has cores: every collective, a process set and a training, and a clean end."""

import pytest

from tests.harness.start import python_command
from tests.launch.support import tfddlrun

RANKS = 40
PROGRAM = """
import os

import keras
import numpy as np
import tensorflow as tf

import tfddl as hvd

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ["PMI_SIZE"])
half = hvd.ProcessSet(range(0, ranks, 2))
hvd.init(process_sets=[half])
rank, size = hvd.rank(), hvd.size()
assert size == ranks == hvd.local_size()
total = sum(range(1, size + 1))


def equal(result, expected):
    np.testing.assert_array_equal(result.numpy(), expected)


for count in (1, 1000, 10_000, 262_144, 1_000_000):
    values = np.arange(count, dtype="float32") % 7
    equal(hvd.allreduce(values * (rank + 1), op=hvd.Sum, name=f"sum of {count}"), values * total)
equal(
    hvd.allgather(tf.fill([rank % 3 + 1, 300], rank)),
    np.concatenate([np.full((peer % 3 + 1, 300), peer) for peer in range(size)]),
)
equal(hvd.broadcast(tf.range(100_000) * rank, root_rank=size - 1), np.arange(100_000) * (size - 1))
rows = tf.reshape(tf.range(size * 1000), [size, 1000])
equal(hvd.reducescatter(rows * (rank + 1), op=hvd.Sum), rows[rank : rank + 1] * total)
for columns in (1, 300, 2000):  # 4 B and 1.2 KB in rings, 8 KB in slots
    result, _ = hvd.alltoall(tf.fill([size, columns], rank), splits=[1] * size, name=f"rows of {columns}")
    equal(result, np.repeat(np.arange(size), columns).reshape(size, columns))
hvd.barrier()
if half.included():
    equal(hvd.allreduce(tf.fill([100_000], rank), op=hvd.Sum, process_set=half), np.full(100_000, sum(range(0, size, 2))))

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
x = np.random.default_rng(rank).normal(size=(16, 8))
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(x, x.sum(axis=1), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
weights = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
everywhere = hvd.allgather(weights[None]).numpy()
assert everywhere.shape[0] == size and (everywhere == everywhere[0]).all()
print("trained")
"""


@pytest.mark.slow
def test_forty_ranks(tmp_path):
    """As forks of one process: 40 imports of TensorFlow would take more than a minute, and 15 GB."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    command = ["-np", str(RANKS), "--oversubscribe", *python_command([str(script)])]
    result = tfddlrun(*command, limit=600)  # one minute on two quiet cores
    assert result.code == 0, result.stderr
    assert result.stdout.count("trained") == RANKS
