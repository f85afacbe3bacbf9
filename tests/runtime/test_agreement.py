"""How errors show which ranks differ."""

import pytest

from tfddl.runtime import agreement


def test_equal_values_stand_together():
    assert agreement.by_rank({0: "x", 1: "y", 2: "x"}) == "ranks 0, 2: x; rank 1: y"
    assert agreement.by_rank({3: [1], 4: [1]}) == "ranks 3, 4: [1]"


def test_numbers_are_told_apart_beyond_the_digits_shown():
    assert (
        agreement.by_rank({0: 4.0, 1: 1234567.0, 2: float("nan")})
        == "rank 0: 4; rank 1: 1234567; rank 2: nan"
    )
    assert agreement.differ({0: 0.1, 1: 0.1 + 1e-12})
    assert not agreement.differ({0: float("nan"), 1: float("nan")})


def test_an_error_says_who_has_what():
    agreement.check_equal({0: 1, 1: 1}, "Not reached.")
    with pytest.raises(ValueError, match=r"^Give all the same\. Received: ranks 0, 1: 1; rank 2: 2$"):
        agreement.check_equal({0: 1, 1: 1, 2: 2}, "Give all the same.")


def test_only_lines_that_differ_are_shown():
    found = agreement.differences({0: ["a", "b"], 1: ["a", "c", "d"], 2: ["a"]})
    assert found == {0: "b", 1: "c, d", 2: "none of these"}
    repeated = agreement.differences({0: ["a", "a"], 1: ["a"]})
    assert repeated == {0: "a", 1: "none of these"}
    many = agreement.differences({0: [str(line) for line in range(8)], 1: []})
    assert many[0] == "0, 1, 2, 3, 4 and 3 more"


def test_ranks_in_words():
    assert (agreement.in_words([1]), agreement.in_words([0, 2])) == ("rank 1", "ranks 0, 2")
