"""The cores of a host, shared out among its ranks."""

import os
from unittest import mock

import pytest

from tests.harness import run_script
from tfddl.runtime import threads
from tfddl.runtime.job import process


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


def test_the_environment(monkeypatch):
    """A number of the user stays; that of an earlier init() gives way."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(process, "threads", "")
    for given, cores, expected in [
        ("", 4, "4"),
        (None, 4, "4"),
        ("4", 2, "2"),
        ("2", 8, None),
        ("3", 2, "3"),
    ]:
        monkeypatch.delenv(threads.VARIABLE, raising=False)
        if given is not None:
            monkeypatch.setenv(threads.VARIABLE, given)
        threads.limit(mock.Mock(cores=cores))
        assert os.environ.get(threads.VARIABLE) == expected


SCRIPT = """
import os
import tensorflow as tf
from mpi4py import MPI
import tfddl as hvd

if MPI.COMM_WORLD.rank == 1:
    tf.config.threading.set_intra_op_parallelism_threads(97)
hvd.init()
cores = len(os.sched_getaffinity(0)) // 2
assert os.environ.get("TF_NUM_INTRAOP_THREADS") == (str(cores) if cores else None)
before = len(os.listdir("/proc/self/task"))
tf.ones([300, 300]) @ tf.ones([300, 300])
started = len(os.listdir("/proc/self/task")) - before
assert (started >= 97) == (hvd.rank() == 1), started
"""


def test_the_threads_of_tensorflow():
    """The program's own choice stands."""
    result = run_script(2, SCRIPT, environment={threads.VARIABLE: None})
    assert result.code == 0, result.output
