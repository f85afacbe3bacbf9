"""The decorator that makes a pytest test out of a body that runs in every rank."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

import pytest

from tests.harness.case import PASSED, SKIPPED, Case, Outcome
from tests.harness.group import RankGroup

OUTPUT_LIMIT = 6000
"""Characters of the ranks' own output in a report, the last ones."""


def on_ranks(
    *sizes: int, limit: float = 180.0, full: Collection[int] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs the decorated body in each process of a job, once for every job size.

        @pytest.mark.parametrize("dtype", ["float32", "int32"])
        @on_ranks(1, 2, 3)
        def test_sum(hvd, dtype): ...

    The first parameter is `hvd` (tfddl, initialised) or `comm` (mpi4py's COMM_WORLD); the others come from
    pytest and have to pickle. The body is found by name, so it has to be a function of its module.

    Args:
        sizes: Numbers of ranks.
        limit: Seconds until a rank that has not ended is called hung. The whole group is killed then, and the
            next case gets a new one.
        full: More sizes, on which a full run runs one combination of the parameters, and a thin run none
            (`tests.harness.rows.selected`).
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        first, *others = inspect.signature(body).parameters.values()
        if "<locals>" in body.__qualname__ or "." in body.__qualname__:
            raise TypeError(f"An @on_ranks test is a function of its module. Received: {body.__qualname__}")

        @functools.wraps(body)
        def test(rank_group: RankGroup, **arguments: Any) -> None:
            case = Case(body.__module__, body.__name__, arguments)
            report(rank_group, rank_group.run(case, limit))

        fixture = inspect.Parameter("rank_group", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        attributes = {"__signature__": inspect.Signature([fixture, *others]), "body": body}
        vars(test).update(attributes, first_parameter=first.name, full=full)
        return pytest.mark.parametrize("rank_group", [*sizes, *full], indirect=True, ids=_size_name)(test)

    return decorate


def _size_name(size: int) -> str:
    return f"np{size}"


def report(group: RankGroup, outcomes: list[Outcome]) -> None:
    """Passes when all ranks passed; else fails with what every rank says."""
    kinds = {outcome.kind for outcome in outcomes}
    if kinds == {PASSED}:
        return
    if kinds == {SKIPPED}:
        pytest.skip(outcomes[0].text)
    parts = [", ".join(f"rank {outcome.rank} {outcome.kind}" for outcome in outcomes)]
    for outcome in outcomes:
        if outcome.text:
            how = f"{outcome.kind} after {outcome.seconds:.1f} s"
            parts.append(f"--- rank {outcome.rank} {how}\n{outcome.text}")
    if group.written.strip():
        parts.append(f"--- output of the ranks\n{group.written[-OUTPUT_LIMIT:]}")
    pytest.fail("\n".join(parts), pytrace=False)
