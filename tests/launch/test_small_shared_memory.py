"""A job where /dev/shm is too small for Open MPI, as in a container: a training, and traffic of the user beside it."""

import subprocess
import sys

import pytest

from tests.harness import run_script
from tests.harness.mpirun import is_open_mpi

SMALL = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"',
    "sh",
]

TRAINING = """
import os

import keras
import numpy as np
from mpi4py import MPI

import tfddl as hvd

hvd.init()
world = MPI.COMM_WORLD
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 8 << 20
assert os.path.isdir(os.environ["OMPI_MCA_btl_sm_backing_directory"])


def traffic(*_):
    for size in (10, 1_000_000, 4_000_000):
        total = np.empty(size)
        world.Allreduce(np.full(size, float(world.rank)), total)
        assert (total == sum(range(world.size))).all()
    received = world.sendrecv(bytes(3_000_000), (world.rank + 1) % world.size)
    assert len(received) == 3_000_000


model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(512), keras.layers.Dense(4)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    keras.callbacks.LambdaCallback(on_epoch_end=traffic),
]
model.fit(np.ones([64, 64]), np.ones([64, 4]), batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
assert hvd.allreduce(np.ones(4_000_000, "float32"), op=hvd.Sum)[0] == hvd.size()
print("trained")
"""


@pytest.mark.slow
def test_training_and_traffic_of_the_user():
    if not is_open_mpi():
        pytest.skip("this is about the settings that tfddlrun gives to Open MPI")
    probe = subprocess.run([*SMALL, "true"], capture_output=True, text=True, timeout=60)
    if probe.returncode != 0:
        pytest.skip(f"no /dev/shm of its own without user namespaces: {probe.stderr.strip()}")
    launcher = [*SMALL, sys.executable, "-m", "tfddl.launch.run", "-np", "3"]
    own = {"OMPI_MCA_btl_sm_backing_directory": None}  # the harness' directory is outside of the namespace
    result = run_script(3, TRAINING, launcher=launcher, environment=own)
    assert result.code == 0, result.output
    assert result.output.count("trained") == 3
