"""How an elastic job goes on: decisions, without processes."""

import errno
import fcntl
import shutil
import socket

import pytest

from tests.elastic.support import Pool, starts
from tfddl.launch import run
from tfddl.launch.elastic.folder import forget
from tfddl.launch.elastic.restart import Limits, Placement, host_of_each
from tfddl.launch.hosts import Host
from tfddl.launch.outcome import Rank, Record, Verdict, judge

KILL = -9
NO_LIMITS = Limits(1, None, False)


def verdict(statuses, hosts, lost=()):
    """The end of a job of ranks with these exit statuses; those in `lost` have not reported it."""
    ranks = [
        Rank(number, host, status) for number, (status, host) in enumerate(zip(statuses, hosts, strict=True))
    ]
    for rank in ranks:
        rank.stopped = rank.status == -15
    gone = [rank for rank in ranks if rank.number in lost]
    for rank in gone:
        rank.status = None
    ended = sorted((rank for rank in ranks if rank not in gone), key=lambda rank: rank.stopped)
    return judge(Record(len(ranks), ended, gone, [], 0, "", len(set(hosts)) > 1))


def start_again(limits, before, *ends):
    """Runs a session on fixed hosts. Returns the places after the first one, and what was said of these ends."""
    pool = Pool(limits, discovered=False)
    places, said = starts(pool, before, *ends)
    pool.close()
    return places[1:], [line.removeprefix("tfddlrun: ") for line in said if "lost; " in line]


@pytest.mark.parametrize(
    ("statuses", "lost", "limits", "expected"),
    [
        ([-15, KILL, -15], (), NO_LIMITS, 2),
        ([KILL, KILL, -15], (), NO_LIMITS, 1),
        ([-11, -15], (), NO_LIMITS, 1),
        ([-15, 0, -15], (1,), NO_LIMITS, 2),
        ([-15, KILL, -15], (), Limits(1, None, True), 3),
        ([-15, KILL, -15], (), Limits(3, None, True), 3),
        ([-15, KILL, -15], (), Limits(3, None, False), None),
        ([KILL, KILL], (), NO_LIMITS, None),
        ([0, 0, 0], (), NO_LIMITS, None),
        ([-15, 1, -15], (), NO_LIMITS, None),
        ([-15, 1, KILL], (), NO_LIMITS, 2),
        ([-15, 137, -15], (), NO_LIMITS, 2),
    ],
)
def test_on_one_host(statuses, lost, limits, expected):
    for hosts in ([], [Host("localhost", len(statuses))]):
        before = Placement(len(statuses), hosts)
        end = verdict(statuses, ["here"] * len(statuses), lost)
        places, lines = start_again(limits, before, end, *[Verdict(0)] * (expected is not None))
        after = expected and Placement(expected, [Host("localhost", expected)] if hosts else [])
        assert places == [after] * (expected is not None)
        assert any("starting again with" in line for line in lines) == (expected is not None)


@pytest.mark.parametrize(
    ("statuses", "lost", "replace", "expected"),
    [
        ([-15, -15, KILL, -15, -15], (), False, {"10.0.0.1": 2, "10.0.0.2": 1, "c": 1}),
        ([-15, -15, KILL, -15, -15], (), True, {"10.0.0.1": 2, "10.0.0.2": 2, "c": 1}),
        ([-15, -15, 0, 0, -15], (2, 3), False, {"10.0.0.1": 2, "c": 1}),
        ([-15, -15, 0, 0, -15], (2, 3), True, {"10.0.0.1": 2, "c": 1}),
        ([-15, -15, -15, -15, KILL], (), False, {"10.0.0.1": 2, "10.0.0.2": 2}),
        ([-15, -15, 0, -15, -15], (2,), False, {"10.0.0.1": 2, "10.0.0.2": 1, "c": 1}),
    ],
)
def test_on_several_hosts(statuses, lost, replace, expected):
    """Hosts may be named by addresses, and have fewer processes than slots."""
    before = Placement(5, [Host("10.0.0.1", 2), Host("10.0.0.2", 2), Host("c", 4)])
    end = verdict(statuses, ["a.site", "a.site", "b.site", "b.site", "c"], lost)
    [after], _ = start_again(Limits(1, None, replace), before, end, Verdict(0))
    assert [(host.name, host.slots) for host in after.hosts] == list(expected.items())
    assert after.processes == sum(expected.values())


def test_ranks_that_mpirun_has_placed_otherwise():
    """With `--mpi-args "--map-by node:OVERSUBSCRIBE"`. Two names for one machine say nothing: then the slots count."""
    own = socket.gethostname()
    for first, machine in (
        ("a", "a.site"),
        ("a.site", "a"),
        ("localhost", own),
        ("127.0.0.1", own),
        (own, own),
    ):
        place = Placement(4, [Host(first, 2), Host("b", 2)])
        ranks = verdict([0] * 4, [machine, "b", machine, "b"]).ranks
        assert host_of_each(ranks, place) == {0: first, 1: "b", 2: first, 3: "b"}
    two = Placement(2, [Host("localhost", 1), Host(own, 1)])
    assert host_of_each(verdict([0, 0], [own, own]).ranks, two) == {0: "localhost", 1: own}


def test_words():
    before = Placement(2, [])
    end = verdict([KILL, -15], ["a", "a"])
    assert start_again(Limits(1, 1, True), before, end, end)[1] == [
        "rank 0 of 2 was lost; starting again with 2 processes, restart 1",
        "rank 0 of 2 was lost; --reset-limit 1 lets the job start again no more",
    ]
    assert start_again(Limits(2, None, False), before, end)[1] == [
        "rank 0 of 2 was lost; 1 process would be left, and --min-np asks for 2"
    ]
    two = verdict([-15, KILL, KILL, -15], ["a", "a", "b", "b"])
    assert start_again(NO_LIMITS, Placement(4, []), two, Verdict(0))[1][0].startswith(
        "ranks 1 on a, 2 on b of 4 were lost; starting again with 2 processes"
    )


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_state_folder_without_locks(number, tmp_path, monkeypatch, capsys):
    """As on some Lustre and NFS: the job starts, with a line of warning."""

    def refuse(*_):
        raise OSError(number, "planted")

    with (
        run._state_folder(tmp_path),
        pytest.raises(run.click.UsageError, match="Another job keeps its commits there"),
    ):
        run._state_folder(tmp_path).__enter__()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(fcntl, "flock", refuse)
    with run._state_folder(tmp_path):
        assert capsys.readouterr().err == (
            f"tfddlrun: the file system of --state-dir has no locks: start no other job with {tmp_path}. "
            f"Received: [Errno {number}] planted\n"
        )


def test_a_state_folder_that_the_program_has_removed(tmp_path):
    with run._state_folder(tmp_path / "state"):
        shutil.rmtree(tmp_path / "state")
        forget(tmp_path / "state")
