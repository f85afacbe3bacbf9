"""Shared memory and MPI give the same bits; if one rank cannot share memory, all ranks of its host use MPI."""

import socket
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tests.harness.restart import restart

COUNTS = (1, 3, 1023, 1025, 16_385, 100_003, 1_000_003, 3_200_001)
"""The last one is copied past the caches: a third of it, too (transport/copy.h)."""


def shared_memory() -> list[str]:
    """The segments that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(line.split("/memfd:")[1] for line in lines if "/memfd:tfddl-" in line)


def results(hvd) -> list[np.ndarray]:
    """Collectives of odd sizes on numbers whose sum depends on the order of addition."""
    given = []
    for count in COUNTS:
        x = np.random.default_rng([count, hvd.rank()]).standard_normal(count).astype("float32")
        given.append(hvd.allreduce(tf.constant(x), name=f"mean.{count}"))
        given.append(hvd.broadcast(tf.constant(x), hvd.size() - 1, name=f"broadcast.{count}"))
        rows = x[: count - hvd.rank()] if count > hvd.size() else x[:0]
        given.append(hvd.allgather(tf.constant(rows), name=f"allgather.{count}"))
    half = tf.constant(np.random.default_rng(hvd.rank()).standard_normal(70_001), tf.bfloat16)
    given.append(hvd.allreduce(half, op=hvd.Sum, name="half"))
    given += hvd.grouped_allreduce([tf.cast(half, tf.float64), tf.constant(x, tf.float64)], name="group")
    return [tensor.numpy() for tensor in given]


@on_ranks(1, 2, 3)
def test_same_bits_over_shared_memory_and_mpi(hvd):
    hvd.shutdown()
    kept = set(shared_memory())  # by results of earlier tests
    restart(hvd, TFDDL_TRANSPORT="auto")
    # A segment and an arena of each rank.
    assert len(set(shared_memory()) - kept) == (2 * hvd.size() if hvd.size() > 1 else 0)
    shared = results(hvd)
    restart(hvd, TFDDL_TRANSPORT="mpi")
    assert set(shared_memory()) <= kept
    for one, other in zip(shared, results(hvd), strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
    restart(hvd, TFDDL_TRANSPORT="auto")


@on_ranks(1, 2)
def test_unknown_transport(hvd):
    with pytest.raises(
        ValueError, match=r"TFDDL_TRANSPORT must be auto or mpi: set one of them. Received: 'tcp'"
    ):
        restart(hvd, TFDDL_TRANSPORT="tcp")
    hvd.init()


FALLBACK = """
import os, resource
import tensorflow as tf
import tfddl as hvd
from mpi4py import MPI
from tfddl.runtime import library

library.native()  # may compile, and write files
if MPI.COMM_WORLD.rank == 1:  # can make neither a memfd nor a file of this size
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
hvd.init()
assert "/memfd:tfddl-" not in open("/proc/self/maps").read()
assert hvd.allreduce(tf.ones([100_000]), op=hvd.Sum)[-1] == hvd.size()
print("reduced")
"""


def test_one_rank_without_shared_memory_makes_all_use_mpi():
    result = run_script(3, FALLBACK)
    assert result.code == 0, result.output
    assert result.output.count("reduced") == 3
    assert result.output.count("tfddl: the 3 ranks of this host use MPI, not shared memory") == 1
    assert "local rank 1: memfd of" in result.output and "local rank 1: /dev/shm/tfddl-" in result.output
    assert "File too large" in result.output


KILLED = """
import os, signal, threading
import tensorflow as tf
import tfddl as hvd

hvd.init()
print([line.split("/memfd:")[1] for line in open("/proc/self/maps") if "/memfd:tfddl-" in line], flush=True)
x = tf.ones([10_000_000])
if hvd.rank() == 1:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
while True:
    hvd.allreduce(x, op=hvd.Sum, name="x")
"""


def test_nothing_is_left_of_a_killed_job():
    result = run_script(2, KILLED)
    assert result.code != 0
    names = {name for name in result.output.replace("'", " ").split() if name.startswith("tfddl-")}
    assert len(names) == 4, result.output
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:  # the process has ended, or is another user's
            continue
        assert not any(name in text for name in names), maps
    assert not list(Path("/dev/shm").glob(f"tfddl-{socket.gethostname()}-*"))
