"""Commands that ranks cannot start, since they have neither a terminal nor stdin."""

import os

import pytest
from click.testing import CliRunner

from tfddl.launch import run
from tfddl.launch.ranks import program


@pytest.mark.parametrize(
    "command",
    [
        "python",
        "/usr/bin/python3.11 -u",
        "python -Wignore -u --",
        "python -",
        "python -u - 1",
        "python /dev/stdin",
        "sh",
        "bash -ex",
        "/bin/bash -s 1",
        "bash -",
        "zsh /dev/stdin",
        "python /dev/fd/0",
        "bash --norc",
        "bash --login --",
        "bash -o pipefail",
    ],
)
@pytest.mark.parametrize("mode", [[], ["--auto"]])
def test_a_program_from_stdin(command, mode):
    result = CliRunner().invoke(run.main, [*mode, "-np", "2", "--dry-run", *command.split()])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert f"write the program to a file, or use -c. Received: {command}" in said


@pytest.mark.parametrize("command", ["python -m pdb train.py", "python -umpdb -m package"])
def test_pdb(command):
    result = CliRunner().invoke(run.main, ["-np", "2", "--dry-run", *command.split()])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "PYTHONBREAKPOINT=remote_pdb.set_trace python train.py" in said and f"Received: {command}" in said


@pytest.mark.parametrize(
    "command",
    [
        "python train.py -",
        "python -i",
        "python -V",
        "python --version",
        "python -u --help-env",
        "python -c pass",
        "python -m package",
        "python -m pdb -c continue train.py",
        "python -m pdb --command=continue train.py",
        "bash --norc -o pipefail train.sh",
        "python -W ignore train.py",
        "sh train.sh -",
        "bash -c true",
        "bash -lc true",
        "bash -eu train.sh -s",
        "bash --version",
        "bash -i",
        "cat",
        "python-config",
    ],
)
def test_commands_that_start(command):
    program.check(command.split())


def test_a_folder_that_was_removed(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    result = CliRunner().invoke(run.main, ["-np", "2", "true"])
    assert result.exit_code == 2
    assert "does not exist any more: change to another one (cd)" in " ".join(result.output.split())
