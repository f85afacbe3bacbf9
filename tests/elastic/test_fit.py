"""`fit` with ElasticCallback: rows that count once, and what goes on after a loss."""

import contextlib
import functools
import json
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.elastic.test_states import model_of
from tests.harness import long, on_ranks, run_script
from tfddl import _compat

TFDDLRUN = [sys.executable, "-m", "tfddl.launch.run", "--elastic"]

# Each row has a weight of its own, which loses 1 each time that the row is in a batch.
ROWS = """
import json, os, signal, sys
import keras
import numpy as np
import tensorflow as tf
import tfddl as hvd

hvd.init()
kind, plan = sys.argv[1], json.loads(sys.argv[2])
x = np.eye(126, dtype="float32")

class Batches(keras.utils.PyDataset):
    num_batches = 42

    def __getitem__(self, index):
        return x[3 * index : 3 * index + 3], x[3 * index : 3 * index + 3, :1]

class Kill(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if [hvd.size(), hvd.rank(), self.batches] in plan:
            os.kill(os.getpid(), signal.SIGKILL)

class Count(keras.callbacks.Callback):
    epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1

model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(3.0), op=hvd.Sum), lambda y, p: keras.ops.mean(p))
elements = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(3)
data = {
    "arrays": lambda: {"x": hvd.data.shard(x), "y": hvd.data.shard(x[:, :1]), "batch_size": 3},
    "pydataset": lambda: {"x": hvd.data.ShardedPyDataset(Batches(), shuffle=True)},
    "dataset": lambda: {"x": hvd.data.shard(elements)},
}[kind]()
count, kill = Count(), Kill()
elastic = hvd.callbacks.ElasticCallback(commit_every=2)
for epochs in (1, 2):  # two calls of fit
    history = model.fit(**data, epochs=epochs, verbose=0, callbacks=[elastic, count, kill])
    print("history", history.epoch, len(history.history["loss"]), flush=True)
weights = model.get_weights()[0][:, 0]
assert len(set(map(str, hvd.allgather_object(weights.tolist())))) == 1
print("done", hvd.size(), count.epochs, json.dumps(sorted({float(weight) for weight in weights})), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", long("pydataset"), long("dataset")])
def test_each_row_counts_once_in_an_epoch(kind):
    """Rank 1 of 3 dies in the second call of `fit`, then rank 0 of 2; the count of batches goes on."""
    plan = [[3, 1, 14 + 5], [2, 0, 31]]
    result = run_script(3, ROWS, kind, json.dumps(plan), launcher=[*TFDDLRUN, "-np", "3"])
    assert result.code == 0, result.output
    if kind != "dataset":  # whose `fit` does not go on in any case
        told = "starts again, since it has called hvd.data before it began to train; leave it as it is"
        assert told in result.output
    assert re.findall(r"going on from commit (\d+)", result.output) == ["10", "16"]
    (done,) = re.findall(r"done (.*)", result.output)
    assert done == "1 3 [-3.0]", result.output
    assert result.output.count("history [0] 1") == 6 and "history [0, 1] 2" in result.output


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("start", [0, 7, 20])
def test_rows_dataset_deals_the_rest(hvd, start):
    from tfddl.data.rows import RowsDataset

    x = np.arange(20.0)
    dataset = RowsDataset(
        ({"a": x}, -x), batch_size=2, shuffle=True, seed=5, rank=hvd.rank(), size=hvd.size()
    )
    order = np.concatenate([each[0]["a"] for each in _one_rank(dataset).epoch(0)])
    assert sorted(order) == x.tolist() and order.tolist() != x.tolist()
    dataset.start = start
    batches = [dataset[index] for index in range(dataset.num_batches)]
    mine = [batch[0]["a"].tolist() for batch in batches]
    assert all(batch[0]["a"].dtype == "float32" and (batch[0]["a"] == -batch[1]).all() for batch in batches)
    rows = [[row for batch in each for row in batch] for each in hvd.allgather_object(mine)]
    each = (20 - start) // hvd.size()
    assert np.array(rows).T.reshape(-1).tolist() == order[start : start + each * hvd.size()].tolist()
    assert [len(batch) for batch in mine] == [2] * (each // 2) + [1] * (each % 2)
    assert [dataset.done_after(number) for number in (0, 1, 99)] == [
        start,
        start + min(2, each) * hvd.size(),
        start + each * hvd.size(),
    ]
    dataset.on_epoch_begin()
    dataset.on_epoch_end()
    assert (dataset.epoch, dataset.start) == (1, 0)


class _one_rank:
    """The batches of an epoch in a job of one rank."""

    def __init__(self, dataset):
        self._arrays, self._seed = dataset._arrays, dataset._seed

    def epoch(self, number):
        from tfddl.data.rows import RowsDataset

        whole = RowsDataset(self._arrays, batch_size=3, shuffle=True, seed=self._seed, rank=0, size=1)
        whole.epoch = number
        return [whole[index] for index in range(whole.num_batches)]


@on_ranks(1, 2, 3)
def test_sharded_py_dataset_deals_the_rest(hvd):
    import keras

    class Batches(keras.utils.PyDataset):
        num_batches = 11

        def __getitem__(self, index):
            return np.full([1, 1], index)

    for remainder in ("drop", "repeat"):
        dataset = hvd.data.ShardedPyDataset(Batches(), remainder=remainder)
        dataset.start = 4
        mine = [int(dataset[index][0, 0]) for index in range(dataset.num_batches)]
        found = sorted(index for each in hvd.allgather_object(mine) for index in each)
        left = 7 - 7 % hvd.size()
        expected = [*range(4, 4 + left)] if remainder == "drop" else [*range(4, 11)]
        assert sorted(set(found)) == expected
        assert len(found) == -(-len(expected) // hvd.size()) * hvd.size()
        assert dataset.done_after(1) == 4 + hvd.size() and dataset.done_after(99) == 11


@on_ranks(2)
def test_the_data_of_fit(hvd, tmp_path, monkeypatch):
    """Arrays of `shard` become whole again; the validation split is a fixed part of the rows."""
    from tfddl.elastic import fit_data

    monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path))
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20)
    parts = dict(zip(("x", "y"), hvd.data.shard(x, y), strict=True))
    arguments = {**parts, "batch_size": 4, "validation_split": 0.25, "epochs": 2}
    data = fit_data.take(arguments, seed=0)
    assert isinstance(data, fit_data.OrderedData) and arguments["x"].num_batches == 2
    assert (arguments["y"], arguments["shuffle"], arguments["validation_batch_size"]) == (None, False, 4)
    assert arguments["validation_data"][1].tolist() == y[15 + hvd.rank() :: 2].tolist()
    assert data.go_on(0, 4) and arguments["x"].num_batches == 2 and not data.go_on(0, 14)

    given = {"validation_data": (x, y), "validation_split": 0.05}  # Keras leaves the split out
    arguments = {**parts, **given}
    assert isinstance(fit_data.take(arguments, seed=0), fit_data.OrderedData)
    assert arguments["validation_data"] is given["validation_data"] and arguments["x"].num_batches == 1
    assert type(fit_data.take({**parts, "validation_split": 0.05}, seed=0)) is fit_data.FitData

    others = [
        {"x": x[hvd.rank() :: 2], "y": y[hvd.rank() :: 2]},
        {"x": iter([])},
        {"x": [parts["x"], x]},
        {"x": hvd.data.shard_arrays(x, rank=0, size=4)},
    ]
    for arguments in others:
        assert type(fit_data.take(arguments, seed=0)) is fit_data.FitData
    if hvd.rank() == 1:
        parts["y"][3] = 0  # in place: rows of the other rank stay as they are
    arguments = dict(parts, batch_size=4)
    data = fit_data.take(arguments, seed=0)
    assert type(data) is fit_data.FitData and data.warns_of == "rank 0: OrderedData; rank 1: other arrays"
    assert arguments == {**parts, "batch_size": 4}
    dataset = tf.data.Dataset.range(8)
    for arguments in ({"x": dataset}, {"x": dataset, "steps_per_epoch": 3}):
        assert fit_data.take(arguments, seed=0).done_after(2) == 4


@on_ranks(1, 2)
def test_options_that_contradict(hvd, tmp_path, monkeypatch):
    import keras

    with pytest.raises(ValueError, match=r"commit_every must be 1 or more: pass one\. Received: 0"):
        hvd.callbacks.ElasticCallback(0)
    monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path / "commits"))
    model = model_of(hvd)
    x = np.ones((8, 3), "float32")
    fit = functools.partial(model.fit, x, x[:, :1], verbose=0)
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    for other in (backup, hvd.callbacks.ShardedCheckpoint(tmp_path / "sharded")):
        with pytest.raises(ValueError, match=f"leave {type(other).__name__} out"):
            fit(callbacks=[hvd.callbacks.ElasticCallback(), other])
    with pytest.raises(ValueError, match=r"leave the others out\. Received: 2 of them"):
        fit(callbacks=[hvd.callbacks.ElasticCallback(), hvd.callbacks.ElasticCallback()])
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)), "mse")
    with pytest.raises(ValueError, match="cannot be set: leave scale_learning_rate out"):
        fit(callbacks=[hvd.callbacks.ElasticCallback(scale_learning_rate=True)])


@on_ranks(2)
def test_data_that_one_rank_cannot_read(hvd, tmp_path, monkeypatch):
    """All ranks raise, since the others would wait for that rank."""
    import keras

    monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path / "commits"))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    dataset = tf.data.Dataset.from_tensor_slices((tf.ones([4, 3]), tf.ones([4, 1]))).batch(2)
    missing = dataset.map(lambda x, y: (tf.io.parse_tensor(tf.io.read_file("/not/there"), x.dtype), y))
    callbacks = [hvd.callbacks.ElasticCallback()]
    for found, error in ((missing, ".*/not/there"), (dataset.take(0), "StopIteration")):
        with pytest.raises(ValueError, match=rf"call model\.build\(.*Received: .*, rank 1: {error}"):
            model.fit(found if hvd.rank() == 1 else dataset, verbose=0, callbacks=callbacks)


@on_ranks(1, 2)
@pytest.mark.skipif(_compat.is_keras_2(), reason="Keras 2 begins each epoch anew")
@pytest.mark.parametrize("kind", ["arrays", long("pydataset")])
def test_each_epoch_of_each_fit_has_an_order_of_its_own(hvd, kind, tmp_path, monkeypatch):
    """A program that starts again goes on with the order of the commit, whatever seed DataParallel has drawn now."""
    import keras

    from tfddl.elastic import commits, fit_state

    class Batches(keras.utils.PyDataset):
        num_batches = 20

        def __getitem__(self, index):
            return x[:2], x[:2, :1]

    class Cut(Exception):
        pass

    def start(seed, cut=None):
        """Two models, each in two calls of `fit`, to the third batch of epoch `cut`. Returns the order of each epoch."""
        commits._kinds.clear()
        fit_state.trainings.clear()
        orders = []

        def note(epoch, logs=None):
            dataset = elastic._data._dataset
            orders.append((dataset._deal() if kind == "arrays" else dataset._deal(20)).tolist())

        def end(batch, logs=None):
            if len(orders) == cut and batch == 2:
                raise Cut

        parallel = hvd.DataParallel(seed=seed)
        try:
            for _ in range(2):
                model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
                model.compile(keras.optimizers.SGD(), "mse")
                elastic = hvd.callbacks.ElasticCallback(2)
                noting = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_train_batch_end=end)
                data = {"x": x, "y": x[:, :1], "batch_size": 4} if kind == "arrays" else {"x": Batches()}
                for first in (0, 2):
                    model.fit(
                        **data, initial_epoch=first, epochs=first + 2, verbose=0, callbacks=[elastic, noting]
                    )
        except Cut:
            pass
        finally:
            parallel.stop()
        return orders

    x = np.ones((40, 3), "float32")
    monkeypatch.setenv("TFDDL_COMMITS", str(hvd.broadcast_object(str(tmp_path / "whole"), 0)))
    whole = start(seed=1)
    assert len(whole) == len(set(map(str, whole))) == 8
    assert hvd.allgather_object(whole) == [whole] * hvd.size()
    monkeypatch.setenv("TFDDL_COMMITS", str(hvd.broadcast_object(str(tmp_path / "cut"), 0)))
    assert start(seed=1, cut=6) == whole[:6]
    rest = start(seed=2)
    assert len(rest) == 3 and rest[0] == whole[5] and not [each for each in rest[1:] if each in whole]


@on_ranks(2)
def test_all_ranks_keep_what_a_callback_of_rank_0_has_found(hvd, tmp_path, monkeypatch):
    """Rank 0 and its host may be lost, and the best file outlives them."""
    import keras

    from tfddl.elastic import fit_state

    monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path / "commits"))
    model = model_of(hvd)
    x = np.full((8, 3), 1.0 + hvd.rank(), "float32")
    # Keras 3.4 unpacks a file beside it, so that each rank needs a folder of its own.
    (mine := tmp_path / str(hvd.rank())).mkdir()
    best = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), "loss", save_best_only=True)
    other = keras.callbacks.ModelCheckpoint(str(mine / "other.keras"), "no loss", mode="min")
    stop = keras.callbacks.EarlyStopping("loss")
    callbacks = [hvd.callbacks.ElasticCallback(), hvd.callbacks.rank_zero_only(best), other, stop]
    history = model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=callbacks).history
    kept = fit_state.trainings[id(model), id(model.optimizer)].state.content()[0]["callbacks"]
    losses = hvd.allgather_object(history["loss"][0])
    assert losses[0] != losses[1]
    assert kept["ModelCheckpoint loss", 0]["best"] == losses[0]
    assert "best" not in kept["ModelCheckpoint no loss", 0]
    assert kept["EarlyStopping loss", 0]["best"] == losses[hvd.rank()]  # its own


def test_the_results_of_a_callback_that_is_a_dict():
    import keras

    from tfddl.elastic.callback_states import CallbackStates

    class Results(keras.callbacks.Callback, dict):
        def __init__(self, setting=1):
            super().__init__()
            self.setting, self.best = setting, 0

    callback = Results()
    states = CallbackStates([callback])
    callback.setting, callback.best = 2, 3
    assert list(states.changed().values()) == [{"best": 3}]


@on_ranks(1, 2)
def test_a_loop_over_models_keeps_one_commit_of_each(hvd, tmp_path, monkeypatch):
    from tfddl.elastic import commits, fit_state

    folder = hvd.broadcast_object(tmp_path / "commits", 0)
    monkeypatch.setenv("TFDDL_COMMITS", str(folder))
    x = np.ones((8, 3), "float32")

    def start():
        """Trains the first model, the second, and the first again. Returns the weights, and the commits after each."""
        commits._kinds.clear()
        fit_state.trainings.clear()
        models, kept = [model_of(hvd), model_of(hvd)], []
        callbacks = [hvd.callbacks.ElasticCallback()]
        for model in (models[0], models[1], models[0]):
            model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
            hvd.barrier()
            kept.append(sorted(len(list(each.glob("commit-*"))) for each in folder.iterdir()))
            hvd.barrier()
        return [each.tolist() for model in models for each in model.get_weights()], kept

    weights, kept = start()
    assert kept == [[2], [1, 2], [1, 2]]
    assert start() == (weights, [[1, 2]] * 3)  # skips each fit


@on_ranks(1, 2)
def test_a_fit_that_was_cut_goes_on(hvd, tmp_path, monkeypatch):
    """With steps_per_execution, accumulation, the learning rate scaled, and the counts of callbacks."""
    import keras

    from tfddl.elastic import commits, fit, fit_state

    monkeypatch.setenv("TFDDL_COMMITS", str(hvd.broadcast_object(str(tmp_path), 0)))
    x = np.random.default_rng(0).normal(size=(48 * hvd.size(), 3)).astype("float32")
    data = dict(zip("xy", hvd.data.shard(x, x[:, :1].copy()), strict=True))
    options = {**data, "epochs": 2, "initial_epoch": 1, "batch_size": 4, "verbose": 0}

    class Cut(Exception):
        pass

    class Cutting(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(_compat.batches_done(self.model, batch))
            if seen == [2, 4, 6, 8, 10, 12]:
                raise Cut

    def start():
        commits._kinds.clear()
        fit_state.trainings.clear()
        model = model_of(hvd, dropout=0.5)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        model.compile(
            hvd.DistributedOptimizer(optimizer, backward_passes_per_step=3), "mse", steps_per_execution=2
        )
        elastic = hvd.callbacks.ElasticCallback(4, scale_learning_rate=True)
        stop = keras.callbacks.EarlyStopping("loss", patience=9, min_delta=1e9)
        return model, stop, {**options, "callbacks": [elastic, stop, Cutting()]}

    seen = []
    model, stop, arguments = start()
    with pytest.raises(Cut):
        model.fit(**arguments)
    assert not fit._under_way  # it would keep the callback, and with it the data
    state = fit_state.trainings[id(model), id(model.optimizer)].state
    assert (seen, state.epoch, state.done, state.fit) == ([2, 4, 6, 8, 10, 12], 1, 6 * 4 * hvd.size(), 1)
    state.size, state.callbacks = 2 * hvd.size(), {("EarlyStopping loss", 0): {"wait": 3, "best": 0.0}}
    state.commit()  # as if a job of twice the size had made it
    counts, weights = state.counts, state.content()[1]

    seen = []
    model, stop, arguments = start()
    began, streams = [], []

    def note(logs):
        state = fit_state.trainings[id(model), id(model.optimizer)].state
        began.extend(np.array(each) for each in state.variables)
        streams.extend(np.array(each) for each in model.variables if _compat.is_seed_state(each))

    arguments["callbacks"].append(keras.callbacks.LambdaCallback(on_train_begin=note))
    history = model.fit(**arguments)
    assert seen == [2, 4, 6]  # 6 of 12 batches were left
    rate = [
        each for each in range(len(began)) if began[each].shape == () and began[each] == np.float32(0.005)
    ]
    assert len(rate) == 1
    assert all(
        np.array_equal(a, b) for i, (a, b) in enumerate(zip(began, weights, strict=True)) if i not in rate
    )
    assert counts == [12] == [int(second) for _, second in streams]
    assert history.epoch == [1] and stop.wait == 4
    assert _compat.steps_taken(model.optimizer) == 12 + 6  # the commit was made after 12


@on_ranks(2)
@pytest.mark.skipif(_compat.is_keras_2(), reason="Keras 2 begins each epoch anew")
def test_an_epoch_of_unknown_length_that_was_cut_behind_its_last_batch(hvd, tmp_path, monkeypatch):
    """The last batch comes once more: each epoch has its metrics, and its end for other callbacks."""
    import keras

    from tfddl.elastic import commits, fit_state

    class Cut(Exception):
        pass

    class Cutting(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

        def on_epoch_end(self, epoch, logs=None):
            if epoch == cut:
                raise Cut

    def start():
        commits._kinds.clear()
        fit_state.trainings.clear()
        callbacks = [hvd.callbacks.ElasticCallback(1), Cutting()]
        return model_of(hvd).fit(dataset, epochs=3, verbose=0, callbacks=callbacks).history

    monkeypatch.setenv("TFDDL_COMMITS", str(hvd.broadcast_object(str(tmp_path), 0)))
    x = np.ones((6, 3), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2).filter(lambda *batch: True)
    seen, cut = [], 0
    with pytest.raises(Cut):
        start()
    assert seen == [0, 1, 2]
    seen, cut = [], None
    history = start()
    assert seen == [0, 0, 1, 2, 0, 1, 2]
    assert {name: len(values) for name, values in history.items()} == {"loss": 3}


@on_ranks(2)
@pytest.mark.skipif(_compat.is_keras_2(), reason="Keras 2 begins each epoch anew")
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_a_schedule_by_batches_goes_on_in_the_middle_of_an_epoch(hvd, kind, tmp_path, monkeypatch):
    """Each batch has the rate of a training without a loss: an epoch keeps its number of batches."""
    import keras

    from tfddl.elastic import commits, fit_state

    x = np.ones((24, 3), "float32")
    data = {
        "arrays": lambda: {"x": hvd.data.shard(x), "y": hvd.data.shard(x[:, :1]), "batch_size": 2},
        "dataset": lambda: {"x": tf.data.Dataset.from_tensor_slices((x[:12], x[:12, :1])).batch(2)},
    }[kind]

    class Cut(Exception):
        pass

    def start(cut):
        """Trains for 10 batches, or to the end. Returns the epochs of a schedule, and of a warm-up; steps."""
        commits._kinds.clear()
        fit_state.trainings.clear()
        moments, ends, steps = [], [], []

        def end(batch, logs=None):
            if cut and len(moments) == 10:
                raise Cut

        model = model_of(hvd)
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            0.01, lambda epoch: moments.append(epoch) or 1.0, staircase=False
        )
        warmup = hvd.callbacks.LearningRateWarmupCallback(0.01)
        warmup.multiplier = lambda epoch: ends.append(epoch) or 1.0
        cutting = keras.callbacks.LambdaCallback(
            on_train_batch_end=end, on_epoch_end=lambda *_: steps.append(warmup.params["steps"])
        )
        callbacks = [schedule, warmup, hvd.callbacks.ElasticCallback(3), cutting]
        with contextlib.suppress(Cut):
            model.fit(**data(), epochs=3, verbose=0, callbacks=callbacks)
        return moments, ends, steps

    monkeypatch.setenv("TFDDL_COMMITS", str(hvd.broadcast_object(str(tmp_path), 0)))
    assert [len(each) for each in start(cut=True)] == [10, 10, 1]
    moments, ends, steps = start(cut=False)
    assert steps == [3, 6]
    assert moments == pytest.approx([number / 6 for number in range(9, 18)])
    assert ends == pytest.approx([number / 6 for number in range(10, 19)])
