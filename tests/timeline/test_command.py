"""`tfddl timeline`, on files with known numbers."""

import json

import pytest
from click.testing import CliRunner

from tests.timeline.support import write
from tfddl import cli
from tfddl.timeline import summary
from tfddl.timeline.align import collectives, read_job
from tfddl.timeline.trace import TraceError, read

MS = 1000
SKEW = 700_000
"""Microseconds by which the clock of rank 1's host is ahead."""


@pytest.fixture
def path(tmp_path):
    """Ten steps of two buckets on two ranks; rank 1 submits 3 ms later, except in the last two steps."""
    requests = {0: [], 1: []}
    for step in range(10):
        begin = 100 * MS * step
        late = 3 * MS if step < 8 else -2 * MS
        for rank, delay in ((0, 0), (1, late + SKEW)):
            for bucket, after in ((0, 10 * MS), (1, 20 * MS)):
                submit = begin + after + delay
                agreed = begin + after + max(late, 0) + (SKEW if rank else 0)
                arguments = {
                    "step": str(step),
                    "bucket": bucket + 1,
                    "buckets": 2,
                    "bytes": 4000 * (1 + bucket),
                }
                requests[rank].append(
                    {"name": f"fit/gradients#{bucket}", "ticket": 2 * step + bucket, "submit": submit}
                    | {"agreed": agreed, "done": agreed + 5 * MS, "args": arguments}
                )
    for rank, made in requests.items():
        write(tmp_path / "trace.json", rank, 2, made)
    return tmp_path / "trace.json"


def invoke(*arguments):
    return CliRunner().invoke(cli.main, ["timeline", *map(str, arguments)])


def test_clocks_are_aligned(path):
    traces, notes = read_job(path)
    assert notes == []
    for both in collectives(traces).values():
        assert both[0].agreed == both[1].agreed


def test_ranks_of_one_clock_stay_as_they_are(path):
    for rank in (0, 1):
        file = path if rank == 0 else path.with_name("trace.rank1.json")
        file.write_text(file.read_text().replace(f"clock{rank}", "one"))
    (_, other), _ = read_job(path)
    assert other.requests[0].submitted == SKEW + 13 * MS


def test_numbers(path):
    traces, _ = read_job(path)
    assert [
        (line["collectives"], line["MB"], line["s waiting"], line["s moving"])
        for line in summary.ranks(traces)
    ] == [
        (20, 0.12, pytest.approx(0.048), pytest.approx(0.1)),  # 16 waits of 3 ms
        (20, 0.12, pytest.approx(0.008), pytest.approx(0.1)),  # 4 waits of 2 ms
    ]
    first, second = summary.lateness(traces)
    assert (first["last"], first["of"], first["later by, median ms"]) == (4, 20, 2)
    assert (second["last"], second["of"], second["later by, median ms"]) == (16, 20, 3)
    assert second["s in all"] == pytest.approx(0.048)
    steps = summary.exposed(traces, top=5)
    assert [(line["step"], line["rank"], line["steps"]) for line in steps] == [
        ("fit/gradients (2 collectives)", 0, 10),
        ("fit/gradients (2 collectives)", 1, 10),
    ]
    # Rank 0 waits 3 ms for rank 1 in eight of ten steps. The transfer of 5 ms remains for both.
    assert [line["exposed, median ms"] for line in steps] == [8, 5]
    assert steps[1]["p90 ms"] == 7  # in two steps rank 1 waits
    assert steps[0]["step, median ms"] == 100
    assert summary.conclusion(traces) == (
        "Communication adds at most 8% to a step of fit/gradients (2 collectives) (8 of 100 ms on rank 0): most of it moves "
        "data; docs/guides/tuning.md says what helps."
    )
    names = summary.names(traces, top=1)
    assert len(names) == 1 and names[0]["times"] == 10
    assert (names[0]["waiting, median ms"], names[0]["moving, median ms"]) == (3, 5)  # of the rank that waits
    assert names[0]["s in all"] == pytest.approx(0.001 * (8 * 8 + 2 * 7))


def test_buckets_that_wait_at_the_same_time_count_once(tmp_path):
    for rank, late in ((0, 0), (1, 50 * MS)):
        requests = [
            {"name": f"b#{i}", "ticket": i, "submit": i * MS + late, "agreed": 60 * MS, "done": 61 * MS}
            for i in (0, 1, 2)
        ]
        write(tmp_path / "a.json", rank, 2, requests, clock="one")
    late = summary.lateness(read_job(tmp_path / "a.json")[0])[1]
    assert (late["last"], late["later by, median ms"]) == (3, 50) and late["s in all"] == pytest.approx(0.052)


def test_what_waits_at_the_end(tmp_path):
    """Rank 0 has waited since 1 s, and reported it at 9 s."""
    done = {"name": "x", "ticket": 0, "submit": 0, "agreed": 1, "done": 2}
    for rank in (0, 1):
        write(tmp_path / "a.json", rank, 2, [done], clock="one")
    path = tmp_path / "a.json"
    begin = {"ph": "B", "pid": 0, "tid": 5, "ts": 1e6}
    asked = {**begin, "name": "x", "args": {"kind": "allreduce", "process_set": "all ranks"}}
    still = {"ph": "i", "pid": 0, "tid": 0, "ts": 9e6, "name": "in flight"}
    lines = path.read_text().split("\n")[:-3]
    path.write_text(
        "\n".join(
            [*lines, *(f"{json.dumps(e)}," for e in (asked, {**begin, "name": "wait for peers"}, still))]
        )
    )
    assert (
        "rank 0 ends with 'x' (waiting for peers for 8 s; rank 1 had not submitted it) in flight"
        in invoke(path).output
    )


def test_errors_are_quoted(tmp_path):
    path = tmp_path / "a.json"
    write(path, 0, 1, [{"name": "x", "ticket": 0, "submit": 0, "agreed": 1, "done": 2}])
    path.write_text(path.read_text().replace('"args": {}', '"args": {"error": "shapes differ"}'))
    assert "rank 0: 'x' failed: shapes differ" in invoke(path).output


@pytest.mark.parametrize("clock", ["same", "other"])
def test_a_file_of_an_earlier_run_is_left_out(clock, tmp_path):
    path = tmp_path / "a.json"
    for rank, step, begin in ((0, 10 * MS, 0), (1, 2000 * MS, -(10**8))):
        requests = [
            {
                "name": "x",
                "ticket": i,
                "submit": begin + i * step,
                "agreed": begin + i * step + 1,
                "done": begin + i * step + 2,
            }
            for i in range(9)
        ]
        write(path, rank, 2, requests, clock="one" if clock == "same" else f"clock{rank}")
    result = invoke(path)
    assert "1 of 2 ranks" in result.output and "rank 1 is left out: '" in result.output


def test_a_file_of_an_earlier_run_on_more_ranks_is_left_out(path):
    write(path, 1, 3, [])
    result = invoke(path)
    assert result.exit_code == 0 and "1 of 2 ranks" in result.output
    assert "rank 1 is left out: '" in result.output and "is of another run, on 3 ranks" in result.output


def test_a_loop_in_one_graph_makes_steps():
    def request(name, submitted):
        arguments = {"step": "7", "process_set": "all ranks"}
        return summary.Request(0, name, arguments, submitted, submitted, submitted, submitted + 1)

    requests = [request(name, 10 * turn + offset) for turn in range(3) for offset, name in enumerate("ab")]
    found = [[(r.name, r.submitted) for r in step] for step in summary.steps(requests)]
    assert sorted(found) == [[("a", 10 * turn), ("b", 10 * turn + 1)] for turn in range(3)]


def test_what_is_no_training_step(tmp_path):
    """An allgather, and an allreduce that ran once."""
    times = {"submit": 0, "agreed": 1, "done": 2}
    requests = [
        {"name": f"n{step}", "ticket": step, **times, "args": {"step": str(step), "kind": kind}}
        for step, kind in enumerate(["allgather", "allreduce"])
    ]
    write(
        tmp_path / "a.json",
        0,
        1,
        [requests[0], requests[0] | {"args": {"step": "9", "kind": "allgather"}}, requests[1]],
    )
    traces, _ = read_job(tmp_path / "a.json")
    assert len(traces[0].requests) == 3 and summary.exposed(traces, top=9) == []
    result = invoke(tmp_path / "a.json")
    assert result.exit_code == 0 and "exposed" not in result.output and "adds" not in result.output


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 2), (1, 3), None], 3), ([(5, 6), (0, 1)], 2), ([(0, 9), (1, 2), (3, 4)], 9)],
)
def test_covered(intervals, length):
    assert summary.covered(intervals) == length


def test_command(path, tmp_path):
    merged, picture = tmp_path / "merged.json", tmp_path / "picture.png"
    result = invoke(path, "-o", merged, "--plot", picture)
    assert result.exit_code == 0, result.output
    for text in (
        "2 of 2 ranks",
        "host1",
        "late",
        "exposed, median ms",
        "fit/gradients (2 collectives)",
        "fit/gradients#1",
    ):
        assert text in result.output, text
    events = json.loads(merged.read_text())
    assert {event["pid"] for event in events} == {0, 1}
    starts = sorted((event["ts"], event["pid"]) for event in events if event.get("name") == "fit/gradients#0")
    assert starts[:2] == [(10 * MS, 0), (13 * MS, 1)]
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_missing_and_a_cut_file(path):
    other = path.with_name("trace.rank1.json")
    whole = other.read_text()
    other.write_text(whole[: whole.rindex('"ph": "E"')])
    assert len(read(other).open()) == 1
    assert "rank 1: the file has no end" in invoke(path).output
    other.unlink()
    assert "rank 1 has no file: there is no '" in invoke(path).output


def test_without_a_common_collective(path):
    other = path.with_name("trace.rank1.json")
    other.write_text(other.read_text().replace('"all ranks"', '"process set 1 [1]"'))
    result = invoke(path)
    assert result.exit_code == 0, result.output
    assert "rank 1 has no collective in common with rank 0: its clock is not aligned" in result.output


def test_mistakes(path, tmp_path):
    other = path.with_name("trace.rank1.json")
    result = invoke(other)
    assert result.exit_code == 1 and "Give the file of rank 0" in result.output
    write(path, 0, 2, [])
    path.replace(other)
    write(path, 0, 2, [])
    assert "Received: a file of rank 0" in invoke(path).output
    something = tmp_path / "something.json"
    something.write_text("{}")
    assert (
        "is not a timeline of tfddl: pass a file of hvd.start_timeline. Received: a file that begins with '{}'"
        in invoke(something).output
    )
    something.write_text("[\n{}\n]\n")
    assert "is not the timeline of one rank" in invoke(something).output
    something.write_text("[\n{broken\n]\n")
    with pytest.raises(TraceError, match="line 2"):
        read(something)
    assert invoke(tmp_path / "nothing").exit_code == 2
    assert "The name is empty: give one, or leave the option out." in invoke(path, "-o", "").output
    assert (
        "A picture is .png or .svg: choose a name that ends so. Received: p.txt"
        in invoke(path, "--plot", "p.txt").output
    )


def test_help_teaches():
    text = invoke("--help").output
    assert all(word in text for word in ("exposed", "late", "hvd.start_timeline", "--plot", "rank1.json"))


def test_a_recording_is_not_replaced(path):
    other = path.with_name("trace.rank1.json")
    before = path.read_text(), other.read_text()
    for output in (path, other):
        result = invoke(path, "-o", output)
        assert result.exit_code == 2 and f"Received: {output}" in " ".join(result.output.split())
    assert (path.read_text(), other.read_text()) == before


def test_names_in_brackets_are_no_markup(tmp_path):
    path = tmp_path / "trace[x].json"
    names = ("loss[train]", "a[/b]")
    done = {"submit": 0, "agreed": 1, "done": 2}
    write(path, 0, 1, [{"name": name, "ticket": ticket, **done} for ticket, name in enumerate(names)])
    result = invoke(path)
    assert result.exit_code == 0 and all(text in result.output for text in ("trace[x].json:", *names))
