"""States, `run` and callbacks of elastic training."""

import errno
import os
import pathlib
import signal

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras.support import logged
from tfddl import _compat


def model_of(hvd, dropout=0.0):
    import keras

    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(dropout), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    return model


def values(model):
    return [np.array(each) for each in (*model.weights, *model.optimizer.variables)]


@on_ranks(1, 2, 3)
def test_keras_state(hvd):
    """Save, restore and sync of weights, Adam's slots, and attributes."""
    model = model_of(hvd, dropout=0.5)
    state = hvd.elastic.KerasState(model, batch=0, epoch=10 + hvd.rank())
    state.batch = 20 + hvd.rank()
    assert len(model.optimizer.variables) > 4
    state.sync()
    assert (state.batch, state.epoch) == (20, 10)
    synced = values(model)
    assert all(np.array_equal(a, b) for a, b in zip(hvd.broadcast_object(synced, 0), synced, strict=True))

    x = np.ones((8, 3), "float32")
    model.train_on_batch(x, x[:, :1])
    trained = values(model)
    state.batch = 21
    state.restore()
    assert state.batch == 20
    assert all(map(np.array_equal, values(model), synced))

    for variable, value in zip((*model.weights, *model.optimizer.variables), trained, strict=True):
        variable.assign(value)
    state.batch = 22
    state.commit()
    state.batch = 23
    state.restore()
    assert state.batch == 22
    assert all(map(np.array_equal, values(model), trained))
    seeds = [np.array(each).tolist() for each in model.variables if _compat.is_seed_state(each)]
    assert len({str(each) for each in hvd.allgather_object(seeds)}) == (hvd.size() if seeds else 1)


@pytest.mark.parametrize("skips_sync", [False, True])
@on_ranks(1, 2)
def test_run_restores_after_an_error_and_keeps_after_an_interrupt(hvd, skips_sync):
    weight = tf.Variable([1.0])
    state = hvd.elastic.TensorFlowState([weight], step=0)
    resets, seen = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.rank())])

    @hvd.elastic.run
    def train(state, add, *, last):
        seen.append((state.step, float(weight[0])))
        while state.step < last:
            state.step += 1
            weight.assign_add([add])
            hvd.allreduce(weight)
            if state.step == 2:
                state.commit()
            if state.step == 3 and len(seen) == 1:
                raise hvd.elastic.HorovodInternalError
            if state.step == 4 and len(seen) == 2:
                raise hvd.elastic.HostsUpdatedInterrupt(skips_sync)
        return state.step

    assert train(state, 10.0, last=5) == 5
    assert seen == [(0, 1.0), (2, 21.0), (4, 41.0)]
    assert resets == [hvd.rank()] * 2 and float(weight[0]) == 51.0
    with pytest.raises(KeyError):
        hvd.elastic.run(lambda state: {}["missing"])(state)


@on_ranks(2)
def test_callbacks_commit_batches_and_epochs(hvd):
    model = model_of(hvd)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    committed = []
    state.check_host_updates = lambda: committed.append((state.epoch, state.batch))
    x = np.ones((20, 3), "float32")
    callbacks = [
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    for start in (0, 0, 2):  # as in Horovod's examples, and as in Keras'
        options = {"batch_size": 4, "initial_epoch": start, "epochs": start + 1, "verbose": 0}
        model.fit(x, x[:, :1], callbacks=[broadcast, *callbacks], **options)
    assert committed == [(0, 1), (0, 3), (1, 0), (1, 1), (1, 3), (2, 0), (2, 1), (2, 3), (3, 0)]
    model.compile(model.optimizer, "mse", steps_per_execution=2)
    callbacks[-1] = hvd.elastic.CommitStateCallback(state, batches_per_commit=3)
    committed.clear()
    whole = x[:16]  # no part of an execution at the end: Keras 3.4 cancels its collectives
    model.fit(whole, whole[:, :1], callbacks=[broadcast, *callbacks], batch_size=4, verbose=0)
    assert committed == [(3, 3), (4, 0)]


@on_ranks(2)
@pytest.mark.skipif(_compat.is_keras_2(), reason="Keras 2 has no SwapEMAWeights")
def test_averages_in_the_model(hvd):
    """At the end of an epoch SwapEMAWeights has put averages into the model; training goes on from the weights."""
    import keras

    model = model_of(hvd)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)), "mse")
    state = hvd.elastic.KerasState(model)
    seen = {}

    def cut(epoch, logs):
        if epoch == 1:
            seen["begin"] = values(model)
            raise KeyboardInterrupt

    notes = keras.callbacks.LambdaCallback(
        on_epoch_begin=cut, on_epoch_end=lambda *_: seen.update(end=values(model))
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        hvd.elastic.CommitStateCallback(state, 9),
        notes,
    ]
    x = np.ones((8, 3), "float32")
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    assert not np.allclose(seen["begin"][0], seen["end"][0], atol=0.01)
    state.restore()
    for found, expected in zip(values(model), seen["begin"], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)  # Keras swaps by adding and subtracting


@on_ranks(1)
def test_what_is_refused(hvd, tmp_path, monkeypatch):
    import keras

    with pytest.raises(ValueError, match=r"model.build\(input_shape\)"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="needs the optimizer"):
        hvd.elastic.KerasState(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="head")])
    own = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=model.layers)
    with pytest.raises(ValueError, match=r"Received: local variables .*head/kernel, .*head/bias"):
        hvd.elastic.KerasState(model, own)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, model.layers[0].bias)
    monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path))
    with pytest.raises(ValueError, match=r"Received: local variables [^,]*head/bias$"):
        model.fit(np.ones([1, 1]), np.ones([1, 1]), callbacks=[broadcast, hvd.callbacks.ElasticCallback()])
    changed = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    changed.compile(keras.optimizers.SGD(), "mse")
    state = hvd.elastic.KerasState(changed)
    changed.layers[0].trainable = False
    state.save()
    changed.compile(keras.optimizers.SGD(), "mse")
    with pytest.raises(ValueError, match="Received: a model with another optimizer"):
        state.commit()
    changed.add(keras.layers.Dense(1, name="tail"))
    with pytest.raises(
        ValueError, match=r"Received: a model with new weights [^,]*tail/kernel, [^,]*tail/bias$"
    ):
        state.commit()
    plain = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="head")])
    state = hvd.elastic.KerasState(plain, keras.optimizers.SGD())
    with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=plain.layers) as tape:
        loss = tf.reduce_sum(plain(np.ones([1, 1])))
    tape.gradient(loss, plain.trainable_variables)
    with pytest.raises(ValueError, match=r"Received: local variables .*head/kernel, .*head/bias$"):
        state.commit()
    with pytest.raises(ValueError, match="Received: session='session'"):
        hvd.elastic.TensorFlowState([tf.Variable(1.0)], session="session")
    with pytest.raises(ValueError, match="pass a list, or use ObjectState"):
        hvd.elastic.TensorFlowState(step=0)
    with pytest.raises(ValueError, match=r"choose others\. Received: commit, kind"):
        hvd.elastic.ObjectState(commit=1, step=2, kind=3)
    with pytest.raises(ValueError, match="Received: 0"):
        hvd.elastic.CommitStateCallback(hvd.elastic.ObjectState(), 0)
    with pytest.raises(NotImplementedError, match=r"State needs save\(\)"):
        hvd.elastic.State().commit()


@on_ranks(1)
def test_optimizers_of_two_networks(hvd, tmp_path, monkeypatch):
    """As in a GAN: each keeps slots and averages of its own network alone, since it would overwrite the other."""
    import keras

    model = model_of(hvd)
    averaging = {"use_ema": True, "ema_overwrite_frequency": 1}
    model.first, model.second = (keras.optimizers.SGD(0.1, **averaging) for _ in range(2))
    with pytest.raises(
        ValueError, match=r"build an optimizer of a single network .* Received: first, second, not built"
    ):
        hvd.elastic.KerasState(model)
    monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path))
    automatic = hvd.callbacks.ElasticCallback()
    automatic.is_automatic = True
    with logged() as said:
        model.fit(np.ones([1, 3]), np.ones([1, 1]), verbose=0, callbacks=[automatic])
    assert any("else this fit begins anew after a loss" in each for each in said)
    for optimizer, layer in ((model.first, model.layers[0]), (model.second, model.layers[-1])):
        optimizer.build(layer.trainable_variables)
    count = len(model.first.variables)
    state = hvd.elastic.KerasState(model)
    assert len(model.first.variables) == count
    model.first.apply_gradients([(tf.ones_like(each), each) for each in model.layers[0].trainable_variables])
    trained = np.array(model.layers[0].kernel)
    state.restore()
    assert not np.array_equal(model.layers[0].kernel, trained)


@on_ranks(1)
def test_no_room_for_the_files_that_supervisors_read(hvd, tmp_path, monkeypatch):
    """The training goes on; SIGTERM ends the rank, since its supervisor would not."""
    from tfddl.elastic import hand_over, survive

    (tmp_path / "file").touch()
    monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path / "file" / "commits"))
    monkeypatch.setenv("TFDDL_JOB", "job")
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        hand_over.watch_sigterm()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        survive._tell()
        monkeypatch.setenv("TFDDL_COMMITS", str(tmp_path / "commits"))
        hand_over.watch_sigterm()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        survive._tell()
        assert len(list((tmp_path / "commits").iterdir())) == 2
    finally:
        signal.signal(signal.SIGTERM, before)

    def touch(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    (tmp_path / "commits" / "job-hand-over").touch()
    monkeypatch.setattr(hand_over, "_agreed", True)
    monkeypatch.setattr(pathlib.Path, "touch", touch)
    for _ in range(2):  # another rank of the host finds the file of the supervisors gone
        with pytest.raises(SystemExit) as ended:
            hand_over.end_if_agreed()
        assert ended.value.code == 0
    assert (tmp_path / "commits" / f"job-handed-over-{os.getsid(0)}").exists()
