"""Jobs across two hosts, which are two sets of namespaces on this machine."""

import json
import re
import sys

import pytest

from tests.harness import long
from tests.harness.mpirun import mpirun_path

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run"]
MPIRUN = [
    mpirun_path(),
    "--allow-run-as-root",
    "--bind-to",
    "none",
    "-x",
    "PYTHONPATH",
    "-x",
    "TFDDL_CACHE_DIR",
]
LAUNCHERS = pytest.mark.parametrize("launcher", [TFDDLRUN, long(MPIRUN)], ids=["tfddlrun", "mpirun"])

WHO = """
import socket
import keras
import numpy as np
import tensorflow as tf
import tfddl as hvd

hvd.init()
local = f"local {hvd.local_rank()} of {hvd.local_size()}"
cross = f"cross {hvd.cross_rank()} of {hvd.cross_size()}"
print(f"rank {hvd.rank()} on {socket.gethostname()}: {local}, {cross}, {hvd.is_homogeneous()}")
"""

COLLECTIVES = """
size, rank = hvd.size(), hvd.rank()
for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64):
    for length in (3, 300_000):  # Small ones take another way than large ones.
        x = tf.cast(tf.range(length) % 50 + rank, dtype)
        base = np.arange(length) % 50
        total = hvd.allreduce(x, op=hvd.Sum, name=f"sum.{dtype.name}.{length}")
        np.testing.assert_array_equal(tf.cast(total, tf.int64), base * size + size * (size - 1) // 2)
        last = hvd.broadcast(x, root_rank=size - 1, name=f"last.{dtype.name}.{length}")
        np.testing.assert_array_equal(tf.cast(last, tf.int64), base + size - 1)
        mine = x[: length - rank]
        all_of_them = hvd.allgather(mine, name=f"gather.{dtype.name}.{length}")
        expected = np.concatenate([base[: length - other] + other for other in range(size)])
        np.testing.assert_array_equal(tf.cast(all_of_them, tf.int64), expected)
"""

OTHERS = """
size, rank = hvd.size(), hvd.rank()
for rows in (size, 20_000 * size + 1):
    for op, expected in ((hvd.Min, 1), (hvd.Max, size), (hvd.Product, np.prod(range(1, size + 1)))):
        np.testing.assert_array_equal(hvd.allreduce(tf.fill([rows], rank + 1.0), op=op), np.full(rows, expected))
    np.testing.assert_allclose(hvd.allreduce(tf.fill([rows], rank + 1.0)), np.full(rows, (size + 1) / 2))
    np.testing.assert_allclose(hvd.allreduce(tf.ones([rows]), op=hvd.Adasum), np.ones(rows), rtol=1e-6)
    for total in hvd.grouped_allreduce([tf.ones([rows]), tf.ones([3])], op=hvd.Sum):
        np.testing.assert_array_equal(total, np.full(total.shape, size))
    part = hvd.reducescatter(tf.range(rows), op=hvd.Sum).numpy()
    np.testing.assert_array_equal(part, size * np.array_split(np.arange(rows), size)[rank])
    np.testing.assert_array_equal(hvd.grouped_reducescatter([tf.range(rows)], op=hvd.Sum)[0], part)
    for gathered in hvd.grouped_allgather([tf.fill([rows], rank), tf.fill([rank], rank)]):
        assert (np.diff(gathered) >= 0).all() and set(gathered.numpy()) >= set(range(1, size))
    even = rows // size * size
    mixed = hvd.alltoall(tf.range(even) + 7 * rank).numpy()
    mine = np.split(np.arange(even), size)[rank]
    np.testing.assert_array_equal(mixed, np.concatenate([mine + 7 * other for other in range(size)]))
    received, counts = hvd.alltoall(tf.fill([rows], rank), splits=[rows - size + 1] + [1] * (size - 1))
    assert counts.numpy().tolist() == [rows - size + 1 if rank == 0 else 1] * size
    np.testing.assert_array_equal(received, np.repeat(range(size), counts))
hvd.barrier()
assert hvd.broadcast_object({"from": rank}, size - 1) == {"from": size - 1}
for step in range(rank):
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == size - 1 - step
assert hvd.join() == size - 1
print("done")
"""

FIT = """
keras.utils.set_random_seed(rank)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(300, "relu"), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-2)), "mse")
x = np.random.default_rng(rank).normal(size=(64, 8))
history = model.fit(x, x.sum(1, keepdims=True), epochs=3, verbose=0,
                    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
assert history.history["loss"][-1] < history.history["loss"][0]
weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
everyone = hvd.allgather(weights[None], name="weights").numpy()
assert (everyone == everyone[0]).all()
print("done")
"""


@LAUNCHERS
def test_two_and_two(on_hosts, launcher):
    result = on_hosts(WHO + COLLECTIVES + FIT, *launcher, "-np", "4", "-H", "hostA:2,hostB:2")
    assert result.code == 0, result.output
    assert result.output.count("done") == 4
    for rank in range(4):
        local, cross = rank % 2, rank // 2
        line = f"rank {rank} on host{'AB'[cross]}: local {local} of 2, cross {cross} of 2, True"
        assert line in result.output


@pytest.mark.long
def test_two_and_one(on_hosts):
    result = on_hosts(
        WHO + COLLECTIVES, *TFDDLRUN, "--network-interfaces", "cable", "-np", "3", "-H", "hostA:2,hostB:1"
    )
    assert result.code == 0, result.output
    assert "rank 0 on hostA: local 0 of 2, cross 0 of 2, False" in result.output
    assert "rank 1 on hostA: local 1 of 2, cross 0 of 1, False" in result.output
    assert "rank 2 on hostB: local 0 of 1, cross 1 of 2, False" in result.output


@pytest.mark.slow
def test_the_other_collectives(on_hosts):
    result = on_hosts(WHO + OTHERS, *TFDDLRUN, "-np", "4", "-H", "hostA:2,hostB:2")
    assert result.code == 0, result.output
    assert result.output.count("done") == 4


TRAFFIC = """
import json
from pathlib import Path
from tfddl.gradients import quantized

def traffic():
    lines = Path("/proc/net/dev").read_text().splitlines()
    fields = next(line.split() for line in lines if line.strip().startswith("cable:"))
    return np.array([int(fields[1]), int(fields[9])])

def counted(name, function, expected, atol=0):
    hvd.barrier()
    before = traffic()
    result = function()
    hvd.barrier()
    counts[name] = ((traffic() - before) / 16e6).round(3).tolist()
    np.testing.assert_allclose(tf.cast(result, "float32"), expected, rtol=1e-3, atol=atol)

rank, size, counts = hvd.rank(), hvd.size(), {}
rows = 4_000_000 // 240 // size * size
x = np.arange(rows * 240, dtype="float32").reshape(rows, 240) % 1000
mine = x[rank * (rows // size) : (rank + 1) * (rows // size)]
total = x * size + 0.25 * size * (size - 1)
half = tf.cast(x * 0.25, "float16")
counted("allreduce", lambda: hvd.allreduce(x + 0.5 * rank, op=hvd.Sum), total)
counted("float16", lambda: hvd.allreduce(tf.concat([half, half], 0)), np.concatenate([x, x]) * 0.25)
counted("broadcast", lambda: hvd.broadcast(x + rank, root_rank=1), x + 1)
counted("allgather", lambda: hvd.allgather(mine), x)
counted("reducescatter", lambda: hvd.reducescatter(x + 0.5 * rank, op=hvd.Sum),
        total[rank * (rows // size) : (rank + 1) * (rows // size)])
int8 = lambda: quantized.mean([tf.constant(x + 0.5 * rank)], "int8", hvd.global_process_set, 1)[0]
counted("int8", int8, total / size, atol=2 * 1001 / 127)
if hvd.local_rank() == 0:
    print("counts", json.dumps([hvd.local_size() / size, counts]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "hosts", ["hostA:2,hostB:2", pytest.param("hostA:3,hostB:1", marks=pytest.mark.long)]
)
def test_bytes_between_hosts(on_hosts, hosts):
    """The counts are the bytes that each host has received and sent, in parts of 16 MB."""
    result = on_hosts(WHO + TRAFFIC, *TFDDLRUN, "-np", "4", "-H", hosts)
    assert result.code == 0, result.output
    found = [json.loads(line) for line in re.findall(r"counts (.*)", result.output)]
    assert len(found) == 2
    for part, counts in found:
        bounds = {  # an allreduce: 2 (H - 1) / H; the rest: what others need of this host, or it of them
            "allreduce": (1, 1),
            "float16": (1, 1),
            "broadcast": (1, 1),
            "allgather": (1 - part, part),
            "reducescatter": (part, 1 - part),
        }
        if part == 1 / 2:  # 260 bytes instead of 1,024, half of them in each of two steps
            bounds["int8"] = (260 / 1024, 260 / 1024)
        for name, least in bounds.items():
            for count, bound in zip(counts[name], least, strict=True):
                assert count <= 1.05 * 1.05 * bound + 0.01, (name, counts)  # 5 %, and headers


@pytest.mark.long
def test_without_regard_to_hosts(on_hosts):
    """Each host sends as many times more as it has ranks."""
    result = on_hosts(
        WHO + TRAFFIC, *TFDDLRUN, "-np", "4", "-H", "hostA:2,hostB:2", TFDDL_HIERARCHICAL_ALLREDUCE="0"
    )
    assert result.code == 0, result.output
    for line in re.findall(r"counts (.*)", result.output):
        _, counts = json.loads(line)
        assert counts["allreduce"][1] > 1.9 and counts["allgather"][1] > 0.9


@pytest.mark.slow
def test_a_wrong_wish_is_quoted(on_hosts):
    result = on_hosts(WHO, *TFDDLRUN, "-np", "2", "-H", "hostA:1,hostB:1", TFDDL_HIERARCHICAL_ALLREDUCE="yes")
    assert result.code != 0
    assert "TFDDL_HIERARCHICAL_ALLREDUCE must be 0 or 1: set one of them. Received: 'yes'" in result.output


SETS = """
for ranks in ([0, 2], [2, 3], [0, 1, 3]):
    one = hvd.add_process_set(ranks)
    for length in (3, 300_000):
        if one.included():
            total = hvd.allreduce(tf.fill([length], float(hvd.rank())), op=hvd.Sum, process_set=one)
            np.testing.assert_array_equal(total, np.full(length, sum(ranks), "float32"))
            assert hvd.allgather_object(hvd.rank(), process_set=one) == ranks
print("done")
"""


@pytest.mark.slow
def test_sets_within_and_across_hosts(on_hosts):
    result = on_hosts(WHO + SETS, *TFDDLRUN, "-np", "4", "-H", "hostA:2,hostB:2")
    assert result.code == 0, result.output
    assert result.output.count("done") == 4


TROUBLE = """
import os, subprocess, time

# On this network no frame passes for two seconds, then a host is stopped for two seconds. The loop runs for 0.2 s before.
CUT = "sleep 0.2; ip link set cable down; sleep 2; ip link set cable up"
STOP = f"sleep 0.2; kill -STOP {os.getpid()}; sleep 2; kill -CONT {os.getpid()}"
size, rank = hvd.size(), hvd.rank()

def collectives(step):
    for length in (3, 300_000):
        x = np.arange(length) % 1000 + step
        total = hvd.allreduce(tf.constant(x + rank), op=hvd.Sum, name=f"sum.{length}")
        np.testing.assert_array_equal(total, x * size + size * (size - 1) // 2)

collectives(0)  # The first calls of a process take longer.
for name, culprit, trouble in (("cut", 0, CUT), ("stop", size - 1, STOP)):
    ends, under_way = [time.monotonic()], True
    hvd.barrier()  # No trouble begins before each rank has looked at its clock.
    running = subprocess.Popen(["sh", "-ec", trouble]) if rank == culprit else None
    while under_way:
        collectives(len(ends))
        mine = running is not None and running.poll() is None
        under_way = bool(hvd.allreduce(tf.constant(int(mine)), op=hvd.Max, name="under way"))
        ends.append(time.monotonic())
    assert running is None or running.returncode == 0
    # The clock runs from one end to the next, since the trouble may begin at any place in the loop. A rank may end one step
    # in the two seconds, if it had received the numbers before. It waits in the other part, which lasts at least a second.
    assert np.diff(ends).max() > 0.9, "the trouble has to hit a collective"
    print("done", name)
"""


@pytest.mark.slow
def test_a_cable_drops_and_a_host_stops(on_hosts):
    """For less than any limit: the collectives go on afterwards, with right numbers."""
    result = on_hosts(WHO + TROUBLE, *TFDDLRUN, "-np", "3", "-H", "hostA:2,hostB:1")
    assert result.code == 0, result.output
    assert result.output.count("done cut") == result.output.count("done stop") == 3


KILLED = """
import os, signal, threading
if hvd.rank() == 2:
    os.kill(os.getpid(), signal.SIGKILL)
hvd.allreduce(tf.ones(1000), name="waits")
print("not reached")
"""


@pytest.mark.slow
@LAUNCHERS
def test_a_rank_on_the_other_host_is_killed(on_hosts, launcher):
    result = on_hosts(WHO + KILLED, *launcher, "-np", "3", "-H", "hostA:2,hostB:1")
    assert result.code != 0
    assert "not reached" not in result.output
    if launcher is TFDDLRUN:
        killed = r"tfddlrun: rank 2 on hostB was killed by signal 9 \(SIGKILL\)$"
    else:
        killed = r"rank 2 with PID \d+ on node hostB exited on signal 9"
    words = " ".join(result.output.split())
    # The MPI of another rank may see the closed connection first, and ends the job without saying whose it was.
    assert re.search(rf"{killed}|An error occurred in Socket closed", words), result.output


def test_a_host_that_cannot_be_reached_is_named(on_hosts):
    result = on_hosts("", *TFDDLRUN, "-np", "2", "-H", "hostA:1,hostC:1")
    assert result.code != 0
    assert "Could not resolve hostname hostC" in result.output.rpartition("tfddlrun:")[2], result.output


def test_hosts_of_a_scheduler(on_hosts, tmp_path):
    """The hosts of a job of PBS, which mpirun does not know; with a variable for all ranks, and their output in files."""
    (tmp_path / "nodes").write_text("hostA\nhostB\nhostB\n")
    script = "import os, socket\nprint(os.environ['GREETING'], socket.gethostname())\n"
    options = ["-x", "GREETING", "--output-filename", str(tmp_path / "out")]
    result = on_hosts(script, *TFDDLRUN, *options, PBS_NODEFILE=str(tmp_path / "nodes"), GREETING="hello")
    assert result.code == 0, result.output
    assert "tfddlrun: 3 processes (1 on hostA, 2 on hostB), by the tasks of PBS" in result.output
    written = [(tmp_path / "out" / f"rank.{rank}" / "stdout").read_text() for rank in range(3)]
    assert written == ["hello hostA\n", "hello hostB\n", "hello hostB\n"]


ELASTIC = """
import os, signal
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
x = np.ones((8, 4), "float32")
state = hvd.elastic.KerasState(model, step=0)

def kill_the_host():
    # All of its processes but the one that holds its namespaces: MPI's daemon, and the supervisors of the ranks.
    # No supervisor may end this rank before all are dead. This rank dies with its own supervisor, the last.
    mine, own, supervisor = os.readlink("/proc/self/ns/uts"), os.getpid(), os.getppid()
    doomed = []
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            same = os.readlink(f"/proc/{number}/ns/uts") == mine
            holds = b"--hold" in open(f"/proc/{number}/cmdline", "rb").read()
        except OSError:
            continue
        if same and not holds and int(number) not in (own, supervisor):
            doomed.append(int(number))
    doomed.append(supervisor)
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        for number in doomed:
            os.kill(number, sent)
    signal.pause()

@hvd.elastic.run
def train(state):
    print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()} begins with step {state.step}", flush=True)
    while state.step < 8:
        model.train_on_batch(x, x[:, :1])
        state.step += 1
        if state.step == 6 and hvd.rank() == LOST and hvd.size() == 4:
            LOSS()
        if state.step % 2 == 0:
            state.commit()

train(state)
print("done", state.step, len({str(each) for each in hvd.allgather_object([w.tolist() for w in model.get_weights()])}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "rank", "left"),
    [long("os.kill(os.getpid(), signal.SIGKILL)#", 2, ["A", "A", "B"]), ("kill_the_host", 3, ["A", "A"])],
    ids=["rank", "host"],
)
def test_an_elastic_job_loses(on_hosts, loss, rank, left):
    script = WHO + ELASTIC.replace("LOST", str(rank)).replace("LOSS()", f"{loss}()")
    result = on_hosts(script, *TFDDLRUN, "--elastic", "-np", "4", "-H", "10.77.0.1:2,hostB:2")
    assert result.code == 0, result.output
    begun = re.findall(rf"rank (\d) of {len(left)} on host(.) begins with step ([46])\b", result.output)
    places = sorted(each[:2] for each in begun)
    assert places == [(str(number), host) for number, host in enumerate(left)], result.output
    assert len({step for *_, step in begun}) == 1  # 6 if the loss came after the others' commit
    assert result.output.count("done 8 1") == len(left)
    lost = f"rank {rank} on hostB of 4 was" if len(left) == 3 else "ranks 2 on hostB, 3 on hostB of 4 were"
    assert f"tfddlrun: {lost} lost; starting again with {len(left)} processes, restart 1" in result.output


RUN = """
import tfddl

def where():
    import os, socket
    return socket.gethostname(), os.environ["DATA"], os.environ.get("TF_NUM_INTRAOP_THREADS")

found = tfddl.run(where, np=2, env={"DATA": "a b"})
assert found == [("hostA", "a b", None), ("hostB", "a b", None)], found
"""


def test_a_function(on_hosts, tmp_path):
    """Its variables reach both hosts of an allocation, and nothing divides the cores of one host by the ranks of both."""
    (tmp_path / "nodes").write_text("hostA\nhostB\n")
    result = on_hosts(RUN, PBS_NODEFILE=str(tmp_path / "nodes"), TF_NUM_INTRAOP_THREADS=None)
    assert result.code == 0, result.output
