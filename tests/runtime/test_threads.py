"""The cores of a host, shared out among its ranks."""

import os

import pytest

from tests.harness import run_script
from tfddl.runtime import threads


class Local:
    """A communicator of ranks with these cores."""

    def __init__(self, *cores):
        self.cores = cores

    def allgather(self, mine):
        assert mine in self.cores
        return list(self.cores)


@pytest.mark.parametrize(
    ("mine", "others", "part"),
    [
        ({0, 1, 2, 3}, [[0, 1, 2, 3]], 2),
        ({0, 1, 2, 3}, [[0, 1, 2, 3]] * 2, 1),
        ({0, 1}, [[0, 1]] * 5, 1),
        ({0, 1}, [[2, 3]], 2),  # mpirun --bind-to
        ({0, 1, 2, 3}, [[2, 3]], 3),
        (set(range(7)), [], 7),
    ],
)
def test_the_part_of_a_rank(monkeypatch, mine, others, part):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mine)
    assert threads.part_of(Local(sorted(mine), *others)) == part


SCRIPT = """
import os
import tensorflow as tf
from mpi4py import MPI
import tfddl as hvd
threads = tf.config.threading
if MPI.COMM_WORLD.rank == 1:
    threads.set_intra_op_parallelism_threads(3)
hvd.init()
cores = len(os.sched_getaffinity(0))
expected = 3 if hvd.rank() == 1 else cores // 2 if cores > 1 else 0
assert threads.get_intra_op_parallelism_threads() == expected, threads.get_intra_op_parallelism_threads()
hvd.shutdown()
tf.zeros([1])  # TensorFlow starts
hvd.init()
"""


def test_the_threads_of_tensorflow():
    """The program's own choice stands, and a later init() changes nothing."""
    result = run_script(2, SCRIPT)
    assert result.code == 0, result.output
