"""Jobs that lose ranks and go on in the processes that are left."""

import json
import re
import sys

import pytest

from tests.harness import long, run_script, slow
from tfddl._compat import is_keras_2
from tfddl.launch.elastic.restart import Limits, Restarts
from tfddl.launch.elastic.survival import Survival
from tfddl.launch.mpirun import OPEN_MPI, can_survive, find_mpirun
from tfddl.launch.outcome import Rank, Record, judge

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run", "--elastic"]
KILL = -9

# `counter` is a second state, whose function calls that of the first one.
# The global batch is the same for any number of ranks, and so are the weights. A float16 loss scale would end the training
# if it counted ranks that are lost. The set {1, 3} keeps its members: rank 0 dies, then rank 3.
LOOP = """
import json, os, re, signal, sys, time
import keras
import numpy as np
import tensorflow as tf
import tfddl as hvd
from tfddl.keras.distributed.settings import settings_of
from tfddl.runtime.rank_queries import asking_again

plan = json.loads(sys.argv[1])  # sizes of the job -> [step, ranks, moment]
hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
wrap = hvd.ShardedOptimizer if "sharded" in sys.argv else hvd.DistributedOptimizer
optimizer = wrap(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)))
optimizer.build(model.trainable_variables)
x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
state = hvd.elastic.KerasState(model, optimizer, step=0, sizes=[])
counter = hvd.elastic.ObjectState(steps=0)
odd = hvd.add_process_set([1, 3]) if "set" in sys.argv else None
traces = []

@tf.function
def step(rows):
    traces.append(1)
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_mean((model(rows)[:, 0] - rows[:, 0]) ** 2))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return hvd.allreduce(tf.constant(1.0), op=hvd.Sum, process_set=odd) if odd and odd.included() else 0.0

def fall(moment):
    when, ranks, where = plan.get(str(hvd.size()), [None, [], None])
    if state.step == when and hvd.rank() in ranks and moment == where:
        if moment == "commit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

@hvd.elastic.run
def train(state):
    if hvd.size() == 2:
        new, weight = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), keras.Variable(0.0)
        new.apply([tf.constant(1.0 + hvd.rank())], [weight])
        assert weight.numpy() == -1.5
    while state.step < 12:
        if state.step == 5 and (hvd.rank(), hvd.size()) == (1, 4):
            # As if rank 1 had begun the first step of an optimizer, and the others had not, when the job failed.
            assert settings_of(hvd.DistributedOptimizer(keras.optimizers.SGD())).owner
        fall("step")
        rank, size = hvd.rank(), hvd.size()
        counted = float(step(tf.constant(x[rank::size])))
        if odd and odd.included():
            assert counted == odd.size() == len(odd.ranks), (counted, odd)
        state.step += 1
        counter.steps += 1
        state.sizes.append(size)  # in place: the commit has to be a copy
        if state.step % 4 == 0:
            counter.commit()
            fall("commit")
            state.commit()
            fall("after")

@hvd.elastic.run
def count(counter):
    train(state)

plain = hvd.elastic.State.go_on
def go_on(self):
    with asking_again():
        fall("recovery")
    plain(self)
hvd.elastic.State.go_on = go_on
count(counter)
assert counter.steps == 12, counter.steps
weights = [each.tolist() for each in model.get_weights()]
assert hvd.allgather_object(weights) == [weights] * hvd.size()
until = time.monotonic() + 20
while hvd.size() == 1 and re.search("tfddl-[0-9a-f]{16}", open("/proc/self/maps").read()):
    assert time.monotonic() < until, "the process has still mapped the shared memory of the failed jobs"
    time.sleep(0.01)
print("done", json.dumps([state.sizes, int(optimizer.inner_optimizer.iterations), weights]), flush=True)
if "exception" in sys.argv:
    raise KeyError("planted")
"""

FIT = """
import json, os, signal
import keras
import numpy as np

class Kill(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == 13 and os.environ["OMPI_COMM_WORLD_SIZE"] == "3" and os.environ["OMPI_COMM_WORLD_RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

x = np.random.default_rng(0).normal(size=(150, 4)).astype("float32")
layers = [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.Adam(0.01), "mse")
stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=3)
options = {"epochs": 9, "batch_size": 16, "validation_split": 0.2, "verbose": 0, "callbacks": [Kill(), stop]}
history = model.fit(x, x[:, 0], **options).history
weights = [each.tolist() for each in model.get_weights()]
print("done", json.dumps({"history": history, "weights": weights}), flush=True)
"""


def flat(weights):
    return [number for each in weights for number in ([each] if isinstance(each, float) else flat(each))]


def run(size, plan, *arguments, options=()):
    launcher = [*TFDDLRUN, "-np", str(size), *options]
    result = run_script(size, LOOP, json.dumps(plan), *arguments, launcher=launcher)
    return result, [json.loads(line) for line in re.findall(r"done (.*)", result.output)]


def survives():
    return pytest.mark.skipif(not can_survive(find_mpirun()), reason="only Open MPI 5 has ULFM")


@survives()
@pytest.mark.slow
def test_ranks_die_and_the_others_go_on():
    """Two at once in a step, one by os._exit(0) in a commit, which counts on the others: the numbers of one process."""
    plan = {"4": [6, [0, 2], "step"], "2": [8, [1], "commit"]}
    result, done = run(4, plan, "set")
    assert result.code == 0, result.output
    ((sizes, iterations, weights),) = done
    assert sizes == [4] * 4 + [2] * 4 + [1] * 4 and iterations == 12
    assert "starting again" not in result.output and "starts again" not in result.output
    last = [line for line in result.output.splitlines() if line.startswith("tfddlrun:")][-1]
    assert last == "tfddlrun: the job has ended well, though ranks 0, 2, 3 of 4 were lost"
    alone, ((_, _, expected),) = run(1, {})
    assert alone.code == 0 and flat(weights) == pytest.approx(flat(expected), rel=1e-4, abs=1e-6)


@pytest.mark.long
@pytest.mark.skipif(is_keras_2(), reason="ShardedOptimizer is for Keras 3")
def test_a_divided_state_starts_again_on_fewer_ranks():
    """Commits hold whole slots: the numbers of one process."""
    result, done = run(3, {"3": [6, [1], "step"]}, "sharded")
    assert result.code == 0, result.output
    assert "starting again with 2 processes" in result.output, result.output
    (sizes, iterations, weights), other = done
    assert other == [sizes, iterations, weights]
    assert sizes == [3] * 4 + [2] * 8 and iterations == 12
    alone, ((_, _, expected),) = run(1, {}, "sharded")
    assert alone.code == 0 and flat(weights) == pytest.approx(flat(expected), rel=1e-4, abs=1e-6)


@survives()
@pytest.mark.parametrize(
    ("plan", "arguments", "options", "code", "words"),
    [
        slow(
            {"3": [5, [1], "step"], "2": [5, [1], "recovery"]},
            (),
            (),
            0,
            "ranks 1, 2 of 3 were lost; starting again with 1 process",
        ),
        long({"2": [5, [1], "step"]}, ("exception",), (), 1, "KeyError: 'planted'"),
        long(
            {"2": [5, [1], "step"]},
            (),
            ("--min-np", "2"),
            137,
            "1 process would be left, and --min-np asks for 2",
        ),
        long(
            {"3": [5, [1], "step"], "2": [7, [1], "step"]},
            (),
            ("--reset-limit", "1"),
            137,
            "ranks 1, 2 of 3 were lost; --reset-limit 1 lets the job start again no more",
        ),
    ],
)
def test_what_ends_the_start(plan, arguments, options, code, words):
    """A loss in the recovery, an exception after one, and the limits of the user."""
    result, done = run(max(map(int, plan)), plan, *arguments, options=options)
    assert result.code == code, result.output
    assert words in result.output.splitlines()[-1] or (code == 0 and words in result.output), result.output
    assert len(done) == (1 if code < 2 else 0)


@survives()
@pytest.mark.slow
def test_a_script_without_tfddl_goes_on_in_fit():
    """Rank 0 of 3 dies in the second epoch: the numbers of one process; the patience of EarlyStopping outlasts the loss."""
    found = []
    for size in (3, 1):
        launcher = [*TFDDLRUN, "--auto", "-np", str(size)]
        result = run_script(size, FIT, launcher=launcher, environment={"TFDDL_SEED": "1"})
        assert result.code == 0, result.output
        assert ("the job goes on with 2 processes" in result.output) == (size == 3), result.output
        assert "starting again" not in result.output
        found.append([json.loads(line) for line in re.findall(r"done (.*)", result.output)])
    (one, other), (alone,) = found
    assert one == other
    assert len(alone["history"]["loss"]) == len(one["history"]["loss"]) == 4
    for name, values in alone["history"].items():
        assert one["history"][name][2:] == pytest.approx(values[2:], rel=1e-4), name
    assert flat(one["weights"]) == pytest.approx(flat(alone["weights"]), rel=1e-4, abs=1e-6)


def ranks(*statuses, goes_on_with=0):
    found = [Rank(number, "here", status) for number, status in enumerate(statuses)]
    for each in found:
        each.goes_on_with = 0 if each.status == KILL else goes_on_with
    return found


def test_all_that_are_left_have_to_go_on():
    everybody = ranks(None, KILL, None)
    survival = Survival(Limits(1, None, False), Restarts(None))
    assert survival.allows(everybody[1], everybody) and survival.losses == 1
    everybody[0].goes_on_with = 2
    assert survival.survived(everybody) == ()
    everybody[2].goes_on_with = 2
    assert survival.survived(everybody) == (everybody[1],)
    everybody[2].status = KILL
    assert survival.allows(everybody[2], everybody) and survival.survived(everybody) == ()
    everybody[0].goes_on_with = 1
    assert survival.survived(everybody) == (everybody[1], everybody[2])


def test_a_rank_that_leaves_with_exit_code_0_is_lost():
    everybody = ranks(None, 0, None)
    survival = Survival(Limits(1, None, False), Restarts(None))
    assert survival.left_early(everybody) == []
    everybody[0].goes_on_with = 2
    assert survival.left_early(everybody) == [everybody[1]]
    assert survival.allows(everybody[1], everybody) and survival.left_early(everybody) == []
    everybody[0].status, everybody[2].goes_on_with = 0, 2
    assert survival.left_early(everybody) == [] and survival.survived(everybody) == (everybody[1],)


@pytest.mark.parametrize(
    ("limits", "restarts", "allowed"),
    [
        (Limits(2, None, False), 0, True),
        (Limits(3, None, False), 0, False),
        (Limits(1, 1, False), 0, True),
        (Limits(1, 1, False), 1, False),
    ],
)
def test_the_limits_of_the_user(limits, restarts, allowed):
    everybody = ranks(None, KILL, None)
    assert Survival(limits, Restarts(limits.restarts, restarts)).allows(everybody[1], everybody) == allowed


def verdict(ended, survived, mpirun=137):
    return judge(Record(len(ended), list(ended), [], [], mpirun, "noise", False, tuple(survived)))


def test_the_end_after_a_survival():
    good = ranks(0, KILL, 0)
    found = verdict(good, good[1:2])
    assert (found.code, found.words, found.lost) == (0, "", ()) and found.survived == (good[1],)
    assert [rank.number for rank in found.ranks] == [0, 1, 2]

    failed = ranks(-15, KILL, 3)
    failed[0].stopped = True
    found = verdict(failed, failed[1:2])
    assert (found.code, found.lost) == (3, ()) and "rank 2 exited with code 3" in found.words

    needs = ranks(-15, KILL, 1)
    needs[0].stopped, needs[2].errors = (
        True,
        bytearray(b"mpi4py.MPI.Exception: MPI_ERR_PROC_FAILED: Process Failure"),
    )
    assert verdict(needs, needs[1:2]).lost == (needs[1],)

    later = ranks(KILL, KILL, -15)
    later[2].stopped = True
    assert verdict(later, later[:1]).lost == (later[0], later[1])


def test_only_open_mpi_5_survives():
    from tfddl.launch.mpirun import MPICH, Mpirun

    versions = [(OPEN_MPI, "5.0.11"), (OPEN_MPI, "4.1.4"), (OPEN_MPI, "10.0"), (MPICH, "5.0.1")]
    found = [can_survive(Mpirun("mpirun", vendor, version)) for vendor, version in versions]
    assert found == [True, False, True, False]
