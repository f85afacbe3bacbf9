"""The ends of jobs: exit codes, the last message, and no processes left."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import harness
from tests.harness.job import REPOSITORY
from tests.launch.support import LIMIT_S, run_script, running, tfddlrun
from tfddl.launch import rank_shim
from tfddl.launch import scratch as scratch_module
from tfddl.launch.scratch import scratch, tcp_settings

WITH_MPI = """
from mpi4py import MPI
world = MPI.COMM_WORLD
"""
WAIT_FOR_ALL = WITH_MPI + "world.Barrier(); time.sleep(500)\n"
# As tfddl.init() arranges it: an uncaught exception is printed, then ends the job.
ABORT_ON_EXCEPTION = """
def hook(kind, value, trace):
    sys.__excepthook__(kind, value, trace)
    sys.stderr.flush()
    world.Abort(1)
sys.excepthook = hook
"""
CHATTER_ON_SIGTERM = """
signal.signal(signal.SIGTERM, lambda *_: (print('chatter', file=sys.stderr), sys.exit(0)))
"""
SOON = 200.0
"""Seconds, mostly for a busy machine: less than half of the time that ranks would run if they were not ended."""


def test_success():
    job = run_script(WITH_MPI + "print('sum', world.allreduce(rank))", 3, "--start-timeout", "inf")
    assert (job.code, job.stderr) == (0, "")
    assert sorted(job.stdout.splitlines()) == ["[0] sum 3", "[1] sum 3", "[2] sum 3"]


@pytest.mark.parametrize("mpi", ["", WITH_MPI], ids=["before MPI_Init", "after MPI_Init"])
def test_exit_code_of_the_failed_rank(mpi):
    job = run_script(f"{mpi}\nif rank == 1: os._exit(3)\n{WAIT_FOR_ALL}")
    assert job.code == 3
    assert job.last_line == "tfddlrun: rank 1 exited with code 3"
    assert job.seconds < SOON


@pytest.mark.parametrize("mpi", ["", WITH_MPI], ids=["before MPI_Init", "after MPI_Init"])
def test_killed_rank(mpi):
    job = run_script(f"{mpi}\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n{WAIT_FOR_ALL}")
    assert job.code == 128 + signal.SIGKILL
    assert job.last_line == "tfddlrun: rank 1 was killed by signal 9 (SIGKILL)"
    assert job.seconds < SOON


def test_crashed_rank_shows_what_it_said_last():
    job = run_script("sys.stderr.write('check failed: x > 0\\n'); sys.stderr.flush(); os.abort()", 2)
    assert job.code == 128 + signal.SIGABRT
    assert job.stderr.strip().splitlines()[-2:] == [
        "check failed: x > 0",
        job.last_line,
    ]
    assert job.last_line.endswith("was killed by signal 6 (SIGABRT)")


@pytest.mark.parametrize(
    "before", ["", WITH_MPI + ABORT_ON_EXCEPTION], ids=["before MPI_Init", "after MPI_Init"]
)
def test_traceback_is_the_last_thing_printed(before):
    job = run_script(
        f"{before}\nif rank == 1: raise ValueError('no such\\nfile')\n{CHATTER_ON_SIGTERM}{WAIT_FOR_ALL}"
    )
    assert job.code == 1
    words = job.stderr[job.stderr.index("tfddlrun: rank 1") :].splitlines()
    # MPICH kills the rank that aborts before it has an exit code.
    assert words[0] in (
        "tfddlrun: rank 1 exited with code 1:",
        "tfddlrun: rank 1 ended the job by MPI_Abort:",
    )
    assert words[1] == "Traceback (most recent call last):"
    assert words[-2:] == ["ValueError: no such", "file"]
    assert "MPI_ABORT" not in job.stderr and "Abort(" not in "\n".join(words)
    assert job.seconds < SOON


def test_verbose_keeps_what_mpirun_says():
    job = run_script(WITH_MPI + "if rank == 1: world.Abort(5)\n" + WAIT_FOR_ALL, 2, "--verbose")
    assert job.code == 5
    assert "MPI_ABORT was invoked" in job.stderr or "Abort(5)" in job.stderr
    assert "rank_shim.py" in job.stderr.splitlines()[0]


def test_one_of_many_fails_first():
    job = run_script(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(rank + 10))\n"
        "if rank != 2: time.sleep(500)\n"
        "sys.exit(rank + 10)",
        4,
    )
    assert job.code == 12
    assert job.last_line == "tfddlrun: rank 2 exited with code 12"


def test_ranks_that_do_not_start_in_time(tmp_path):
    """A stand-in for mpirun whose ranks never start."""
    (tmp_path / "mpirun").write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'mpirun (Open MPI) 5.0.11' && exit\necho 'no route to node2' >&2\nsleep 100\n"
    )
    (tmp_path / "mpirun").chmod(0o755)
    code = (
        "from tfddl.launch import mpirun, run; "
        f"mpirun._beside_python = lambda: [{str(tmp_path)!r}]; run.main()"
    )
    command = [sys.executable, "-c", code, "-np", "3", "--start-timeout", "2", "true"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert ended.returncode == 1
    assert ended.stderr == (
        "tfddlrun: 3 of 3 ranks, first rank 0, had not started after 2 s: look whether their hosts answer to ssh, or give "
        "--start-timeout more seconds; mpirun said:\nno route to node2\n"
    )


def test_an_option_that_mpirun_refuses():
    job = tfddlrun("-np", "2", "--mpi-args", "--nonsense", "true")
    assert job.code != 0
    assert "before it started a rank; mpirun said:\n" in job.stderr
    assert job.last_line.endswith("Received: --mpi-args='--nonsense'")


def test_a_program_that_imports_horovod():
    """The last line says how to start it; with one rank the traceback is in its output already."""
    for ranks in (1, 2):
        job = tfddlrun("-np", str(ranks), sys.executable, "-S", "-c", "import horovod.tensorflow")
        assert job.code == 1
        assert job.last_line == (
            "tfddlrun: for a program that imports horovod give --horovod; it needs no Horovod then: "
            f"tfddlrun --horovod -np {ranks} {sys.executable} -S -c 'import horovod.tensorflow'"
        )


def test_another_python_on_the_path(tmp_path):
    """`python` is not the Python of tfddlrun, and has no tfddl."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    job = tfddlrun("-np", "2", "python", "-c", "import tfddl", env={"PATH": path})
    assert job.code == 1
    assert job.last_line == (
        f"tfddlrun: python is {tmp_path}/python, which has no tfddl; tfddlrun itself runs in {sys.executable}. Activate "
        f"that environment, or name its Python: tfddlrun -np 2 {sys.executable} -c 'import tfddl'"
    )
    job = tfddlrun("-np", "1", "python", "-c", "import no_such_module", env={"PATH": path})
    assert job.last_line == "ModuleNotFoundError: No module named 'no_such_module'"


def test_a_job_of_one_rank():
    """mpirun reads none of the program's arguments, though they are its options too."""
    arguments = ["--map-by", "slot", "--bind-to", "core", ":", "-np", "2", "-mca", "foo"]
    code = "import sys; print('a\\rb', sys.argv[1:]); raise OSError('gone')"
    job = tfddlrun("-np", "1", sys.executable, "-c", code, *arguments)
    assert job.code == 1
    assert job.stdout == f"a\rb {arguments}\n"
    assert job.last_line == "OSError: gone"
    assert "[0]" not in job.stderr
    assert job.stderr.count("Traceback") == 1


def test_command_that_does_not_exist():
    job = tfddlrun("-np", "2", "./no-such-program")
    assert job.code == 127
    assert (
        "cannot run './no-such-program': No such file or directory; give the path of a program" in job.stderr
    )


def test_a_spelling_of_keras_2():
    error = "Argument(s) not recognized: {'lr': 0.002}"
    job = tfddlrun("-np", "1", sys.executable, "-S", "-c", f"raise ValueError({error!r})")
    assert job.code == 1
    assert job.stderr.splitlines()[-1].startswith("tfddlrun: Keras 3 has learning_rate= in place of lr=:")


def test_script_without_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").touch()
    job = tfddlrun("-np", "1", "there.py")
    assert (
        "cannot run 'there.py': it is no program; start a Python script by Python: python the" in job.stderr
    )
    job = tfddlrun("-np", "1", "train.py")
    assert job.code == 127
    assert (
        "cannot run 'train.py': No such file or directory; start a Python script by Python: python train"
        in (job.stderr)
    )


def test_rank_that_leaves_early_without_finalize():
    job = run_script(WITH_MPI + "if rank == 1: os._exit(0)\n" + WAIT_FOR_ALL)
    assert job.code != 0
    assert "rank 1 ended while others still worked" in job.stderr
    assert job.seconds < SOON


def test_rank_that_leaves_before_others_that_wait_in_init():
    """Rank 0 holds the socket of a rank in hvd.init(), without MPI, so that mpirun cannot notice."""
    job = run_script(
        "import socket\n"
        "if rank == 1: sys.exit()\n"
        "names = [os.environ[name] for name in ('TFDDL_JOB', 'PMIX_NAMESPACE') if name in os.environ]\n"
        "present = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "present.bind('\\0tfddl/' + '/'.join(names) + f'/init/0/{os.getpid()}/0/0')\n"
        "time.sleep(500)"
    )
    assert job.code == 1
    assert job.last_line == "tfddlrun: rank 1 ended with exit code 0 while rank 0 waited for it in hvd.init()"
    assert job.seconds < SOON


def test_rank_that_ignores_sigterm(tmp_path):
    job = run_script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"if rank == 1: wait_for('{tmp_path}/deaf'); sys.exit(4)\n"
        f"open('{tmp_path}/deaf', 'x')\ntime.sleep(500)"
    )
    assert job.code == 4
    assert rank_shim.GRACE_S < job.seconds < SOON


def test_rank_may_end_in_good_order_on_sigterm(tmp_path):
    job = run_script(
        "def last(*_): print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, last)\n"
        f"if rank == 1: wait_for('{tmp_path}/ready'); sys.exit(4)\n"
        f"open('{tmp_path}/ready', 'x')\ntime.sleep(500)"
    )
    assert (job.code, job.stdout) == (4, "[0] saved\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_tfddlrun_end_all_ranks(number):
    rank = (
        "import signal, sys, time\n"
        "def last(*_): time.sleep(0.3); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, last)\n"
        "print('up', flush=True); time.sleep(500)\n"
    )
    prefix = ["env", "--default-signal=HUP"]  # the tests may run under nohup
    with running(["-np", "2", sys.executable, "-c", rank], prefix=prefix) as job:
        for _ in range(2):
            assert b"up" in job.process.stdout.readline()
        job.process.send_signal(number)
        job.process.send_signal(number)  # as a terminal and tfddl.run() send Ctrl-C: one wish
        ended = job.finish()
    assert ended.code == 128 + number
    assert ended.last_line == f"tfddlrun: stopped by signal {int(number)} ({number.name})"
    assert ended.stdout.count("saved") == 2


def test_nohup_outlives_its_terminal(tmp_path):
    rank = (
        "import os, sys, time; print('up', flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "print('alive', flush=True)"
    )
    arguments = ["-np", "2", sys.executable, "-c", rank, str(tmp_path / "hung up")]
    with running(arguments, prefix=["nohup"]) as job:
        for _ in range(2):
            assert b"up" in job.process.stdout.readline()
        job.process.send_signal(signal.SIGHUP)
        (tmp_path / "hung up").touch()
        ended = job.finish()
    assert (ended.code, ended.stdout.count("alive")) == (0, 2), ended.stderr


def test_sigusr1_reaches_the_ranks_that_take_it():
    """Rank 0 takes the signal in a child of its own, as Python does below a shell script. Rank 1 would die of it."""
    rank = (
        "import os, signal, subprocess, sys, time\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == '1':\n"
        "    print('up', flush=True); time.sleep(1); print('alive', flush=True)\n"
        "elif len(sys.argv) < 2: subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'child'])\n"
        "else:\n"
        "    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('taken', flush=True)))\n"
        "    print('up', flush=True); time.sleep(500)\n"
    )
    with running(["-np", "2", sys.executable, "-c", rank]) as job:
        for _ in range(2):
            assert b"up" in job.process.stdout.readline()
        job.process.send_signal(signal.SIGUSR1)
        ended = job.finish()
    assert ended.code == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[0] taken", "[1] alive"]


def test_second_ctrl_c_does_not_wait():
    """A busy machine may sometimes take as long as the grace period, but not each time."""
    assert any(seconds_with_a_second_ctrl_c() < rank_shim.GRACE_S for _ in range(3))


def seconds_with_a_second_ctrl_c():
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(500)"
    with running(["-np", "2", sys.executable, "-c", code]) as job:
        for _ in range(2):
            job.process.stdout.readline()
        started = time.monotonic()
        job.process.send_signal(signal.SIGINT)
        time.sleep(1)
        job.process.send_signal(signal.SIGINT)
        assert job.finish().code == 130
        return time.monotonic() - started


@pytest.fixture
def tmpdir_of_the_job(tmp_path, monkeypatch):
    """TMPDIR of the jobs of a test, which has to be empty after them."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    assert not list(tmp_path.iterdir())


def segments(job) -> set[str]:
    """The files in /dev/shm that the processes of a job hold."""
    found = set()
    for pid in job.processes():
        with contextlib.suppress(OSError):
            found |= set(re.findall(r"/dev/shm/\S+", Path(f"/proc/{pid}/maps").read_text()))
    return found


SLEEPS = (
    WITH_MPI
    + """
import subprocess
subprocess.Popen(['sleep', '500'])
print('up', flush=True)
time.sleep(500)
"""
)


def test_nothing_survives_a_killed_tfddlrun(tmpdir_of_the_job):
    with running(["-np", "2", sys.executable, "-c", "import time" + SLEEPS]) as job:
        for _ in range(2):
            job.process.stdout.readline()
        shared = segments(job)
        job.process.kill()
        job.process.communicate()
        assert not job.leftovers(SOON)
        assert not [path for path in shared if os.path.exists(path)]


def test_nothing_survives_a_killed_mpirun(tmpdir_of_the_job):
    with running(["-np", "2", sys.executable, "-c", "import time" + SLEEPS]) as job:
        for _ in range(2):
            job.process.stdout.readline()
        shared = segments(job)
        with open(f"/proc/{job.process.pid}/task/{job.process.pid}/children") as children:
            os.kill(int(children.read().split()[0]), signal.SIGKILL)
        ended = job.finish()
    assert not [path for path in shared if os.path.exists(path)]
    assert ended.code == 128 + signal.SIGKILL
    assert "tfddlrun: mpirun was killed by signal 9 (SIGKILL)" in ended.stderr


def test_settings_of_the_user_stay(tmp_path, monkeypatch):
    chosen = "OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_orte_tmpdir_base"
    for name in chosen:
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text("btl_tcp_if_exclude = docker0\n")
    environment = os.environ | {"HOME": str(tmp_path)}
    with scratch(environment, "/usr/bin/mpirun") as (settings, directories):
        assert (settings, directories) == ({}, [])


def test_messages_between_hosts_are_sends(tmp_path):
    """With and without tfddlrun, unless the user says otherwise."""
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text("btl_tcp_flags = 1\n")
    assert list(tcp_settings({"HOME": str(tmp_path)}, "/usr/bin/mpirun")) == [
        "OMPI_MCA_btl_tcp_max_send_size"
    ]
    names = "OMPI_MCA_btl_tcp_flags", "OMPI_MCA_btl_tcp_max_send_size"
    script = f"import os; import tfddl as hvd; hvd.init(); print([os.environ[each] for each in {names}], flush=True)"
    for launcher in ([sys.executable, "-m", "tfddl.launch.run", "-np", "1"], None):
        result = harness.run_script(
            1, script, launcher=launcher, environment={names[1]: "1000000"}, fresh=True
        )
        assert "['9', '1000000']" in result.output, result.output


def test_directories_of_open_mpi_are_removed_or_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch_module, "_SHARED_MEMORY", tmp_path / "none")
    with scratch({}, "/usr/bin/mpirun") as (settings, directories):
        (session,) = directories
        assert settings["PRTE_MCA_prte_tmpdir_base"] == session and os.path.isdir(session)
        assert settings["OMPI_MCA_btl_tcp_if_include"] == "lo"
        assert "OMPI_MCA_btl_sm_backing_directory" not in settings
    assert not os.path.exists(session)


def test_processes_that_a_rank_leaves_behind_are_ended():
    job = run_script("import subprocess; subprocess.Popen(['sleep', '500'], start_new_session=True)")
    assert job.code == 0
    assert job.seconds < SOON


def test_broken_pipe_ends_the_job():
    with running(
        ["-np", "2", sys.executable, "-uc", "import time\nwhile True: print('x'); time.sleep(.05)"]
    ) as job:
        job.process.stdout.readline()
        job.process.stdout.close()
        job.process.wait(LIMIT_S)
        assert job.process.returncode == 128 + signal.SIGPIPE
        assert job.process.stderr.read() == b""


def test_ranks_find_stdin_at_its_end():
    """Ranks neither wait for input nor read the input of the next command."""
    with running(
        ["-np", "2", sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], stdin=-1
    ) as job:
        assert job.finish().stdout in ("[0] ''\n[1] ''\n", "[1] ''\n[0] ''\n")
