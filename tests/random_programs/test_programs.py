"""Random programs of collectives on real ranks, against the models in calls.py.

Hypothesis runs here and not in the ranks: one program is drawn for all of them. The programs are the same each time.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, seed, settings
from mpi4py import MPI

from tests.harness import on_ranks, slow
from tests.harness.case import Case
from tests.harness.group import RankGroup
from tests.harness.on_ranks import report
from tests.random_programs import ways
from tests.random_programs.programs import WAYS, Program, programs

PROGRAMS = 8
"""For each number of ranks, each way to run them, and each dimension."""

LIMIT = 120.0
"""Seconds until a program counts as hung; it needs less than one."""

SETS, JOINS = "sets", "joins"
DIMENSIONS = {1: [[], [JOINS]], 2: [[], [SETS], [JOINS]], 3: [[], [SETS], [SETS, JOINS]], 4: [[SETS, JOINS]]}
"""By number of ranks. A job of one rank has no other set."""


@contextmanager
def process_sets(hvd: Any, program: Program) -> Iterator[list[Any]]:
    """The process sets of the program, the first of them static; they are removed after a run without error."""
    new = [hvd.ProcessSet(group.ranks) for group in program.groups[1:]]
    static, dynamic = new[: program.static], new[program.static :]
    if static:
        hvd.shutdown()
        hvd.init(process_sets=static)
    for one in dynamic:
        hvd.add_process_set(one)
    yield [hvd.global_process_set, *new]
    for one in new:
        assert hvd.remove_process_set(one)


def played(hvd: Any, program: Program, sets: list[Any]) -> tuple[dict[tuple[int, int], Any], list[Any]]:
    """Runs a program; returns the results by turn (counted through all rounds) and call, and the results of `join`."""
    rank = hvd.rank()
    step = getattr(ways, program.way)(hvd, program, sets)
    # Left open on an error, which has to reach the report while other threads wait.
    threads = ThreadPoolExecutor(len(sets))
    results, ends = {}, []
    for start in range(0, program.rounds * program.turns, program.turns):
        waiting: list[Future[int] | None] = [None] * len(sets)
        for turn in range(program.turns + 1):
            for number, group in enumerate(program.groups):
                if group.joins(rank, turn):
                    waiting[number] = threads.submit(
                        hvd.join, average_over=group.average_over, process_set=sets[number]
                    )
            if turn < program.turns:
                indices = program.made_by(rank, turn)
                inputs = [brought(program, index, rank, start + turn) for index in indices]
                outcomes = step(indices, inputs)
                results.update({(start + turn, i): x for i, x in zip(indices, outcomes, strict=True)})
        ends.append([None if one is None else one.result() for one in waiting])
    threads.shutdown()
    return results, ends


def brought(program: Program, index: int, rank: int, turn: int) -> list[np.ndarray]:
    """The inputs of a rank for a call in a turn, counted through all rounds."""
    ranks = program.group(index).ranks
    return program.calls[index].bring(ranks.index(rank), len(ranks), turn)


def checked(program: Program, rank: int, turn: int, index: int, result: Any) -> list[bytes] | None:
    """Checks a result against the model, and returns its bits if they must be equal on all ranks."""
    call, group = program.calls[index], program.group(index)
    meeting = group.meeting(turn % program.turns)
    refusal = call.refusal(meeting)
    if refusal:
        assert refusal in str(result), (call, result)
        return None
    assert not isinstance(result, Exception), (call, result)
    parts = {member: brought(program, index, group.ranks[member], turn) for member in meeting.present}
    # NumPy does not turn TensorFlow's bfloat16 scalars into arrays.
    arrays = [np.asarray(x.numpy() if tf.is_tensor(x) else x) for x in result]
    call.check(arrays, parts, group.ranks.index(rank), meeting)
    return [x.tobytes() for x in arrays] if call.equal else None


@on_ranks()
def run_program(hvd, program):
    with process_sets(hvd, program) as sets:
        results, ends = played(hvd, program, sets)
    rank = hvd.rank()
    bits = {(turn, i): checked(program, rank, turn, i, result) for (turn, i), result in results.items()}
    everywhere = MPI.COMM_WORLD.allgather((bits, ends))
    for other, _ in everywhere:
        for turn, i in bits.keys() & other.keys():
            assert other[turn, i] == bits[turn, i], (turn, program.calls[i])
    for number, group in enumerate(program.groups):
        for lasts in zip(*(everywhere[member][1] for member in group.ranks), strict=True):
            assert_last(program, number, {one[number] for one in lasts})


def assert_last(program: Program, number: int, said: set[int | None]) -> None:
    """Checks that `join` has returned the same rank on all members, one with the most turns."""
    group = program.groups[number]
    assert len(said) == 1, (group, said)
    (last,) = said
    assert (last is None) == (group.ends is None), (group, last)
    if group.ends is not None and number in program.group_indices:
        assert group.ends[group.ranks.index(last)] == max(group.ends), (group, last)


CASES = [(size, dimensions) for size in DIMENSIONS for dimensions in DIMENSIONS[size]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("rank_group", "dimensions"),
    [slow(*case) if case[0] == 4 else case for case in CASES],
    indirect=["rank_group"],
    ids=[f"np{n}-{'-'.join(d) or 'plain'}" for n, d in CASES],
)
def test_random_programs(rank_group: RankGroup, dimensions: list[str], way: str) -> None:
    # Without shrinking: each attempt at a smaller program would start new ranks.
    @settings(
        max_examples=PROGRAMS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @seed(100 * rank_group.size + WAYS.index(way))
    @given(programs(rank_group.size, way, SETS in dimensions, JOINS in dimensions))
    def check(program: Program) -> None:
        report(rank_group, rank_group.run(Case(__name__, run_program.__name__, {"program": program}), LIMIT))

    check()
