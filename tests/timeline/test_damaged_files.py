"""`tfddl timeline` says in one line that a file is damaged."""

import json

import pytest
from click.testing import CliRunner

from tests.timeline.support import write
from tfddl import cli

HEADER = {"ph": "M", "name": "tfddl_timeline", "args": {"rank": 0, "size": 1, "host": "h", "clock": "c"}}


def message(path):
    result = CliRunner().invoke(cli.main, ["timeline", str(path)])
    assert result.exit_code == 1 and result.output.startswith(f"Error: '{path}' is "), result.output
    return result.output


@pytest.mark.parametrize(
    ("text", "received"),
    [
        ("", "an empty file"),
        ("[\n5\n", "line 2: '5'"),
        (f"[\n{'[' * 100_000}\n", "line 2: '[[["),
        ('[\n{"name": "tfddl_timeline"}\n', "no 'rank'"),
        (json.dumps(HEADER).join(["[\n", "\n"]).replace('"size": 1', '"size": 1e400'), "infinity"),
        (json.dumps(HEADER).join(["[\n", "\n"]).replace('"size": 1', '"size": 1000001'), "rank 0 of 1000001"),
        (json.dumps(HEADER).join(["[\n", "\n"]).replace('"size": 1', '"size": 0'), "rank 0 of 0"),
    ],
)
def test_no_timeline(tmp_path, text, received):
    (tmp_path / "a.json").write_text(text)
    assert received in message(tmp_path / "a.json").partition("Received: ")[2]


@pytest.mark.parametrize(
    ("event", "received"),
    [
        ({"name": "x"}, "no 'ph'"),
        ({"name": "x", "ph": "B"}, "no 'ts'"),
        ({"name": "x", "ph": "i", "ts": "1"}, "must be real number"),
        ({"name": "x", "ph": "i", "ts": float("nan")}, "the time nan"),
        ({"name": "x", "ph": "B", "ts": 1, "args": {"kind": "allreduce"}}, "no 'process_set'"),
    ],
)
def test_an_event_without_its_parts(tmp_path, event, received):
    (tmp_path / "a.json").write_text(f"[\n{json.dumps(HEADER)},\n{json.dumps(event)}\n]\n")
    assert received in message(tmp_path / "a.json").partition("Received: ")[2]


def test_a_size_with_almost_no_files(tmp_path):
    """One line names all ranks without a file, and no file is looked for."""
    for rank in (0, 2):
        write(tmp_path / "a.json", rank, 1_000_000, [])
    result = CliRunner().invoke(cli.main, ["timeline", str(tmp_path / "a.json")])
    assert result.exit_code == 0
    assert f"ranks 1, 3-999999 have no file: there is no '{tmp_path}/a.rank1.json'\n" in result.output
