"""What `tfddl analyze` concludes from records that do not show all: old ones, missing ones, those of other hosts."""

from tests.flight.builder import SIGNATURE, after_loss, ranks
from tfddl.flight.compare import Kind
from tfddl.flight.conclusion import notes
from tfddl.flight.records import read_job
from tfddl.flight.text import in_short

TRAIN = "/home/me/train.py"


def test_rings_have_lost_old_entries(concluded):
    """Rank 1's ring began later, since it also holds operations of its own."""
    made = ranks(2)
    for ticket in range(5):
        made[0].did("a", ticket, ago=20 - ticket)
    for ticket in range(3, 5):
        made[1].did("a", ticket, ago=20 - ticket, number=100 + ticket)
    made[0].file["operations"][0]["ended_us"] = None  # ticket 0, which rank 1 has dropped
    text, found = concluded(made)
    assert found[0].kind == Kind.TRANSFER and "rank 1" not in text


def test_a_wait_that_is_older_than_the_ring(concluded):
    made = after_loss(2)
    made[0].file["waiting"] = [{"process_set": 0, "name": "old", "waited_us": 90_000_000}]
    assert "Rank 0 submitted 'old' (1 min 30 s ago); rank 1 has not." in concluded(made)[0]
    made[0].file["waiting"][0]["waited_us"] = 5  # submitted after the ring was copied
    assert not concluded(made)[1]


def test_a_record_says_nothing_of_later_operations(concluded, tmp_path):
    made = after_loss(2)
    made[1].file["written"] += 60
    made[1].did("x", ago=30).did("y", 58, ago=20)
    text, found = concluded(made)
    assert not found and "the last is 'loss'" in text
    made[1].did("z", ago=70)
    assert (
        "Rank 1 submitted 'z' (allreduce Sum of float32 [1000], 1 min 10 s ago); rank 0" in concluded(made)[0]
    )
    assert "written over 1 min 0 s; older ones, of rank 0" in notes(read_job(tmp_path))[0]


def test_a_transfer_that_ended_after_the_other_record(concluded):
    made = after_loss(2)
    made[1].file["written"] += 60
    made[0].did("x", 58, ago=0.5, ended_us=None)
    made[1].did("x", 58, ago=60.5, ended_us=950_000_000)
    assert not concluded(made)[1]


def test_a_parting_of_this_moment(concluded):
    made = after_loss(2)
    made[0].did("x", ago=0.3)
    assert concluded(made)[0].startswith(
        "The ranks seem to be at work: nothing has waited longer than 0.3 s."
    )
    made[1].file["reason"] = "Stalled: rank 0 has waited 1 s"
    assert concluded(made)[0].startswith("Ranks part")


def test_an_exception(concluded):
    """All ranks write their records because of it. The stack shows whose it is."""
    made = after_loss(2, reason="ValueError: no such file")
    made[0].did("x", ago=0.1).at((TRAIN, 3, "step"))
    made[1].at(("/venv/lib/python3.11/site-packages/tfddl/runtime/failure.py", 33, "hook"))
    text, _ = concluded(made)
    assert text.endswith("(ended 13.0 s ago); an exception has ended it: ValueError: no such file.")


def test_errors_of_tensorflow_are_shortened():
    reason = "InternalError: Graph execution error:\n\nDetected at:\n  File 1\n\n  File 2\n\ntfddl 'x': died\n\t [[node]]"
    assert in_short(reason) == "InternalError: Graph execution error: ... tfddl 'x': died"
    assert in_short("ValueError: a\nb") == "ValueError: a b" and in_short("") == ""


def test_who_has_no_record(concluded, tmp_path):
    made = after_loss(6)
    for each in made:
        each.did("x", ago=5)
    text, found = concluded([made[0], made[1], made[3], made[4]])
    assert text.endswith("; ranks 2, 5 have no record.") and found[0].suspects == [2, 5]
    assert notes(read_job(tmp_path)) == [
        "No record of ranks 2, 5: stopped, dead, or on a host whose directory is another."
    ]


def test_hosts_have_clocks_of_their_own(concluded):
    first, second = after_loss(2)
    first.did("x", ago=5)
    second.did("y", ago=4)
    for operation in second.file["operations"]:
        for key in ("submitted_us", "started_us", "ended_us"):
            operation[key] = operation[key] and operation[key] + 7_000_000_000
    second.file["now_us"] += 7_000_000_000
    assert "'x' (allreduce Sum of float32 [1000], 5.0 s ago)" in concluded([first, second])[0]


def test_gradients_are_named_by_their_signature(concluded):
    made = after_loss(2)
    made[0].did("g", ago=5, signature=SIGNATURE.replace("tensor=", "gradients=12 of float32"))
    assert "(allreduce Sum of 12 of float32, 5.0 s ago)" in concluded(made)[0]


def test_a_thousand_ranks(concluded):
    made = after_loss(1000)
    for each in made:
        if each.rank != 777:
            each.did("x", ago=5)
    text, partings_found = concluded(made)
    assert "Ranks 0-776, 778-999 submitted 'x'" in text and len(partings_found) == 1


def test_init(concluded):
    made = ranks(2, job="")
    for each in made:
        for key in ("process_sets", "operations", "waiting"):  # a record of that time lacks them
            del each.file[key]
    text, _ = concluded(made)
    assert text == "No rank has begun a collective: all records are from before the end of hvd.init()."
