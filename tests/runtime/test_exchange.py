"""Small values that all ranks exchange and compare."""

import pytest

from tests.harness import on_ranks
from tests.sets.support import added
from tfddl.ops import exchange


@on_ranks(1, 2, 3)
def test_numbers_by_rank(hvd):
    ranks, rates = exchange.all_numbers(hvd.rank(), 0.5, name="exchange.numbers")
    assert ranks == {rank: rank for rank in range(hvd.size())}
    assert rates == {rank: 0.5 for rank in range(hvd.size())}


@on_ranks(3)
def test_numbers_of_a_process_set_have_the_ranks_of_the_job(hvd):
    with added(hvd, [0, 2]) as (ends,):
        if ends.included():
            assert exchange.all_numbers(7, name="exchange.set", process_set=ends) == [{0: 7, 2: 7}]


@on_ranks(1, 2, 3)
def test_equal_lines_pass_and_different_ones_are_shown(hvd):
    exchange.check_same(["a", "b"], "Not reached.", "exchange.same")
    if hvd.size() > 1:
        lines = ["a", f"b{int(hvd.rank() == 1)}"]
        others = "rank 0" if hvd.size() == 2 else "ranks 0, 2"
        with pytest.raises(ValueError, match=rf"^Give the same\. Received: {others}: b0; rank 1: b1$"):
            exchange.check_same(lines, "Give the same.", "exchange.different")


@on_ranks(2)
def test_an_order_that_differs_is_found(hvd):
    lines = ["a", "b"] if hvd.rank() == 0 else ["b", "a"]
    assert exchange.differing_lists(lines, "exchange.order") == {0: ["a", "b"], 1: ["b", "a"]}
