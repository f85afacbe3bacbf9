"""`tfddl analyze`: its output, its options, and folders that are not what ranks write."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.flight.builder import WRITTEN, ranks, write
from tfddl import cli

TRAIN = "/home/me/project/train.py"
LIBRARY = "/venv/lib/python3.11/site-packages/"


def invoke(*arguments, **options):
    return CliRunner().invoke(cli.main, ["analyze", *map(str, arguments)], **options)


@pytest.fixture
def folder(tmp_path):
    """Ranks 0 and 1 wait for rank 2, which reads a file."""
    made = ranks(3)
    for each in made:
        for step in range(50, 58):
            each.did("loss", step, ago=113 - step)
        each.at(
            (LIBRARY + "tensorflow/python/eager/execute.py", 53, "quick_execute"),
            (LIBRARY + "tensorflow/python/eager/context.py", 1500, "call_function"),
            (LIBRARY + "keras/src/trainers/trainer.py", 117, "fit"),
            (TRAIN, 60, "<module>"),
        )
    for each in made[:2]:
        each.did("gradient", ago=12.3)
    made[2].at(("/usr/lib/python3.11/socket.py", 5, "read"), (TRAIN, 12, "read_batch"))
    return write(tmp_path / "dump", made)


def test_output(folder):
    result = invoke(folder)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert text.startswith("Ranks part after 'loss' (ticket 57), the last operation that all of them did.")
    for expected in (
        "main thread: me/project/train.py:12 in read_batch.",
        "Written by ranks 0-2: signal SIGUSR1",
        "2 node0 102 'loss' ended 55.9 s",  # the table of ranks
        "ranks 0, 1 rank 2 ",  # the columns of the operations
        "gradient submitted 12.3 s ago - ",
        "57 loss ended",
        "53 loss ended",
        "-> me/project/train.py:12 in read_batch",
        "2 more calls in tensorflow, keras",
    ):
        assert expected in text, expected
    assert "52 loss" not in text and "threading.py" not in text


def test_options(folder):
    assert " 50  loss" in invoke(folder, "--last", 9).output
    only = invoke(folder, "--rank", 2).output
    assert "execute.py" not in only and "read_batch" in only
    full = invoke(folder, "--threads").output
    assert "threading.py:982 in run" in full and "keras/src/trainers/trainer.py:117 in fit" in full
    assert "There is no record of rank 7" in invoke(folder, "--rank", 7).output
    assert "the value is empty: give one, or leave the argument out" in invoke("").output
    result = json.loads(invoke(folder, "--json").output)
    assert result["conclusion"].startswith("Ranks part after 'loss'") and result["size"] == 3
    assert result["partings"][0] | {"age_s": 0} == {
        "kind": "not submitted by all",
        "process_set": {"id": 0, "ranks": [0, 1, 2]},
        "operation": "gradient",
        "ticket": None,
        "age_s": 0,
        "states": {"submitted": [0, 1]},
        "waits_for": [2],
        "also": [],
    }


def test_the_folder_of_the_environment(folder):
    assert "Ranks part after" in invoke(env={"TFDDL_DUMP_DIR": str(folder)}).output


def test_an_older_job_is_left_out(folder):
    write(folder, ranks(9, job="old", written=WRITTEN - 3600)[5:7])
    output = invoke(folder).output
    assert "The records of ranks 5, 6 are of an older job and are left out." in output
    assert "No record" not in output


def test_a_rank_that_is_still_in_init_belongs_to_the_job(folder):
    late = ranks(4, job="", process_sets=[])[3:]
    late[0].file["written"] += 1
    write(folder, late)
    for rank in range(3):
        file = folder / f"rank{rank}.json"
        file.write_text(
            file.read_text().replace('"size": 3', '"size": 4').replace("[0, 1, 2]", "[0, 1, 2, 3]")
        )
    output = " ".join(invoke(folder).output.split())
    assert "Rank 3 wrote before hvd.init() had ended." in output and "ranks 2, 3 have not." in output
    assert "Rank 3 submitted nothing yet." in output


def test_broken_files_are_named_and_left_out(folder):
    (folder / "rank1.json").write_text('{"version": 1, "job"')
    (folder / "rank2.json").write_text('{"version": 1, "now_us": 5}')
    text = " ".join(invoke(folder).output.split())
    assert "No record of ranks 1, 2" in text
    assert f"{folder}/rank1.json' is not the JSON of a flight record" in text and "no 'job'" in text


def test_mistakes(tmp_path):
    def message(path):
        result = invoke(path)
        assert result.exit_code == 1 and result.output.startswith("Error: "), result.output
        return result.output

    missing = tmp_path / "missing"
    assert f"'{missing}' does not exist" in message(missing) and "SIGUSR1" in message(missing)
    file = tmp_path / "x.txt"
    file.write_text("")
    assert "is not a folder" in message(file)
    assert "no rank<N>.json" in message(tmp_path) and "Received: x.txt." in message(tmp_path)
    for content, expected in (
        ('{"version": 2}', "of version 1. Received: version 2"),
        ("[]", "Received: list"),
        ('{"version": 1}', "Received: no 'now_us'"),
        ('{"version": 1, "now_us": "x"}', "invalid literal"),
        ('{"version": 1, "now_us": 1e400}', "infinity"),
        ("[" * 100_000, "is not the JSON of a flight record"),
    ):
        (tmp_path / "rank0.json").write_text(content)
        assert expected in message(tmp_path) and "rank0.json" in message(tmp_path)


def test_a_thousand_ranks_fit_on_a_page(tmp_path):
    made = ranks(1000)
    for each in made:
        each.did("loss", 57, ago=13).at((TRAIN, 30 + each.rank % 2, "step"))
        if each.rank != 777:
            each.did("gradient", ago=12)
    result = invoke(write(tmp_path, made))
    assert (
        "ranks 0-776, 778-999" in result.output
        and "ranks 0, 2, 4, 6, 8, 10, 12, 14, ... (500 ranks)" in result.output
    )
    assert result.exit_code == 0 and len(result.output.split("\n")) < 60


def test_text_in_brackets_is_no_markup(tmp_path):
    made = [each.did("[bold]x[/bold]", 3).at((TRAIN, 3, "[red]")) for each in ranks(1)]
    output = invoke(write(tmp_path, made)).output
    assert output.count("[bold]x[/bold]") == 3 and "[red]" in output


def test_the_conclusion_needs_no_rich_and_no_tensorflow(folder):
    code = (
        "import sys; sys.modules['rich'] = None; import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'rich' else find(name, *a)\n"
        f"from tfddl.cli import main; main(['analyze', {str(folder)!r}], standalone_mode=False)\n"
        "assert 'tensorflow' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Ranks part after") and "pip install rich" in result.stderr


def test_help_teaches():
    text = invoke("--help").output
    for word in ("tfddl analyze tfddl-dump", "USR1", "submitted", "TFDDL_DUMP_DIR", "--threads"):
        assert word in text, word
