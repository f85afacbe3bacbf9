"""Ranks that have joined while others stall, leave or die: named, and nobody waits for ever."""

import re

import pytest

from tests.faults.support import START, check_quoted, run, start
from tests.harness import slow
from tests.harness.mpirun import mpirun_command

JOIN = "if hvd.rank() != 1:\n    hvd.join()\n    print('not reached')\n"


@pytest.mark.slow
def test_a_long_join_is_no_stall():
    """The others may train on for longer than the limit."""
    train = "if hvd.rank() == 1:\n    for step in range(60): hvd.allreduce(x, name='step'); time.sleep(0.1)\n"
    result = run(3, start(3, 5) + train + "hvd.join()\n")
    assert result.code == 0, result.output
    assert "tfddl: " not in result.output


@pytest.mark.slow
def test_a_rank_that_does_nothing_while_others_have_joined():
    result = run(3, start(1, 2) + "if hvd.rank() == 1: time.sleep(300)\nhvd.join()\n")
    assert result.code != 0, result.output
    check_quoted(result, "for 'hvd.join()'; rank 1 has not submitted it; ranks 0, 2 have joined")


def test_a_stall_while_others_have_joined():
    script = (
        start(1, 5)
        + "if hvd.rank() == 0: hvd.join()\nif hvd.rank() == 1: hvd.allreduce(x, name='mine')\ntime.sleep(300)\n"
    )
    result = run(3, script)
    assert result.code != 0, result.output
    for begin in ("tfddl: ", "Stalled: "):
        assert re.search(
            begin + r"rank 1 has waited \d+ s for 'mine'; rank 2 has not submitted it; rank 0 has joined\. "
            r"All ranks: rank 0: in hvd\.join\(\) \(for ",
            result.output,
        ), result.output


@pytest.mark.slow
def test_different_collectives_while_rank_0_has_joined():
    script = (
        start(6, 5)
        + "if hvd.rank() == 0: hvd.join()\nhvd.allreduce(x, name=f'of.{hvd.rank()}')\nprint('not reached')\n"
    )
    result = run(3, script)
    assert result.code != 0, result.output
    check_quoted(
        result, "the ranks wait for different collectives", "rank 1: 'of.1' (for ", "rank 2: 'of.2' (for "
    )


@pytest.mark.parametrize("ranks", [slow(2), 3])
def test_a_rank_that_leaves_while_others_have_joined(ranks):
    result = run(ranks, START + JOIN)
    assert result.code != 0, result.output
    check_quoted(result, "UnknownError", "rank 1 has shut down tfddl")


@pytest.mark.slow
def test_a_rank_that_raises_while_others_have_joined():
    result = run(3, START + JOIN + "if hvd.rank() == 1: raise RuntimeError('of its own')\n")
    assert result.code != 0, result.output
    check_quoted(result, "of its own")


@pytest.mark.slow
def test_a_death_while_others_have_joined():
    """Hidden from mpirun by a shell that goes on."""
    script = (
        START + "if hvd.rank() == 1:\n    time.sleep(1)\n    os.kill(os.getpid(), signal.SIGKILL)\n" + JOIN
    )
    result = run(3, script, [*mpirun_command(3, ["sh", "-c", '"$@"; sleep 60', "sh"])])
    assert result.code != 0, result.output
    check_quoted(result, "rank 1 has died: its process ", " ended without leaving the job")
