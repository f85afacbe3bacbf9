"""The harness itself: what it reports, and that it leaves nothing behind."""

import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.harness import group as group_module
from tests.harness import job as job_module
from tests.harness import on_ranks, run_script
from tests.harness.case import DIED, FAILED, HUNG, PASSED, SKIPPED, Case
from tests.harness.group import RankGroup
from tests.harness.job import MARKER, REPOSITORY
from tests.harness.on_ranks import report
from tests.harness.rows import Combination, selected

BODIES = "tests.harness.bodies"


@on_ranks(1, 2, 3, full=(4,))
def test_ranks_are_a_job(comm):
    assert comm.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.parametrize("value", [1, "two"])
@on_ranks(2)
def test_parameters_travel(comm, value):
    assert comm.allgather(value) == [value, value]


@on_ranks(2)
def test_fixtures_travel(comm, tmp_path):
    comm.Barrier()
    assert tmp_path.is_dir()


def test_a_body_inside_a_function_is_refused():
    with pytest.raises(TypeError, match="function of its module"):

        @on_ranks(1)
        def body(comm): ...


class Item:
    """Stands for pytest's item of a test that a full run has on three ranks too."""

    class function:
        full = (3,)

    def __init__(self, marker=None, **params):
        self.callspec = SimpleNamespace(params=params)
        self.marker = marker

    def get_closest_marker(self, name):
        return name if name == self.marker else None


ITEMS = [Item(rank_group=size, a=a, b=b) for size in (2, 3) for a in ("x", "y", "z") for b in ([1], [2])]


def rows(items, extent):
    return [tuple(item.callspec.params.values()) for item in selected(items, extent)]


def test_a_full_run_has_every_combination_and_one_on_its_own_sizes():
    full = rows(ITEMS, "full")
    assert full[:6] == [tuple(item.callspec.params.values()) for item in ITEMS[:6]]
    assert [size for size, _, _ in full[6:]] == [3]


def test_a_thin_run_has_every_value():
    thin = rows(ITEMS, "thin")
    assert [size for size, _, _ in thin] == [2] * 3
    assert {a for _, a, _ in thin} == {"x", "y", "z"} and {b for *_, (b,) in thin} == {1, 2}


def test_a_thin_run_has_every_value_of_a_combination():
    items = [Item(rank_group=2, case=Combination(a=a, b=b)) for a in "xyz" for b in (1, 2)]
    assert len(rows(items, "thin")) == 3 and len(rows(items, "full")) == 6


def test_the_rest_has_slow_tests_and_other_sizes_and_no_combinations():
    long, slow, quick = Item("long"), Item("slow"), Item()
    items = [*ITEMS, long, slow, quick]
    thin, rest, full = (selected(items, extent) for extent in ("thin", "rest", "full"))
    assert slow in rest and quick in thin and long in full
    assert [item.callspec.params["rank_group"] for item in rest if item in ITEMS] == [3]
    assert not set(thin) & set(rest) and set(full) - set(thin) - set(rest) == {*full[:6], long} - set(thin)


@pytest.fixture
def group():
    made = RankGroup(2)
    yield made
    made.kill()


def run(group, function, limit=120.0, **arguments):
    return group.run(Case(BODIES, function, arguments), limit)


def kinds(outcomes):
    return [outcome.kind for outcome in outcomes]


def test_a_good_group_is_kept_and_ends_cleanly(group):
    assert kinds(run(group, "passes")) == [PASSED, PASSED]
    pids = dict(group._pids)
    assert kinds(run(group, "says_who_it_is", expected=pids)) == [PASSED, PASSED]
    assert kinds(run(group, "skips")) == [SKIPPED, SKIPPED]
    group.stop()
    assert not alive(pids.values())


def test_a_monkeypatch_ends_with_its_test(group, monkeypatch):
    for _ in range(2):
        assert kinds(run(group, "changes_what_others_see", monkeypatch=monkeypatch)) == [PASSED, PASSED]


def test_a_failure_is_quoted_with_its_variables_and_the_group_replaced(group):
    outcomes = run(group, "fails_on_rank_1")
    assert kinds(outcomes) == [PASSED, FAILED]
    assert "wrong on purpose" in outcomes[1].text and "expected = 5" in outcomes[1].text
    with pytest.raises(pytest.fail.Exception, match="rank 0 passed, rank 1 failed"):
        report(group, outcomes)
    assert kinds(run(group, "passes")) == [PASSED, PASSED]


def test_a_hang_is_shown_with_its_stack(group):
    run(group, "passes")
    pids = list(group._pids.values())
    start = time.monotonic()
    outcomes = run(group, "hangs_on_rank_0", limit=5.0)
    assert kinds(outcomes) == [HUNG, PASSED]
    assert "in hangs_on_rank_0" in outcomes[0].text
    assert time.monotonic() - start < 100
    assert not alive(pids)


def test_waiting_ranks_get_little_time_after_a_failure(group, monkeypatch):
    monkeypatch.setattr(group_module, "GRACE", 1.0)
    start = time.monotonic()
    outcomes = run(group, "fails_on_rank_1_while_0_waits", limit=240.0)
    assert kinds(outcomes) == [HUNG, FAILED]
    assert time.monotonic() - start < 200


def test_a_rank_that_dies_is_named(group, monkeypatch):
    monkeypatch.setattr(group_module, "GRACE", 1.0)
    outcomes = run(group, "dies_on_rank_1")
    assert outcomes[1].kind == DIED
    assert kinds(run(group, "passes")) == [PASSED, PASSED]


def test_ranks_end_with_a_killed_pytest():
    source = f"""
        import os, sys
        from tests.harness.case import Case
        from tests.harness.group import RankGroup
        group = RankGroup(2)
        group.run(Case("{BODIES}", "passes", {{}}), 30)
        job = group._job
        print(job.directory, job.segments, *group._pids.values(), job.process.pid, flush=True)
        group.run(Case("{BODIES}", "hangs_on_rank_0", {{}}), 1000)
    """
    lines = "\n".join(line.strip() for line in source.splitlines())
    controller = subprocess.Popen(
        [sys.executable, "-c", lines], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert controller.stdout is not None
    directory, segments, *words = controller.stdout.readline().split()
    pids = [int(word) for word in words]
    assert len(pids) == 3 and len(alive(pids)) == 3
    controller.kill()
    controller.wait()
    controller.stdout.close()
    deadline = time.monotonic() + 100
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(directory)
    shutil.rmtree(segments)
    assert not alive(pids)


def test_a_script_runs_on_fresh_ranks():
    source = "from mpi4py import MPI; import sys; print('rank', MPI.COMM_WORLD.rank, *sys.argv[1:])"
    result = run_script(2, source, "a")
    assert result.code == 0
    assert "rank 0 a" in result.output and "rank 1 a" in result.output


def test_a_scripts_exit_code_is_reported():
    assert run_script(0, "import sys; sys.exit(3)").code == 3


def test_a_script_that_hangs_is_killed_and_shows_where():
    source = """
        import time
        def never_ends():
            time.sleep(1000)
        never_ends()
    """
    with pytest.raises(AssertionError, match=r"(?s)Still running after 8 s.*in never_ends"):
        run_script(2, source, limit=8.0)


def test_a_process_left_over_is_found_and_killed(monkeypatch):
    monkeypatch.setattr(job_module, "LEFT_LIMIT", 1.0)
    source = """
        import subprocess
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        print("child", child.pid)
    """
    with pytest.raises(AssertionError, match="Left over after exit code 0") as caught:
        run_script(0, source)
    child = int(str(caught.value).rpartition("child ")[2].split()[0])
    assert not alive([child])


def test_the_marker_does_not_leak_into_this_process():
    assert MARKER not in os.environ


def alive(pids):
    """Those of the processes that still run; a zombie does not. One that was killed may take a moment to become a zombie."""
    end = time.monotonic() + 5.0
    while (found := running(pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def running(pids):
    found = []
    for pid in pids:
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] != "Z":
                    found.append(pid)
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found
