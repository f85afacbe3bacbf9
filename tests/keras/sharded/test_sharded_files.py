"""`.keras` files of sharded optimizers, which load without tfddl."""

import os
import shutil

import numpy as np
import pytest

from tests.harness import on_ranks, run_script
from tests.keras.sharded.support import arrays, check_same, fit, model_and_data, shared
from tests.sets.support import added
from tfddl import _compat

pytestmark = pytest.mark.skipif(_compat.is_keras_2(), reason="ShardedOptimizer is for Keras 3")


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_file_loads_without_tfddl(hvd, tmp_path, monkeypatch, scaled):
    """And on any number of ranks; with all slots as the plain optimizer has them, however few are gathered together."""
    import keras

    from tfddl.ops import variables

    if scaled:
        monkeypatch.setattr(variables, "_AT_ONCE", 3)
        monkeypatch.setattr(variables, "_ELEMENTS_AT_ONCE", 100)  # a kernel has 200

    path = shared(hvd, tmp_path / "model.keras")

    def sharded(optimizer):
        return hvd.ShardedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)

    model, x, y = model_and_data(hvd, sharded)
    fit(hvd, model, x, y)
    model.save(path)
    copy = tmp_path / f"copy-of-{hvd.rank()}.keras"  # Keras 3.4 unpacks weights in the folder of the file
    path = str(shutil.copyfile(path, copy))
    plain = keras.models.load_model(path)
    check_same(arrays(plain.trainable_variables), arrays(model.trainable_variables))
    inner = _compat.innermost(plain.optimizer)
    assert [tuple(each.shape) for each in inner.variables[2:4]] == [(5, 40), (5, 40)]
    if not scaled:
        slots = [each for each in model.optimizer.variables if each.path.endswith("kernel_velocity")]
        found = [each for each in inner.variables if each.path.endswith("kernel_velocity")]
        parts = hvd.allgather_object(arrays(slots))
        wholes = [np.concatenate(each) for each in zip(*parts, strict=True)]
        check_same([each.reshape(-1) for each in arrays(found)], wholes)
    again = keras.models.load_model(path)
    hvd.ShardedOptimizer(again.optimizer)
    for each in (model, again):
        for layer in each.layers:
            if hasattr(layer, "seed_generator"):
                layer.seed_generator.state.assign([hvd.rank(), 0])
    fit(hvd, model, x, y)
    fit(hvd, again, x, y)
    check_same(arrays(again.trainable_variables), arrays(model.trainable_variables))


@on_ranks(2)
def test_refused_files(hvd, tmp_path):
    import keras

    model, x, y = model_and_data(hvd)
    with pytest.raises(ValueError, match=r"use a path that ends in \.keras\. Received: .*model\.h5"):
        model.save(str(tmp_path / "model.h5"))  # before the first step
    path = shared(hvd, tmp_path / "first.keras")
    model.save(path)
    assert os.path.getsize(path) > 1000
    fit(hvd, model, x, y)
    with pytest.raises(ValueError, match=r"use a path that ends in \.keras\. Received: .*model\.h5"):
        model.save(str(tmp_path / "model.h5"))
    with pytest.raises((OSError, FileNotFoundError, ValueError, RuntimeError)):  # on all ranks
        model.save(str(tmp_path / "missing" / "model.keras"))
    for callback in (keras.callbacks.BackupAndRestore(str(tmp_path)), keras.callbacks.SwapEMAWeights()):
        with pytest.raises(ValueError, match="knows the slices of one rank of a ShardedOptimizer: use"):
            fit(hvd, model, x, y, more=[callback])
    if hvd.rank() == 0:
        model.optimizer.iterations.assign(7)
    with pytest.raises(ValueError, match="call load_model on all ranks"):
        fit(hvd, model, x, y)


@on_ranks(2)
def test_the_best_model(hvd, tmp_path):
    """All ranks collect the state, by the metric of the first rank, though each sees another one."""
    import keras

    path = shared(hvd, tmp_path / "best.keras")
    model, x, y = model_and_data(hvd)
    best = hvd.callbacks.BestModelCheckpoint(path, monitor="loss")
    fit(hvd, model, x, y * (1 + hvd.rank()), 3, [best])
    copy = str(shutil.copyfile(path, tmp_path / f"copy-of-{hvd.rank()}.keras"))
    assert [tuple(each.shape) for each in keras.models.load_model(copy).optimizer.variables[2:4]] == [
        (5, 40),
        (5, 40),
    ]


@on_ranks(3)
def test_the_best_model_of_a_process_set(hvd, tmp_path):
    """Its first rank alone validates, and its metric gets no better after the first epoch."""
    import keras

    path = shared(hvd, tmp_path / "best.keras")
    with added(hvd, [1, 2]) as (members,):
        model, x, y = model_and_data(hvd, lambda plain: hvd.ShardedOptimizer(plain, process_set=members))
        if hvd.rank() == 0:  # its weights are others
            model.save(tmp_path / "outside.keras")
            assert not (tmp_path / "outside.keras").exists()
            return
        logs = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update({"own": epoch} if hvd.rank() == 1 else {})
        )
        best = hvd.callbacks.BestModelCheckpoint(path, monitor="own", mode="min", process_set=members)
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(1, process_set=members)
        model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[broadcast, logs, best])
        assert best.best == 0
        copy = str(shutil.copyfile(path, tmp_path / f"copy-of-{hvd.rank()}.keras"))
        assert keras.models.load_model(copy).optimizer.iterations == 6


@on_ranks(2)
def test_a_member_of_a_multi_optimizer(hvd, tmp_path):
    import keras

    kind = getattr(keras.optimizers, "MultiOptimizer", None)
    if kind is None:
        pytest.skip("this Keras has no MultiOptimizer")
    model, x, y = model_and_data(hvd)
    member = hvd.ShardedOptimizer(keras.optimizers.Adam())
    model.compile(kind(lambda variable: member), "mse")
    model.optimizer.build(model.trainable_variables)
    for call in (
        lambda: fit(hvd, model, x, y),
        lambda: model.save(tmp_path / "model.keras"),
        lambda: hvd.ShardedCheckpoint(tmp_path, model).save(),
    ):
        with pytest.raises(ValueError, match="holds the state of its members whole: use"):
            call()


ONE_SAVES = """
import keras, numpy as np
import tfddl as hvd
hvd.init()
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(40), keras.layers.Dense(1)])
model.compile(hvd.ShardedOptimizer(keras.optimizers.Adam()), "mse")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("/tmp/never.keras"))
x = np.ones([32, 5], "float32")
model.fit(x, x[:, 0], epochs=3, verbose=0, callbacks=callbacks)
"""


ONE_SAVES_AT_THE_END = """
import keras
import tfddl as hvd
hvd.init()
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(40)])
model.compile(hvd.ShardedOptimizer(keras.optimizers.Adam()), "mse")
model.optimizer.build(model.trainable_variables)
if hvd.rank() == 0:
    model.save("/tmp/never.keras")
"""


@pytest.mark.parametrize("script", [ONE_SAVES, ONE_SAVES_AT_THE_END])
def test_a_save_of_one_rank_ends_the_job(script):
    result = run_script(2, script, environment={"TFDDL_STALL_WARNING": "6"})
    assert result.code == 1
    assert "save on all ranks, not on one alone: rank 0 writes the file" in result.output
