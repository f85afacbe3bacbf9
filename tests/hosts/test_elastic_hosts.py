"""Elastic jobs whose hosts come and go, on two hosts of one machine."""

import itertools
import re
import sys

import pytest

from tests.harness import long, slow

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run", "--elastic"]
# `plan` says what happens after which step; a job that waits for its hosts makes no steps.
PROGRAM = """
import os, signal, socket, sys, time
import keras
import numpy as np
import tfddl as hvd

hvd.init()
keras.utils.set_random_seed(1 + hvd.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
x = np.ones((8, 4), "float32")
state = hvd.elastic.KerasState(model, step=0, sizes=[])
host = socket.gethostname()

def names(text):
    with open(HOSTS + ".new", "w") as file:
        file.write(text)
    os.rename(HOSTS + ".new", HOSTS)

def parent(process):
    return int(open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[1])

@hvd.elastic.run
def train(state):
    print(f"rank {hvd.rank()} of {hvd.size()} on {host} begins with step {state.step}", flush=True)
    begun = state.step
    while state.step < 12:
        model.train_on_batch(x, x[:, :1])
        state.step += 1
        state.sizes = [*state.sizes, hvd.size()]
        PLAN(begun)
        state.commit()

train(state)
weights = [each.tolist() for each in model.get_weights()]
assert hvd.allgather_object(weights) == [weights] * hvd.size()
print("done", state.step, state.sizes, int(model.optimizer.iterations), flush=True)
"""


def program(plan, hosts=""):
    return PROGRAM.replace("        PLAN(begun)", plan).replace("HOSTS", repr(str(hosts)))


def begun(result):
    """Rank, size and host of each rank of each start: starts in the order of the output, ranks in theirs."""
    found = re.findall(r"rank (\d) of (\d) on host(.) begins with step (\d+)", result.output)
    starts = []
    while found:
        size = int(found[0][1])
        starts += sorted(found[:size])
        found = found[size:]
    return starts


def check_steps(sizes, result):
    """Rank 0 has made steps in these sizes (a pattern) one after the other, and the optimizer has counted all of them."""
    found = re.search(rf"done 12 \[({sizes})\] (\d+)", result.output)
    assert found and len(found[1].split(", ")) == int(found[2]), result.output


@pytest.mark.slow
def test_a_script_adds_a_host_and_takes_it_away(on_hosts, tmp_path):
    hosts = tmp_path / "discovered"
    hosts.write_text("hostA\n")
    plan = """
        if hvd.rank() == 0 and state.step == 2:
            names("hostA\\nhostB:1\\n")
        if hvd.rank() == 0 and hvd.size() == 2:
            names("hostA\\n")
        if hvd.size() == 2 or not begun:
            state.step = min(state.step, 9)  # until the hosts have changed
            time.sleep(0.1)
    """
    command = ["--host-discovery-script", f"cat {hosts}", "--max-np", "3"]
    result = on_hosts(program(plan, hosts), *TFDDLRUN, *command)
    assert result.code == 0, result.output
    assert [each[:3] for each in begun(result)] == [
        ("0", "1", "A"),
        ("0", "2", "A"),
        ("1", "2", "B"),
        ("0", "1", "A"),
    ]
    assert "tfddlrun: hosts changed (hostB:1 is new); starting again with 2 processes" in result.output
    assert "tfddlrun: hosts changed (hostB is gone); starting again with 1 process" in result.output
    (sizes,) = re.findall(r"done 12 \[(.*)\]", result.output)
    assert [size for size, _ in itertools.groupby(sizes.split(", "))] == ["1", "2", "1"]


@pytest.mark.parametrize(
    "to", [slow("parent(os.getsid(0))"), long("os.getpid()"), long("parent(parent(os.getsid(0)))")]
)
def test_a_host_leaves(on_hosts, to):
    """SIGTERM goes to the supervisor of a rank, to the rank, or to mpirun's child, once for each rank of the host."""
    plan = f"""
        if host == "hostB" and state.step == 3:
            os.kill({to}, signal.SIGTERM)
        if hvd.size() == 3:
            state.step = min(state.step, 9)  # until the host has gone
            time.sleep(0.1)
    """
    result = on_hosts(program(plan), *TFDDLRUN, "-np", "3", "-H", "hostA:1,hostB:2")
    assert result.code == 0, result.output
    starts = begun(result)
    assert [each[:3] for each in starts[:3]] == [("0", "3", "A"), ("1", "3", "B"), ("2", "3", "B")]
    assert [each[:3] for each in starts[3:]] == [("0", "1", "A")] and 3 <= int(starts[3][3]) < 12
    assert "tfddlrun: hosts changed (hostB leaves); starting again with 1 process" in result.output
    check_steps(r"3, 3, 3, .*1", result)
    assert "lost" not in result.output


@pytest.mark.long
def test_a_host_that_has_failed_comes_back(on_hosts):
    """Its commits, which are older than those of the other host, do not count."""
    plan = """
        if host == "hostB" and state.step == 3:
            state.commit()
            os.kill(os.getpid(), signal.SIGKILL)
        if hvd.size() == 1:
            state.step = min(state.step, 9)  # until the other host is back
            time.sleep(0.1)
    """
    command = ["--host-discovery-script", "printf 'hostA\\nhostB\\n'"]
    result = on_hosts(program(plan), *TFDDLRUN, *command)
    assert result.code == 0, result.output
    assert re.search(r"tfddlrun: hostB has failed and is set aside for [23] s", result.output)
    assert (
        "tfddlrun: rank 1 on hostB of 2 was lost; starting again with 1 process, restart 1" in result.output
    )
    assert "tfddlrun: hosts changed (hostB:1 is new); starting again with 2 processes" in result.output
    assert [each[:3] for each in begun(result)][2:] == [("0", "1", "A"), ("0", "2", "A"), ("1", "2", "B")]
    assert result.output.count("done 12 ") == 2


@pytest.mark.slow
def test_a_host_shuts_down(on_hosts):
    """mpirun's daemon gets SIGTERM, and ends all processes of its host without a failure."""
    plan = """
        if hvd.rank() == 2 and state.step == 3:
            os.kill(parent(parent(parent(os.getsid(0)))), signal.SIGTERM)
        if hvd.size() == 3:
            state.step = min(state.step, 9)  # until the host has gone
            time.sleep(0.1)
    """
    result = on_hosts(program(plan), *TFDDLRUN, "-np", "3", "-H", "hostA:1,hostB:2")
    assert result.code == 0, result.output
    lost = "tfddlrun: ranks 1 on hostB, 2 on hostB of 3 were lost; starting again with 1 process, restart 1"
    assert lost in result.output, result.output
    check_steps(r"3, .*1", result)
