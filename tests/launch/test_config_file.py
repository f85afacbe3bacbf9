"""The option --config-file: options in YAML, also as horovodrun's files have them."""

import os

import pytest

from tests.launch.support import runner
from tfddl.launch import run
from tfddl.launch.mpirun import OPEN_MPI, Mpirun

HOROVODS = """
verbose: true
controller: mpi
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 50
  hierarchical_allreduce: false
timeline:
  filename: /t/a.json
  mark_cycles: true
stall_check:
  enabled: true
  warning_time_seconds: 120
  shutdown_time_seconds: 0
"""


@pytest.fixture
def dry_run(tmp_path, monkeypatch):
    """Runs `tfddlrun --dry-run` with a file of this text."""
    monkeypatch.setattr(run, "find_mpirun", lambda: Mpirun("/v/bin/mpirun", OPEN_MPI, "5.0.11"))
    monkeypatch.setattr(os, "environ", {"PATH": os.defpath, "TFDDL_STALL_WARNING": "7"})

    def invoke(text, *arguments):
        file = tmp_path / "config.yaml"
        file.write_text(text)
        return runner().invoke(run.main, ["--dry-run", "--config-file", str(file), *arguments, "true"])

    return invoke


def test_a_file_of_horovodrun(dry_run):
    result = dry_run(HOROVODS, "-np", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(
        "env TFDDL_BUCKET_MB=32 TFDDL_HIERARCHICAL_ALLREDUCE=0 TFDDL_STALL_WARNING=7 TFDDL_STALL_LIMIT=inf "
        "TFDDL_TIMELINE=/t/a.json TFDDL_TIMELINE_MARK_CYCLES=1 /v/bin/mpirun"
    )
    given = {name: value for name, value in os.environ.items() if name.startswith("TFDDL")}
    assert given == {
        "TFDDL_BUCKET_MB": "32",
        "TFDDL_HIERARCHICAL_ALLREDUCE": "0",
        "TFDDL_STALL_WARNING": "7",  # the shell's wins
        "TFDDL_STALL_LIMIT": "inf",
        "TFDDL_TIMELINE": "/t/a.json",
        "TFDDL_TIMELINE_MARK_CYCLES": "1",
    }
    for name in ("controller", "cycle-time-ms"):
        assert (
            f"tfddlrun: {name} in the file of --config-file changes nothing in tfddl; leave it out\n"
            in result.stderr
        )
    assert "stall-check" not in result.stderr
    del os.environ["TFDDL_STALL_WARNING"]
    del os.environ["TFDDL_STALL_LIMIT"]
    text = "stall_check: {enabled: 0, warning_time_seconds: 9}"
    found = dry_run(text, "-np", "2").stdout
    assert " TFDDL_STALL_WARNING=inf " in found and " TFDDL_STALL_LIMIT=inf " in found
    assert "Received: 'nope'" in dry_run("stall_check: {enabled: nope}", "-np", "2").stderr


def test_options_of_tfddlrun(dry_run):
    text = "num-proc: 3\nenv: [A=1, B=2]\nmpi_args: --tag-output\nhorovod: true\nno-keras2-spellings: true\n"
    result = dry_run(text)
    assert result.exit_code == 0, result.output
    assert "A=1 B=2 TFDDL_KERAS2_SPELLINGS=0 " in result.stdout and " -np 3 " in result.stdout
    assert " --tag-output " in result.stdout and "ranks/horovod.py true" in result.stdout
    assert " -np 5 " in dry_run(text, "-np", "5").stdout  # the command line's wins
    assert "TFDDL_BUCKET_MB=32 " in dry_run("fusion-threshold-mb: 0x20\nnum-proc: 1").stdout
    result = dry_run("num-proc: 0x2\nstart-timeout: .inf")
    assert result.exit_code == 0 and " -np 2 " in result.stdout, result.output


def test_the_command_line_wins_over_the_shell_and_the_shell_over_the_file(dry_run):
    """Each variable by itself."""
    text = """
hosts: a,b
env: [A=file, B=file, C=file]
horovod: true
no-keras2-spellings: true
timeline: {filename: /t/file.json, mark_cycles: true}
"""
    shell = {"B": "shell", "C": "shell", "TFDDL_TIMELINE": "/t/shell.json", "TFDDL_KERAS2_SPELLINGS": "1"}
    os.environ.update(shell)
    result = dry_run(text, "-x", "C=line", "-x", "D=line")
    given, passed_on = result.stdout.split(" /v/bin/mpirun ")
    expected = {**shell, "A": "file", "C": "line", "D": "line", "TFDDL_TIMELINE_MARK_CYCLES": "1"}
    assert {name: os.environ[name] for name in expected} == expected
    assert (
        given == "env A=file B=shell C=line TFDDL_TIMELINE=/t/shell.json TFDDL_TIMELINE_MARK_CYCLES=1 "
        "TFDDL_KERAS2_SPELLINGS=1 D=line"
    )
    assert all(f" -x {name} " in passed_on for name in expected)
    del os.environ["TFDDL_KERAS2_SPELLINGS"]
    assert " TFDDL_TIMELINE=/t/line.json " in dry_run(text, "--timeline-filename", "/t/line.json").stdout
    assert os.environ["TFDDL_KERAS2_SPELLINGS"] == "0"


def test_variables_of_horovod_in_the_shell_win_over_the_file(dry_run):
    os.environ.update({"HOROVOD_TIMELINE": "/t/shell.json", "HOROVOD_FUSION_THRESHOLD": str(64 << 20)})
    text = "timeline: {filename: /t/file.json}\nparams: {fusion-threshold-mb: 32}"
    started = dry_run(text, "-np", "2").stdout
    assert started.startswith("env TFDDL_BUCKET_MB=64.0 TFDDL_TIMELINE=/t/shell.json /v/bin/mpirun ")
    assert (
        " TFDDL_TIMELINE=/t/line.json "
        in dry_run(text, "-np", "2", "--timeline-filename", "/t/line.json").stdout
    )
    os.environ["HOROVOD_FUSION_THRESHOLD"] = "64MB"
    assert "HOROVOD_FUSION_THRESHOLD is a whole number" in dry_run(text, "-np", "2").stderr


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("A=1", "A=1"),
        ("{A: 1, B: x y}", "A=1 'B=x y'"),
        ("\n- A: 1\n- B=2", "A=1 B=2"),
        ("{PATH: }", f"PATH={os.defpath}"),
        ("{A: 010, B: 1_000, C: 12:30:45, D: 1.10, E: 0x1F}", "A=010 B=1_000 C=12:30:45 D=1.10 E=0x1F"),
    ],
)
def test_numbers_and_names_with_values(dry_run, env, expected):
    text = f"num-proc: 2\noutput-filename: 7\nverbose: 0\nhorovod: 1\nhosts:\nenv: {env}"
    result = dry_run(text)
    assert result.exit_code == 0, result.output
    assert f" {expected} /v/bin/mpirun " in result.stdout
    assert "ranks/horovod.py true" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "The file has to be YAML"),
        ("- 1", "The file has options and values: write lines such as 'num-proc: 4'. Received: [1]"),
        (
            "timeline: x.json",
            "timeline is a section: write its options below it, indented. Received: 'x.json'",
        ),
        ("num-procs: 4", "num-procs: 4 (did you mean num-proc?)"),
        ("nothing: 4", "nothing is not an option that a file may have: use"),
        ("check-build: true", "check-build is not an option that a file may have"),
        ("verbose: [true]", "config.yaml: verbose takes true or false: write one"),
        ("hosts: yes", "words like 'yes' in quotes. Received: hosts: True"),
        ("hosts: {node1: 4}", "hosts takes one text or number: write one"),
        (
            "env: {A: 010, B: yes, C: [1]}",
            "env takes texts and numbers: write words like 'yes' in quotes. Received: B: True",
        ),
        ("env: [true]", "env takes a list of texts: write one, and words like 'yes' in quotes"),
        ("network-interfaces: ''", "'--network-interfaces': the value is empty"),
        ("", "write lines such as 'num-proc: 4'. Received: an empty file"),
        ("blacklist-cooldown-range: 5", "blacklist-cooldown-range takes a list of 2 numbers: write one"),
        ("num-proc: four", "give a number of processes, from 1 on. Received: four"),
        ("env: {A: 1, B: 2, A: 3}", "A key comes twice: leave one out. Received: A again in line 1"),
        ("np: 2\nenv:\n  A: 1\n  A: 3", "Received: A again in line 4"),
        ("num-proc: 2\nnum_proc: 3", "num-proc is in the file twice: keep one. Received: 2 and 3"),
        ("n: 2\nnp: 3", "np is in the file twice: keep one. Received: '2' and '3'"),
        ("timeline: {filename: a}\ntimeline-filename: b", "timeline-filename is in the file twice"),
        (
            "params: {fusion-threshold-mb: big}",
            "fusion-threshold-mb is a number: write 0 or more. Received: 'big'",
        ),
        (
            "params: {hierarchical-allreduce: 2}",
            "hierarchical-allreduce is true or false: write one of them. Received: 2",
        ),
    ],
)
def test_refuses(dry_run, text, message):
    result = dry_run(text)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
