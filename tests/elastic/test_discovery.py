"""The script that names the hosts, the hosts that are set aside, and where a job goes on: without processes of a job."""

import os
import signal
import threading
import time

import pytest

from tests.elastic.support import Pool, starts
from tfddl.launch.elastic import discovery
from tfddl.launch.elastic.cooldown import HostCooldown
from tfddl.launch.elastic.discovery import Poll, Script, parse, wait_for_hosts
from tfddl.launch.elastic.hand_over import HandOver
from tfddl.launch.elastic.pool import filled
from tfddl.launch.elastic.restart import Limits, Placement, Restarts
from tfddl.launch.hosts import Host
from tfddl.launch.outcome import Rank, Verdict
from tfddl.launch.supervision.children import Children

A, B, C = Host("a", 2), Host("b", 2), Host("c", 2)


def test_lines_of_a_script():
    text = "node1:4\n\n  node2\nnode1:4\nnode3:0\n10.0.0.1:1\n"
    assert parse(text, 2) == [Host("node1", 4), Host("node2", 2), Host("10.0.0.1", 1)]
    assert parse("\n", 1) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1 slots=4", "Received: node1 slots=4"),
        ("node1:four", "Received: node1:four"),
        ("node1:2\nnode1", "let it print one line for each. Received: node1:2 and node1"),
    ],
)
def test_lines_that_are_no_hosts(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, 1)


def test_a_process_that_a_command_leaves_behind(tmp_path):
    """It holds the pipes of the command that had to be ended."""
    held = tmp_path / "held"
    command = f"setsid sh -c 'echo $$ > {held}.part; mv {held}.part {held}; exec sleep 60' & sleep 60"
    begun = time.monotonic()
    try:
        assert Children().run(["sh", "-c", command], 3.0) == (None, "", "")
        assert time.monotonic() - begun < 50
    finally:
        if held.exists():
            os.kill(int(held.read_text()), signal.SIGKILL)


def test_a_script_has_ended_when_its_shell_has(tmp_path):
    """A process that it leaves behind holds its output open."""
    script = Script(f"echo a:2; sleep 60 & echo $! > {tmp_path}/left", 1)
    begun = time.monotonic()
    try:
        assert script.hosts() == [A] and time.monotonic() - begun < 50
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 3", r"failed: run it by hand\. .* exit code 3: no output$"),
        ("/no/script", "failed: make it executable, and give its path.* exit code 127: .*not found"),
        ("sh -c no_such_command", "failed: run it by hand.* exit code 127: .*not found"),
    ],
)
def test_how_a_script_has_failed(command, message):
    with pytest.raises(ValueError, match=message):
        Script(command, 1).hosts()


def test_a_script_that_fails_or_hangs(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Received: echo b; exit 4, which ended with exit code 4: b"):
        Script("echo b; exit 4", 1).hosts()
    monkeypatch.setattr(discovery, "LIMIT_S", 3.0)
    with pytest.raises(ValueError, match=r"let it answer within 3 s\. Received: echo"):
        Script(f"echo $$ > {tmp_path}/process; sleep 77; true", 1).hosts()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)


def test_waiting_for_slots(tmp_path):
    said = []
    script = Script(f"echo a:2; test -e {tmp_path}/b && echo b; touch {tmp_path}/b", 1)
    with pytest.raises(ValueError, match="exit code 1"):
        Script("echo a; false", 1).hosts()
    assert wait_for_hosts(script, 3, 60.0, said.append) == [A, Host("b", 1)]
    assert said == ["waiting for hosts: the script names 2 of 3 slots"]
    with pytest.raises(ValueError, match="Received: a:2, b:1 after 0 s, and the job needs 9 slots"):
        wait_for_hosts(script, 9, 0.0, said.append)


def test_a_failure_is_said_once_and_ends_with_a_success(monkeypatch):
    """The function that takes the hosts may fail too."""
    answers = iter([[A], ValueError("first"), ValueError("second"), [B], ValueError("third"), [C], [A]])
    found, failed, ended = [], [], threading.Event()

    class Answers(Script):
        def hosts(self):
            answer = next(answers, None)
            if answer is None:
                ended.set()
                return []
            if isinstance(answer, Exception):
                raise answer
            return answer

    def take(hosts):
        if hosts == [C]:
            raise RuntimeError("fourth")
        found.append(hosts)

    monkeypatch.setattr(discovery, "EVERY_S", 0.001)
    poll = Poll(Answers("", 1), take, failed.append, Children())
    poll.start()
    assert ended.wait(60)
    poll.close()
    assert found[:3] == [[A], [B], [A]] and failed == ["first", "third"]


def test_the_time_of_a_host_that_is_set_aside():
    now = [0.0]
    cooldown = HostCooldown(10.0, 100.0, clock=lambda: now[0], chance=lambda: 0.5)
    assert [cooldown.add("a") for _ in range(5)] == [25.0, 45.0, 85.0, 100.0, 100.0]
    assert cooldown.add("b") == 25.0 and not cooldown.holds("c")
    now[0] = 24.9
    assert cooldown.holds("b")
    now[0] = 25.1
    assert not cooldown.holds("b") and cooldown.holds("a")


@pytest.fixture
def pool():
    pool = Pool()
    yield pool
    pool.close()


def test_a_host_comes_and_another_one_goes(pool):
    ranks = pool.runs(A, B)
    assert pool.told(ranks) == (False, "")
    pool.found([C, A])
    assert pool.asked == ["c"]
    after = pool.next_placement(ranks)
    assert after == Placement(4, [A, C])
    assert pool.changes(after, ranks) == "c:2 is new, b is gone"
    assert pool.told(ranks) == (
        True,
        "hosts have changed (c:2 is new, b is gone); the job starts again after its next commit",
    )
    assert HandOver(pool, Restarts(None)).is_due([]) is False  # while the ranks start or end


def test_more_slots_up_to_the_most():
    pool = Pool(Limits(1, None, False, 3))
    ranks = pool.runs(A)
    pool.found([Host("a", 4), B])
    after = pool.next_placement(ranks)
    assert after == Placement(3, [Host("a", 3)]) and pool.changes(after, ranks) == "a:3 was a:2"
    ranks = pool.runs(Host("a", 3))
    pool.found([B, Host("a", 4)])
    assert pool.told(ranks) == (False, "")
    pool.close()


def test_ranks_are_not_told_of_a_start_that_may_not_be():
    pool = Pool(Limits(3, 1, False))
    ranks = pool.runs(A, B)
    pool.found([A])
    refused = "hosts have changed (b is gone), and the job goes on: 2 processes would be left, and --min-np asks for 3"
    hand_over = HandOver(pool, Restarts(None))
    assert [hand_over.is_due(ranks) for _ in range(2)] == [False, False]
    assert pool.lines() == [refused]
    pool.found([A, B, C])
    assert pool.told(ranks, 0)[0]
    assert pool.told(ranks, 1) == (
        False,
        "hosts have changed (c:2 is new), and the job goes on: --reset-limit 1 lets the job start again no more",
    )
    pool.close()


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_job_does_not_leave_all_of_its_commits(on_disk):
    pool = Pool(on_disk=on_disk)
    ranks = pool.runs(A, B)
    pool.found([C])
    due, line = pool.told(ranks)
    assert due is on_disk
    assert ("none of them would be left; see --state-dir" in line) is not on_disk
    pool.close()


def test_hosts_replaced_one_after_the_other(pool):
    """All ranks commit before the job moves: hosts that are new have the commits too, and hosts of lost ranks have not."""
    pool.ran(pool.runs(A))
    ranks = pool.runs(A, B)
    pool.found([B])
    assert pool.told(ranks[:2])[0] is False
    assert pool.told(ranks)[0]


def test_a_host_that_does_not_answer(pool):
    ranks = pool.runs(A)
    pool.silent = {"b"}
    pool.found([A, B])
    assert pool.told(ranks) == (False, "b does not answer and is set aside for 20 s")
    pool.found([A, B])
    assert pool.asked == ["b"]
    pool.now, pool.silent = 21.0, set()
    pool.found([A, B])
    assert pool.told(ranks)[0]


def test_a_host_that_has_failed_comes_back_later(pool):
    ranks = pool.runs(A, B)
    pool.failed(["b"])
    assert pool.lines() == ["b has failed and is set aside for 20 s"]
    pool.ran(ranks)
    assert pool.next_placement(ranks) == Placement(2, [A]) and not pool.has_old_commits("b")
    ranks = pool.runs(A)
    pool.ran(ranks)
    assert pool.has_old_commits("b") and not pool.has_old_commits("c")
    pool.now = 21.0
    pool.found([A, B])
    both = pool.next_placement(ranks)
    assert both == Placement(4, [A, B])
    pool.starts(both)
    assert not pool.has_old_commits("b")  # a rank on b may commit before all have said that they run


def test_a_host_that_leaves_is_used_when_the_script_names_it_anew(pool):
    ranks = pool.runs(A, B)
    pool.leaves(ranks[3])
    after = pool.next_placement(ranks)
    assert after == Placement(2, [A]) and pool.changes(after, ranks) == "b leaves"
    for hosts, expected in (([A, B], [A]), ([A], [A]), ([A, B], [A, B])):
        pool.found(hosts)
        assert pool.next_placement(ranks).hosts == expected


@pytest.mark.parametrize("hosts", [[A, B], [], [A, Host("b", 4), C]])
def test_a_host_leaves_a_job_without_a_script(hosts):
    """Where mpirun has the hosts from a scheduler, only the ranks know them. The last hosts have slots without ranks."""
    pool = Pool(discovered=False)
    ranks = pool.runs(A, B)
    pool.starts(Placement(4, hosts))
    assert pool.told(ranks) == (False, "")
    pool.leaves(ranks[0])
    left = ranks[:3]  # the others may have gone on without rank 3
    for present in (ranks, left):
        due, line = pool.told(present)
        assert due and line.startswith("hosts have changed (a leaves); ")
    assert pool.next_placement(left) == Placement(1, [Host("b", 1)])
    assert pool.next_placement(ranks) == Placement(2, [B])
    assert pool.without_leaving(Placement(3, [Host("a", 1), B])) == Placement(2, [B])
    pool.leaves(ranks[3])
    assert "0 processes would be left" in pool.told(ranks)[1]
    pool.close()


def ranks_on(*names):
    return tuple(Rank(number, name, 0) for number, name in enumerate(names))


def test_a_start_that_no_rank_has_begun(pool):
    """The host that does not answer is set aside; if all answer, the job has failed."""
    pool.silent = {"b"}
    failed = Verdict(1, "tfddlrun: mpirun ended with exit code 1")
    places, said = starts(pool, filled([A, B], None), failed, failed)
    assert places == [Placement(4, [A, B]), Placement(2, [A])]
    assert said[1:3] == [
        "tfddlrun: b does not answer and is set aside for 20 s",
        "tfddlrun: b could not be reached; starting again with 2 processes, restart 1",
    ]


@pytest.mark.parametrize("least", [1, 3])
def test_a_host_that_leaves_and_is_lost(least):
    """Not all of its ranks: the others have ended in time."""
    pool = Pool(Limits(least, None, False), discovered=False)
    ranks = ranks_on("a", "a", "b", "b")
    pool.starts(filled([A, B], None))
    pool.leaves(ranks[2])
    lost = Verdict(137, "", ranks=ranks, lost=ranks[3:])
    places, said = starts(pool, filled([A, B], None), lost, *[Verdict(0, ranks=ranks[:2])] * (least == 1))
    assert places[1:] == [Placement(2, [A])] * (least == 1)
    end = "starting again with 2 processes, restart 1"
    end = end if least == 1 else "2 processes would be left, and --min-np asks for 3"
    assert said[0] == f"tfddlrun: rank 3 on b of 4 was lost; {end}"
    pool.close()


def test_a_hand_over_counts_as_a_restart():
    pool = Pool(Limits(1, 1, False))
    pool.starts(filled([A], None))
    pool.found([A, B])
    ranks = ranks_on("a", "a")
    over, lost = Verdict(0, ranks=ranks, handed_over=True), Verdict(137, ranks=ranks, lost=ranks[1:])
    places, said = starts(pool, filled([A], None), over, lost)
    assert places[1:] == [Placement(4, [A, B])]
    assert said[0] == "tfddlrun: hosts changed (b:2 is new); starting again with 4 processes"
    assert said[-1] == "tfddlrun: rank 1 of 2 was lost; --reset-limit 1 lets the job start again no more"
    pool.close()


def test_what_the_reset_limit_counts():
    """A loss after which the job went on, then a start for two more; ranks that are told of a change of hosts."""
    pool = Pool(Limits(1, 2, False), discovered=False)
    ranks = ranks_on("a", "a", "b", "b")

    def first(hand_over, survival):
        for left in (3, 0):  # the others do not go on after the second loss
            assert survival.allows(ranks[left], ranks)
            for rank in ranks[:3]:
                rank.goes_on_with = left
            survival.survived(ranks)
        assert not survival.allows(ranks[1], ranks)
        return Verdict(137, ranks=ranks, lost=(ranks[0], ranks[3]))

    def second(hand_over, survival):
        assert not survival.allows(ranks[1], ranks[:2])
        pool.leaves(ranks[0])
        assert not hand_over.is_due(ranks[1:3])
        return Verdict(0, ranks=ranks[:2])

    _, said = starts(pool, filled([A, B], None), first, second)
    assert "tfddlrun: ranks 0 on a, 3 on b of 4 were lost; starting again with 2 processes, restart 2" in said
    assert "--reset-limit 2 lets the job start again no more" in pool.lines()[-1]

    def third(hand_over, survival):
        assert hand_over.is_due(ranks)
        assert survival.allows(ranks[3], ranks) and not survival.allows(ranks[2], ranks)
        return Verdict(0, ranks=ranks)

    starts(pool, filled([A, B], None), third)
    pool.close()
