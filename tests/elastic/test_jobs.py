"""Jobs of `tfddlrun --elastic` that lose ranks."""

import functools
import json
import re
import sys
from pathlib import Path

import pytest

from tests.harness import run_script
from tests.launch import support as launch

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run"]
# Each start trains the steps of its batches, commits after every fourth, and may kill ranks; `plan` says when and whom.
PROGRAM = """
import json, os, signal, sys, time
import keras
import numpy as np
import tensorflow as tf
import tfddl as hvd

plan = json.loads(sys.argv[1])  # the size of the job -> [step, ranks, moment]
once = plan.pop("once", False)
limit = os.environ.pop("TFDDL_STALL_LIMIT", None)
hvd.init()
if limit:  # on a busy machine ranks wait longer for each other's imports
    hvd.shutdown()
    os.environ["TFDDL_STALL_LIMIT"] = limit
    hvd.init()
print("commits in", os.environ["TFDDL_COMMITS"], flush=True)
rank, size = hvd.rank(), hvd.size()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
state = hvd.elastic.KerasState(model, step=0, sizes=[])
state.register_reset_callbacks([lambda: print(f"reset to {hvd.size()}", flush=True)])

def fall(step, moment):
    when, ranks, where = plan.get(str(size), [None, [], None])
    mark = f"{sys.argv[2]}/{rank}"
    if (step, moment) == (when, where) and rank in ranks and not (once and os.path.exists(mark)):
        open(mark, "w").close()
        while "TFDDL_STALL_LIMIT" in os.environ:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

@hvd.elastic.run
def train(state):
    while state.step < 12:
        fall(state.step, "step")
        model.train_on_batch(x[rank::size], x[rank::size, :1])
        state.step += 1
        state.sizes = [*state.sizes, size]
        if state.step % 4 == 0:
            fall(state.step, "commit")
            state.commit()

restore_from = hvd.elastic.State.restore_from
def restore(self, commits):
    fall(0, "recovery")
    return restore_from(self, commits)
hvd.elastic.State.restore_from = restore
train(state)
weights = [each.tolist() for each in model.get_weights()]
assert hvd.allgather_object(weights) == [weights] * size
print("done", json.dumps([state.sizes, int(model.optimizer.iterations), weights]), flush=True)
"""


@pytest.fixture
def run(tmp_path):
    return functools.partial(run_job, tmp_path)


def run_job(folder, size, plan, *options):
    launcher = [*TFDDLRUN, "--elastic", "-np", str(size), *options]
    result = run_script(size, PROGRAM, json.dumps(plan), str(folder), launcher=launcher)
    (folder,) = set(re.findall(r"commits in (\S+)", result.output))
    assert not Path(folder).exists()
    done = [json.loads(line) for line in re.findall(r"done (.*)", result.output)]
    return result, done


def flat(weights):
    return [number for each in weights for number in ([each] if isinstance(each, float) else flat(each))]


@pytest.mark.slow
def test_ranks_are_lost_one_after_the_other(run):
    """In a step, then in the first commit after it. Each full batch counts once: as in one process."""
    result, done = run(3, {"3": [6, [2], "step"], "2": [8, [0], "commit"]})
    assert result.code == 0, result.output
    ((sizes, iterations, weights),) = done
    assert sizes == [3] * 4 + [1] * 8 and iterations == 12
    assert "reset to 2" in result.output and "reset to 1" in result.output
    last = [line for line in result.output.splitlines() if line.startswith("tfddlrun:")][-1]
    assert last == "tfddlrun: the job has ended well, though rank 2 of 3 was lost; rank 0 of 2 was lost"
    alone, ((_, _, expected),) = run(1, {})
    assert alone.code == 0
    assert flat(weights) == pytest.approx(flat(expected), rel=1e-4, abs=1e-6)


@pytest.mark.long
def test_two_at_once_are_replaced(run):
    result, done = run(3, {"3": [5, [0, 1], "step"], "once": True}, "--replace", "--reset-limit", "1")
    assert result.code == 0, result.output
    assert [sizes for sizes, _, _ in done] == [[3] * 12] * 3
    assert "reset to" not in result.output


@pytest.mark.slow
def test_a_rank_is_lost_in_the_recovery(run):
    result, done = run(3, {"3": [0, [1], "step"], "2": [0, [1], "recovery"]})
    assert result.code == 0, result.output
    assert [sizes for sizes, _, _ in done] == [[1] * 12]


@pytest.mark.slow
def test_the_whole_job_is_lost(run, tmp_path):
    """The same command goes on from the disk, with another number of processes; after its end nothing is left there."""
    folder = tmp_path / "state"
    result, done = run(
        2, {"2": [6, [0, 1], "step"], "once": True}, "--min-np", "2", "--state-dir", str(folder)
    )
    assert result.code == 137 and not done, result.output
    assert len(list(folder.glob("*/commit-1-*"))) == 1
    result, done = run(3, {}, "--state-dir", str(folder))
    assert result.code == 0, result.output
    assert [sizes for sizes, _, _ in done] == [[2] * 4 + [3] * 8] * 3
    assert "going on from commit 1..." in result.output and "reset to 3" in result.output
    assert [each.name for each in folder.iterdir()] == ["lock"]


TWO_STATES = """
import os, signal, sys
import tensorflow as tf
import tfddl as hvd

hvd.init()
hvd.size()  # a program that has asked before starts again
first = hvd.elastic.TensorFlowState([tf.Variable([1.0, 2.0])], step=0)
second = hvd.elastic.ObjectState(step=0)

@hvd.elastic.run
def train(state, last):
    while state.step < last:
        state.step += 1
        hvd.allreduce(1.0)
        if state is second and state.step == 3 and hvd.size() == 2 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()
    return state.step

if "pretrained" not in sys.argv[1:] or not os.path.exists(sys.argv[1]):
    print("first", train(first, 3), train(first, 5), flush=True)
open(sys.argv[1], "w").close()
print("done", train(second, 4), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("again", ["", "pretrained"])
def test_two_states_in_one_program(tmp_path, again):
    """The second start runs the first training to its end at once, or leaves it out."""
    expected = ["first 3 5"] * 2 + ([] if again else ["first 5 5"]) + ["done 4"]
    mark = str(tmp_path / "mark")
    result = run_script(2, TWO_STATES, mark, again, launcher=[*TFDDLRUN, "--elastic", "-np", "2"])
    assert result.code == 0, result.output
    assert re.findall(r"(?:first|done) .*", result.output) == expected


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (
            "os.kill(os.getpid(), 9)",
            137,
            "rank 1 of 2 was lost; --reset-limit 1 lets the job start again no more",
        ),
        ("raise KeyError('planted')", 1, "KeyError: 'planted'"),
    ],
)
def test_what_ends_the_job(end, code, words):
    """Without TensorFlow: the limit of starts, and an exception at once."""
    script = f"os.makedirs(os.environ['TFDDL_COMMITS'], exist_ok=True)\nif rank == 1: {end}\ntime.sleep(500)"
    job = launch.run_script(script, 2, "--elastic", "--replace", "--reset-limit", "1")
    assert job.code == code and job.last_line.endswith(words), job.stderr
    assert job.stderr.count("starting again with 2 processes") == (code == 137)


@pytest.mark.slow
def test_a_rank_that_hangs_is_lost(run, monkeypatch):
    monkeypatch.setenv("TFDDL_STALL_LIMIT", "7")
    result, done = run(3, {"3": [5, [1], "step"], "2": [99, [], ""]})
    assert result.code == 0, result.output
    assert "tfddlrun: rank 1 of 3 was lost; starting again with 2 processes, restart 1" in result.output
    assert [sizes for sizes, *_ in done] == [[3] * 4 + [2] * 8] * 2
