"""Strategies of hypothesis for the calls of calls.py."""

from typing import Any

from hypothesis import strategies as st

from tests.random_programs.calls import (
    Allgather,
    Allreduce,
    Alltoall,
    Barrier,
    Broadcast,
    Reducescatter,
    Slices,
)
from tfddl.ops.constants import Adasum, Average, Sum
from tfddl.ops.dtypes import DTYPES, FLOATS, INTEGERS, REDUCTIONS, SCATTERED

seeds = st.integers(0, 2**20)
small_shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
shapes = st.one_of(small_shapes, small_shapes, st.sampled_from([(70_001,), (3, 20_011)]))
row_shapes = shapes.filter(len)


@st.composite
def reductions(draw: Any, kind: type[Allreduce]) -> Allreduce:
    op = draw(st.sampled_from(SCATTERED if kind is Reducescatter else tuple(REDUCTIONS)))
    factors = draw(st.sampled_from([(1.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, 3.0), (2.0, 0.5), (-1.5, 2.0)]))
    dtypes = [dtype for dtype in REDUCTIONS[op] if factors == (1.0, 1.0) or dtype != "bool"]
    if op == Adasum:
        factors = (1.0, 1.0)
    tensor = st.tuples(st.sampled_from(dtypes), row_shapes if kind is Reducescatter else shapes)
    members = draw(members_of(tensor))
    # Factors and averages of 64-bit integers are exact for small numbers only.
    whole_range = factors == (1.0, 1.0) and not (op == Average and any("64" in m[0] for m in members if m))
    return kind(draw(seeds), members, draw(st.booleans()) and whole_range, op, factors)


def members_of(tensor: st.SearchStrategy) -> st.SearchStrategy:
    several = st.lists(st.one_of(tensor, tensor, st.none()), min_size=2, max_size=4)
    return st.one_of(st.tuples(tensor), several.map(tuple).filter(any))


calls = st.one_of(
    reductions(Allreduce),
    reductions(Allreduce),
    reductions(Reducescatter),
    st.builds(Allgather, seeds, members_of(st.tuples(st.sampled_from(DTYPES), row_shapes)), st.booleans()),
    st.builds(
        Broadcast,
        seeds,
        st.tuples(st.tuples(st.sampled_from(DTYPES), shapes)),
        st.booleans(),
        st.integers(0, 5),
    ),
    st.builds(Alltoall, seeds, st.sampled_from(DTYPES), small_shapes, st.booleans(), st.integers(0, 2)),
    st.builds(
        Slices, seeds, st.sampled_from(FLOATS + INTEGERS), st.integers(1, 3), st.sampled_from([Average, Sum])
    ),
    st.builds(Barrier, seeds),
)
