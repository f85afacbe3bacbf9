"""Random programs of collectives on real ranks, against the models in calls.py.

Hypothesis runs here and not in the ranks: one program is drawn for all of them. The programs are the same each time.
"""

import dataclasses
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.harness import on_ranks
from tests.harness.case import Case
from tests.harness.group import RankGroup
from tests.harness.on_ranks import report
from tests.ops.calls import Arrays, Barrier, Call, calls
from tests.ops.support import at_once

PROGRAMS = 8
"""For each number of ranks and each way to run them."""

LIMIT = 60.0
"""Seconds for one program, which takes a fraction of one, until its ranks are called hung."""


@dataclasses.dataclass(frozen=True)
class Program:
    """What all ranks run.

    Attributes:
        calls: Those of one step.
        orders: By rank, in what order it makes the calls where their order is free.
        way: How they are made, a key of `WAYS`.
        turns: How often, each time with new values.
    """

    calls: tuple[Call, ...]
    orders: tuple[tuple[int, ...], ...]
    way: str
    turns: int


def eagerly(hvd: Any, program: Program, turns: list[list[Arrays]]) -> list[list[Arrays]]:
    """One after the other, without names."""
    return [
        [
            call.make(hvd, list(map(tf.constant, given)), None)
            for call, given in zip(program.calls, inputs, strict=True)
        ]
        for inputs in turns
    ]


def in_threads(hvd: Any, program: Program, turns: list[list[Arrays]]) -> list[list[Arrays]]:
    """All at once, each in a thread of its own, started in the rank's order."""
    everything = []
    for inputs in turns:
        results: list[Any] = [None] * len(program.calls)

        def work(index, inputs=inputs, results=results):
            given = list(map(tf.constant, inputs[index]))
            results[index] = program.calls[index].make(hvd, given, f"program.{index}")

        at_once(*(partial(work, index) for index in program.orders[hvd.rank()]))
        everything.append(results)
    return everything


def in_a_function(hvd: Any, program: Program, turns: list[list[Arrays]]) -> list[list[Arrays]]:
    """As ops of one tf.function that do not depend on each other, built in the rank's order."""

    def step(inputs):
        return made_in_order(hvd, program, inputs)

    function = tf.function(step)
    return [function([list(map(tf.constant, given)) for given in inputs]) for inputs in turns]


def in_a_function_without_names(hvd: Any, program: Program, turns: list[list[Arrays]]) -> list[list[Arrays]]:
    """The names follow from the place in the function."""

    @tf.function
    def program_step(inputs):
        return [call.make(hvd, given, None) for call, given in zip(program.calls, inputs, strict=True)]

    return [program_step([list(map(tf.constant, given)) for given in inputs]) for inputs in turns]


def in_a_session(hvd: Any, program: Program, turns: list[list[Arrays]]) -> list[list[Arrays]]:
    """As in a function, in a graph of TF1."""
    with tf.Graph().as_default():
        places = [
            [tf.compat.v1.placeholder(tf.dtypes.as_dtype(x.dtype), [None] * x.ndim) for x in given]
            for given in turns[0]
        ]
        fetches = made_in_order(hvd, program, places)
        with tf.compat.v1.Session() as session:
            return [
                session.run(fetches, dict(zip(chain(*places), chain(*inputs), strict=True)))
                for inputs in turns
            ]


def made_in_order(hvd: Any, program: Program, inputs: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    made = {
        index: program.calls[index].make(hvd, inputs[index], f"program.{index}")
        for index in program.orders[hvd.rank()]
    }
    return [made[index] for index in range(len(program.calls))]


WAYS = {
    way.__name__: way
    for way in (eagerly, in_threads, in_a_function, in_a_function_without_names, in_a_session)
}


@st.composite
def programs(draw: Any, size: int, way: str) -> Program:
    made = tuple(draw(st.lists(calls, min_size=2, max_size=6)))
    orders = tuple(with_barriers_in_order(made, draw(st.permutations(range(len(made))))) for _ in range(size))
    return Program(made, orders, way, draw(st.integers(1, 2)))


def with_barriers_in_order(made: tuple[Call, ...], order: list[int]) -> tuple[int, ...]:
    """A tf.function runs its barriers one after the other, so that all ranks have to build them in one order."""
    barriers = iter(sorted(index for index in order if isinstance(made[index], Barrier)))
    return tuple(next(barriers) if isinstance(made[index], Barrier) else index for index in order)


@on_ranks()
def run_program(hvd, program):
    from mpi4py import MPI

    size, rank = hvd.size(), hvd.rank()
    parts = [
        [[call.bring(other, size, turn) for other in range(size)] for call in program.calls]
        for turn in range(program.turns)
    ]
    everything = WAYS[program.way](hvd, program, [[part[rank] for part in turn] for turn in parts])
    bits = []
    for results, turn in zip(everything, parts, strict=True):
        for call, result, part in zip(program.calls, results, turn, strict=True):
            # NumPy does not turn TensorFlow's bfloat16 scalars into arrays.
            arrays = [np.asarray(x.numpy() if tf.is_tensor(x) else x) for x in result]
            call.check(arrays, part, rank)
            bits.append([x.tobytes() for x in arrays] if call.equal else None)
    everywhere = MPI.COMM_WORLD.allgather(bits)
    for index, call in enumerate(program.calls * program.turns):
        assert all(other[index] == bits[index] for other in everywhere), call


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rank_group", [1, 2, 3], indirect=True, ids="np{}".format)
def test_random_programs(rank_group: RankGroup, way: str) -> None:
    # A program that fails is reported as it is: making it smaller would start new ranks for each attempt.
    @settings(
        max_examples=PROGRAMS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @seed(100 * rank_group.size + list(WAYS).index(way))
    @given(programs(rank_group.size, way))
    def check(program: Program) -> None:
        report(rank_group, rank_group.run(Case(__name__, run_program.__name__, {"program": program}), LIMIT))

    check()
