"""Jobs whose hosts change on this machine: more slots, SIGTERM, failures. Most of them without TensorFlow."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import run_script
from tests.launch.support import running, tfddlrun, wait_until
from tfddl.launch.mpirun import can_survive, find_mpirun

PAGE = Path(__file__).parents[2] / "docs/guides/elastic-hosts.md"
# A rank that hands over when tfddlrun asks for it, as `tfddl.elastic.hand_over` does.
PROGRAM = '''
import os, signal, sys, time
from tfddl.launch import rank_shim

rank, size = (int(os.environ.get(f"OMPI_COMM_WORLD_{n}", os.environ.get(f"PMI_{n}"))) for n in ("RANK", "SIZE"))
hosts = sys.argv[1]

def path(kind, session=None):
    return rank_shim.rank_file(os.environ["TFDDL_COMMITS"], os.environ["TFDDL_JOB"], kind, session)

def names(text):
    with open(hosts + ".new", "w") as file:
        file.write(text)
    os.rename(hosts + ".new", hosts)

def wait_for_runs(number):
    """Until tfddlrun has taken the hosts of number - 1 runs of its script that have begun after now."""
    end = os.path.getsize(hosts + ".runs") + number
    while os.path.getsize(hosts + ".runs") < end:
        time.sleep(0.01)

def hand_over():
    while not os.path.exists(path(rank_shim.HAND_OVER_FILE)):
        time.sleep(0.01)
    open(path(rank_shim.HANDED_OVER_FILE, os.getsid(0)), "w").close()
    sys.exit(0)

print(f"rank {rank} of {size}", flush=True)
'''


@pytest.fixture
def arguments(tmp_path):
    """Makes the command line of a job whose script names `localhost:1` at first."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")

    def of(program, *options):
        script = ["--elastic", "--host-discovery-script", f"echo >> {hosts}.runs; cat {hosts}", *options]
        return [*script, sys.executable, "-c", PROGRAM + program, str(hosts)]

    return of


def test_more_slots(arguments, tmp_path):
    """The files of --output-filename grow with the job, and have the digits of the largest job from the start."""
    program = """
if size == 1:
    names("localhost:2")
    hand_over()
"""
    ended = tfddlrun(*arguments(program, "--max-np", "11", "--output-filename", str(tmp_path / "out")))
    assert ended.code == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "[0] rank 0 of 1",
        "[0] rank 0 of 2",
        "[1] rank 1 of 2",
    ]
    assert ended.stderr.splitlines() == [
        "tfddlrun: 1 process (1 on localhost), by --host-discovery-script",
        "tfddlrun: hosts have changed (localhost:2 was localhost:1); the job starts again after its next commit",
        "tfddlrun: hosts changed (localhost:2 was localhost:1); starting again with 2 processes",
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank.00", "rank.01"]
    assert (tmp_path / "out" / "rank.01" / "stdout").read_text() == "rank 1 of 2\n"


def test_a_job_that_ends_without_another_commit(arguments):
    program = """
names("localhost:2")
while not os.path.exists(path(rank_shim.HAND_OVER_FILE)):
    time.sleep(0.01)
"""
    ended = tfddlrun(*arguments(program))
    assert ended.code == 0, ended.stderr
    assert "starting again" not in ended.stderr


def test_a_host_that_fails_is_set_aside(arguments, tmp_path):
    """The script fails meanwhile, which is said once; the job goes on with the hosts that it named last."""
    program = f"""
if not os.path.exists("{tmp_path}/again"):
    os.rename(hosts, hosts + ".old")
    open("{tmp_path}/again", "w").close()
    wait_for_runs(3)
    os.rename(hosts + ".old", hosts)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = tfddlrun(*arguments(program))
    assert ended.code == 0, ended.stderr
    lines = ended.stderr.splitlines()
    assert ended.stderr.count("The script of --host-discovery-script has failed") == 1
    assert "tfddlrun: rank 0 was killed by signal 9 (SIGKILL)" in lines
    (seconds,) = re.findall(r"tfddlrun: localhost has failed and is set aside for (\d) s", ended.stderr)
    assert seconds in ("2", "3")
    assert "tfddlrun: rank 0 of 1 was lost; starting again with 1 process, restart 1" in lines
    assert ended.last_line == "tfddlrun: the job has ended well, though rank 0 of 1 was lost"


def test_too_few_hosts_after_a_loss(arguments):
    program = "names(''); os.kill(os.getpid(), signal.SIGKILL)"
    ended = tfddlrun(*arguments(program, "--elastic-timeout", "1"))
    assert ended.code == 137
    assert "tfddlrun: waiting 1 s at most for more hosts: 0 processes would be left" in ended.stderr
    assert (
        ended.last_line
        == "tfddlrun: rank 0 of 1 was lost; 0 processes would be left, and --min-np asks for 1"
    )


def test_too_few_hosts_after_a_hand_over(arguments):
    """The job has not come to its end."""
    program = """
names("localhost:2")
while not os.path.exists(path(rank_shim.HAND_OVER_FILE)):
    time.sleep(0.01)
names("")
wait_for_runs(2)
hand_over()
"""
    ended = tfddlrun(*arguments(program, "--elastic-timeout", "0"))
    assert ended.code == 1
    assert ended.last_line == (
        "tfddlrun: hosts changed (localhost is gone); 0 processes would be left, and --min-np asks for 1"
    )


def test_a_signal_while_tfddlrun_waits_for_hosts(arguments):
    with running(arguments("names(''); os.kill(os.getpid(), signal.SIGKILL)")) as job:
        job.read_errors_until("waiting 600 s at most")
        job.process.send_signal(signal.SIGTERM)
        assert job.finish().code == 137


def test_a_signal_ends_the_script(arguments, tmp_path):
    """Also one that hangs."""
    command = arguments("time.sleep(500)")
    slow, hangs = tmp_path / "slow", tmp_path / "hangs"
    command[2] = f"echo localhost; test -e {slow} && touch {hangs} && sleep 500; touch {slow}"
    with running(command) as job:
        wait_until(hangs.exists)
        job.process.send_signal(signal.SIGINT)
        assert job.finish().code == 130


@pytest.mark.skipif(not can_survive(find_mpirun()), reason="only Open MPI 5 has ULFM")
def test_a_host_leaves_while_the_others_recover_from_a_loss(tmp_path):
    """The new start has neither the host nor the lost rank. A loss before all have started ends the start at once."""
    program = """
if size == 3:
    while not os.path.exists(hosts + ("/lost" if rank < 2 else "/die")):
        time.sleep(0.01)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    os.makedirs(os.environ["TFDDL_COMMITS"], exist_ok=True)
    with open(path(rank_shim.GOES_ON_FILE, os.getsid(0)), "w") as file:
        file.write("2")
    hand_over()
"""
    options = ["--elastic", "--verbose", "-np", "3", "-H", "localhost:1,127.0.0.1:2"]
    with running([*options, sys.executable, "-c", PROGRAM + program, str(tmp_path)]) as job:
        started = [job.process.stdout.readline() for _ in range(3)]
        assert sorted(started) == [b"[%d] rank %d of 3\n" % (rank, rank) for rank in range(3)]
        (tmp_path / "die").touch()
        job.read_errors_until("rank 2 ended with status -9")
        (tmp_path / "lost").touch()
        ended = job.finish()
    assert (ended.code, ended.stdout) == (0, "[0] rank 0 of 1\n"), ended.stderr
    assert re.findall(r"tfddlrun: (?:rank 2 of|hosts|the job).*", ended.stderr) == [
        "tfddlrun: rank 2 of 3 was lost; the job goes on with 2 processes",
        "tfddlrun: hosts have changed (localhost leaves); the job starts again after its next commit",
        "tfddlrun: hosts changed (localhost leaves); starting again with 1 process",
        "tfddlrun: the job has ended well, though rank 2 of 3 was lost",
    ]


def test_a_host_leaves_while_tfddlrun_ends_the_ranks_after_a_loss(tmp_path):
    program = """
def notice(*_):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(0.5)
    os._exit(0)

if size == 2 and not os.path.exists(hosts + str(rank)):
    signal.signal(signal.SIGTERM, notice)
    open(hosts + str(rank), "w").close()
    while rank == 0 or not os.path.exists(hosts + "0"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    options = ["--elastic", "--replace", "-H", "localhost:1,127.0.0.1:1"]
    ended = tfddlrun(*options, sys.executable, "-c", PROGRAM + program, str(tmp_path / "up"))
    assert ended.code == 0, ended.stderr
    assert "rank 1 of 2 was lost; starting again with 1 process, restart 1" in ended.stderr


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="needs pgrep")
def test_the_processes_that_get_the_notice():
    """The command of the documentation finds the two processes above a rank, but neither workers of the rank nor mpirun."""
    (pattern,) = re.findall("pkill -TERM -f '(.*)'", PAGE.read_text())
    program = f"""
import subprocess

def parent(process):
    return int(open(f"/proc/{{process}}/stat").read().rpartition(")")[2].split()[1])

worker = os.fork() or time.sleep(60)
mpirun = parent(parent(os.getppid()))
found = subprocess.run(["pgrep", "-f", {pattern!r}], capture_output=True, text=True).stdout.split()
print(*[str(each) in found for each in (worker, os.getpid(), os.getppid(), parent(os.getppid()), mpirun, parent(mpirun))])
os.kill(worker, signal.SIGKILL)
"""
    ended = tfddlrun("--elastic", "-np", "1", sys.executable, "-c", PROGRAM + program, "")
    assert ended.stdout.splitlines()[1] == "[0] False False True True False False", ended


SUPERVISOR = """
import glob, os, socket, sys, threading, time
from tfddl.launch import rank_shim

rank_shim.LEAVE_S = 0.3
tfddlrun, connection = socket.socketpair()
stub, held_by_stub = os.pipe()

def terminate():
    while not glob.glob(os.environ["TFDDL_COMMITS"] + "/j-catches-*"):
        time.sleep(0.01)
    tfddlrun.send(rank_shim.TERMINATE)

if len(sys.argv) > 2:
    threading.Thread(target=terminate).start()
settings = {"token": "", "job": "j", "scratch": [], "terminal": [False, False]}
rank_shim.Supervisor(connection, stub, settings).run(["sh", "-c", sys.argv[1]])
connection.close()
data = b"".join(iter(lambda: tfddlrun.recv(9999), b""))
while data:
    kind, length = rank_shim.HEADER.unpack_from(data)
    end = rank_shim.HEADER.size + length
    print(kind.decode(), data[rank_shim.HEADER.size:end].decode())
    data = data[end:]
"""


def supervised(folder, *arguments):
    """The messages of a supervisor after its hello."""
    variables = {"OMPI_COMM_WORLD_RANK": "0", "TFDDL_COMMITS": str(folder)}
    command = [sys.executable, "-c", SUPERVISOR, *arguments]
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    return ended.stdout.splitlines()[1:]


def test_a_host_that_leaves_without_a_commit_is_a_loss(tmp_path):
    lines = supervised(tmp_path, "kill -TERM $PPID; exec sleep 50")
    assert lines[0] == "V "
    assert '"status": -15, "stopped": false' in lines[1] and len(lines) == 2


def test_a_rank_that_hears_sigterm_is_killed_at_once(tmp_path):
    """Else tfddlrun would wait for its grace time. The rank does not take the signal for a notice."""
    note = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/j-catches-$$"
    program = f"trap 'kill -TERM $PPID' TERM; {note}; while :; do :; done"
    lines = supervised(tmp_path, program, "terminate")
    assert "V " not in lines
    assert '"status": -9, "stopped": true' in lines[-1]


TRAINING = """
import os, sys, time
import keras
import numpy as np
import tfddl as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
keras.utils.set_random_seed(1 + rank)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
x = np.ones((8, 4), "float32")
state = hvd.elastic.KerasState(model, step=0, sizes=[], caught=0)
state.register_reset_callbacks([lambda: print(f"reset to {hvd.size()}", flush=True)])

@hvd.elastic.run
def train(state):
    while state.step < 12:
        model.train_on_batch(x, x[:, :1])
        state.step += 1
        state.sizes = [*state.sizes, size]
        if state.step == 8 and rank == 0:
            open(sys.argv[1] + ".new", "w").write("localhost:2")
            os.rename(sys.argv[1] + ".new", sys.argv[1])
        if size == 1 and state.step > 8:
            state.step = 8  # until the hosts have changed
            time.sleep(0.1)
        try:
            state.commit()
        except Exception:
            if state.caught:
                state.sizes = [*state.sizes, "check"]
                state.check_host_updates()
            state.caught += 1

train(state)
weights = [each.tolist() for each in model.get_weights()]
assert hvd.allgather_object(weights) == [weights] * size
state.commit()  # outside of `train`: kept, and no more
print("done", state.step, state.sizes[-6:], int(model.optimizer.iterations) == state.sizes.index("check") + 4, flush=True)
"""


@pytest.mark.slow
def test_training_goes_on_with_more_slots(tmp_path):
    """Even though the program has caught the exception, which is said; the state after the check counts."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost")
    launcher = [
        sys.executable,
        "-m",
        "tfddl.launch.run",
        "--elastic",
        "--host-discovery-script",
        f"cat {hosts}",
    ]
    result = run_script(2, TRAINING, str(hosts), launcher=launcher)
    assert result.code == 0, result.output
    assert result.output.count("done 12 [1, 'check', 2, 2, 2, 2] True") == 2
    assert result.output.count("reset to 2") == 2
    assert "let HostsUpdatedInterrupt pass through to hvd.elastic.run" in result.output
