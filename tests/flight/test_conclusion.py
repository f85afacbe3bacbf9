"""The conclusion of `tfddl analyze`, for each way in which ranks part."""

from tests.flight.builder import after_loss, ranks
from tfddl.flight.compare import Kind

JOIN = "hvd.join()"
TRAIN = "/home/me/train.py"
EXECUTE = "/venv/lib/python3.11/site-packages/tensorflow/python/eager/execute.py"


def test_another_operation_instead(concluded):
    first, second = after_loss(2)
    first.did("gradient", ago=12.3)
    second.did("metric", ago=12.1, tensor="float32 []").at((EXECUTE, 5, "run"), (TRAIN, 30, "measure"))
    text, found = concluded([first, second])
    assert text == (
        "Ranks part after 'loss' (ticket 57), the last operation that all of them did. Rank 0 submitted 'gradient' "
        "(allreduce Sum of float32 [1000], 12.3 s ago); rank 1 has not. Rank 1 submitted 'metric' instead (allreduce "
        "Sum of float32 [], 12.1 s ago); main thread: /home/me/train.py:30 in measure."
    )
    assert [(each.name, each.kind, each.suspects) for each in found] == [
        ("gradient", Kind.MISSING, [1]),
        ("metric", Kind.MISSING, [0]),
    ]


def test_a_rank_that_submits_nothing_more(concluded):
    made = after_loss(4)
    for each in made[:3]:
        each.did("gradient", ago=12.3).did("gradient_1", ago=12.2)
    made[3].at((TRAIN, 12, "read"), (TRAIN, 60, "<module>"))
    text, found = concluded(made)
    assert "Ranks 0-2 submitted 'gradient' and 1 more (" in text and "; rank 3 has not. Rank 3" in text
    assert text.endswith(
        "submitted nothing after 'loss' (ended 13.0 s ago); main thread: /home/me/train.py:12 in read."
    )
    assert [each.also for each in found] == [["gradient_1"]]


def test_a_rank_that_never_submitted_anything(concluded):
    first, second = ranks(2)
    text, _ = concluded([first.did("x"), second])
    assert text.startswith("Ranks part at the first operation. Rank 0 submitted 'x'")
    assert text.endswith("Rank 1 submitted nothing yet.")


def test_the_order_of_submission_differs(concluded):
    """TensorFlow runs the operations of a graph in any order. Tickets and names tell what is the same."""
    first, second = ranks(2)
    first.did("a", 1, ago=9).did("b", 2, ago=8).did("c", ago=7).did("d", ago=6)
    second.did("b", 2, ago=9).did("a", 1, ago=8)
    text, found = concluded([first, second])
    assert "after 'b' (ticket 2)" in text and "Rank 0 submitted 'c' and 1 more" in text
    assert [(each.name, each.also) for each in found] == [("c", ["d"])]


def test_different_arguments(concluded):
    made = after_loss(3)
    for each, shape in zip(made, ("[5]", "[7]", "[5]"), strict=True):
        each.did("gradient", ago=3, tensor=f"float32 {shape}")
    made[0].did("later", ago=2)
    text, found = concluded(made)
    assert text.startswith(
        "The ranks submitted 'gradient' with different arguments, 3.0 s ago: ranks 0, 2: float32 [5]; rank 1: float32 [7]."
    )
    assert found[0].kind == Kind.ARGUMENTS and text.endswith("Open as well: 'later' (not submitted by all).")


def test_different_arguments_before_all_ranks_have_submitted(concluded):
    made = after_loss(3)
    made[0].did("AGE", ago=3, tensor="float32 [5]")
    made[1].did("AGE", ago=3, tensor="float32 [7]")
    text, _ = concluded(made)
    assert text.endswith("rank 0: float32 [5]; rank 1: float32 [7]. Rank 2 did not submit it.")


def test_different_collectives_and_factors(concluded):
    made = after_loss(2)
    made[0].did("x", signature="collective=broadcast|root_rank=0|tensor=int32 []")
    made[1].did("x", signature="collective=allgather|tensor=int32 [?]")
    assert "rank 0: broadcast; rank 1: allgather" in concluded(made)[0]
    made[1].file["operations"][-1]["signature"] = "collective=broadcast|root_rank=1|tensor=int32 []"
    assert "rank 0: root_rank=0; rank 1: root_rank=1" in concluded(made)[0]


def test_arguments_that_failed_and_are_caught_are_history(concluded):
    made = ranks(2)
    for each, shape in zip(made, ("[5]", "[7]"), strict=True):
        each.did("x", ago=30, tensor=f"float32 {shape}", ended_us=975_000_000, failed=True).did("y", 4, ago=3)
    assert concluded(made)[0].startswith(
        "All ranks with a record have done the same operations: the last is 'y'"
    )


def test_a_transfer_that_does_not_end(concluded):
    made = after_loss(3)
    for each in made:
        each.did("gradient", 58, ago=5)
    made[1].file["operations"][-1]["ended_us"] = None
    text, _ = concluded(made)
    assert text == (
        "All ranks have agreed on 'gradient' (ticket 58), and its transfer has not ended on all: ended on ranks 0, 2 "
        "4.9 s ago; started on rank 1 5.0 s ago."
    )


def test_a_rank_that_died_in_a_transfer(concluded):
    made = after_loss(3)[:2]
    for each in made:
        each.did("gradient", 58, ago=5, ended_us=None)
    assert "Rank 2 may have stopped or died in it: there is no record." in concluded(made)[0]


def test_all_submitted_and_no_agreement(concluded):
    made = after_loss(2)
    made[0].did("x", 58, ago=5, started_us=None, ended_us=None)
    made[1].did("x", ago=4)
    text, found = concluded(made)
    assert "on rank 0 5.0 s ago; submitted on rank 1 4.0 s ago" in text
    assert [each.kind for each in found] == [Kind.TRANSFER]  # one, though rank 1 does not know the ticket
    made[0].file["operations"][-1]["ticket"] = None
    assert "have submitted 'x' with equal arguments, and have not agreed on it" in concluded(made)[0]


def test_a_bucket_that_one_rank_has_not_submitted(concluded):
    """The tickets of all buckets are agreed on with the first one."""
    made = [each.did("g#0", 58, ago=5) for each in after_loss(2)]
    made[0].did("g#1", 59, ago=4, ended_us=None)
    text, found = concluded(made)
    assert "Rank 0 submitted 'g#1'" in text and "Rank 1 submitted nothing after 'g#0'" in text
    assert found[0].suspects == [1]


def test_an_operation_that_failed_on_one_rank(concluded):
    made = after_loss(2)
    made[0].did("x", ago=5)
    made[1].did("x", ago=5, ended_us=996_000_000, failed=True)
    made[1].file["reason"] = "InvalidArgumentError: root_rank 9"
    text, found = concluded(made)
    assert text == (
        "'x' failed on rank 1: submitted on rank 0 5.0 s ago; failed on rank 1 4.0 s ago. The record of rank 1 says: "
        "InvalidArgumentError: root_rank 9"
    )
    assert found[0].suspects == [1]


def test_a_stall_that_has_ended_the_job(concluded):
    """The waiting operations have failed when the records are written."""
    made = after_loss(3)
    for each in made[:2]:
        each.did("x", ago=5, ended_us=999_900_000, failed=True)
    assert "Ranks 0, 1 submitted 'x'" in concluded(made)[0]
    made[1].file["operations"][-1] |= {"ended_us": None, "failed": False}  # its record is a moment older
    assert "Ranks 0, 1 submitted 'x'" in concluded(made)[0] and "; rank 2 has not." in concluded(made)[0]


def test_process_sets(concluded):
    """Rank 0 waits for rank 1, which waits for rank 2: the cause comes first, and rank 0 is no member there."""
    made = [each.sets([1, 2]) for each in after_loss(3)]
    made[0].did("all", ago=9)
    made[1].did("some", ago=8, process_set=1)
    text, found = concluded(made)
    assert text.startswith(
        "In process set 1 [1, 2]: Ranks part at the first operation. Rank 1 submitted 'some'"
    )
    assert text.endswith(
        "Rank 2 submitted nothing after 'loss' (ended 13.0 s ago). Open as well: 'all' (not submitted by all)."
    )
    assert [each.suspects for each in found] == [[2], [1, 2]]


def test_ranks_that_wait_for_each_other_in_two_sets(concluded):
    made = [each.sets([0, 1]) for each in after_loss(2)]
    made[0].did("a", ago=9)
    made[1].did("b", ago=8, process_set=1)
    text, _ = concluded(made)
    assert "Rank 0 submitted 'a'" in text and "Rank 1 submitted 'b' of process set 1 [0, 1] (" in text


def test_a_rank_that_has_joined_is_not_missed(concluded):
    made = after_loss(3)
    made[0].did(JOIN, ago=9, signature="")
    made[1].did("x", ago=8)
    text, found = concluded(made)
    assert found[0].suspects == [2] and "(rank 0 has joined); rank 2 has not." in text
    assert text.endswith("Open as well: 'hvd.join()' (not submitted by all).")


def test_nothing_parts(concluded):
    text, found = concluded(after_loss(2))
    assert not found and "the last is 'loss' (ticket 57), which ended 13.0 s ago. None waits" in text
