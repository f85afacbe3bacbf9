"""Files of sharded optimizers: `.keras` files that load without tfddl, and checkpoints of which each rank writes a part."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tfddl import _compat

pytestmark = pytest.mark.skipif(_compat.is_keras_2(), reason="ShardedOptimizer is for Keras 3")


def model_and_data(hvd, wrap=None, rows=48, dtype=None, **options):
    import keras

    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((5,)),
        keras.layers.Dense(40, use_bias=False, dtype=dtype),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential(layers)
    model.compile((wrap or hvd.ShardedOptimizer)(keras.optimizers.Adam(0.01, **options)), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(rows, 5)).astype("float32")
    return model, x, x.sum(axis=1)


def fit(hvd, model, x, y, epochs=1, more=()):
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *more]
    return model.fit(
        x, y, batch_size=8, epochs=epochs, initial_epoch=0, shuffle=False, verbose=0, callbacks=callbacks
    )


def shared(hvd, path):
    return hvd.broadcast_object(str(path))


def arrays(variables):
    return [tf.convert_to_tensor(each).numpy() for each in variables]


def check_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_file_loads_without_tfddl(hvd, tmp_path, scaled):
    """And on any number of ranks; with all slots as the plain optimizer has them."""
    import keras

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


def test_a_save_of_one_rank_ends_the_job():
    result = run_script(2, ONE_SAVES, environment={"TFDDL_STALL_WARNING": "6"})
    assert result.code == 1
    assert "save on all ranks, not on one alone: rank 0 writes the file" in result.output


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("optimizer", ["sharded", "distributed", "bfloat16"])
def test_fit_goes_on(hvd, tmp_path, optimizer):
    """Three epochs at once, and one and then the others in another model, have the same weights and slots.

    The moving statistics of all ranks but rank 0 are those of the broadcast.
    """
    directory = shared(hvd, tmp_path / "checkpoints")
    wrap = hvd.DistributedOptimizer if optimizer == "distributed" else hvd.ShardedOptimizer
    dtype = "bfloat16" if optimizer == "bfloat16" else None

    def trained(epochs, more=()):
        model, x, y = model_and_data(hvd, wrap, dtype=dtype)
        model.layers[2].seed_generator.state.assign([hvd.rank(), 0])
        fit(hvd, model, x, y, epochs, more)
        return model

    def weights(model):
        return arrays(model.variables if hvd.rank() == 0 else model.trainable_variables)

    whole = trained(3)
    trained(1, [hvd.callbacks.ShardedCheckpoint(directory)])
    continued = trained(3, [hvd.callbacks.ShardedCheckpoint(directory, save_freq=4)])
    check_same(weights(continued), weights(whole))
    check_same(arrays(continued.optimizer.variables), arrays(whole.optimizer.variables))
    hvd.barrier()
    assert len(hvd.broadcast_object(os.listdir(directory))) == 2
    seen = trained(3, [hvd.callbacks.ShardedCheckpoint(directory)])  # has nothing to train
    check_same(weights(seen), weights(whole))


OTHER_RANKS = """
import sys, keras, numpy as np
import tfddl as hvd
from tests.keras.sharded.test_sharded_files import fit, model_and_data
hvd.init()
folder = sys.argv[1]
model, x, y = model_and_data(hvd)
checkpoint = hvd.ShardedCheckpoint(folder + "/checkpoints", model, keep=1)
about = checkpoint.restore()
number = about.get("number", 0)
if number:
    with np.load(folder + "/whole.npz") as whole:
        for index, value in enumerate(model.optimizer.whole_values()):
            np.testing.assert_array_equal(value, whole[f"arr_{index}"])
fit(hvd, model, x, y)
checkpoint.save(number=number + 1)
values = list(model.optimizer.whole_values())
if hvd.rank() == 0:
    np.savez(folder + "/whole.npz", *values)
checkpoint.wait()
print("went on from", number, flush=True)
"""


@pytest.mark.slow
def test_another_number_of_ranks(tmp_path):
    """Checkpoints of three ranks serve one, then two, with all slots."""
    for number, size in enumerate((3, 1, 2)):
        result = run_script(size, OTHER_RANKS, str(tmp_path))
        assert result.code == 0, result.output
        assert result.output.count(f"went on from {number}") == size


@on_ranks(1, 2)
@pytest.mark.parametrize("options", [{}, {"fragments": 2, "delay": 2, "mixing": 0.5}], ids=str)
def test_local_steps_go_on(hvd, tmp_path, options):
    """In the middle between two exchanges, and while one is under way: theta, momentum, weights and counts are the same."""
    directory = shared(hvd, tmp_path / "checkpoints")

    def new():
        import keras

        model, *_ = model_and_data(hvd, lambda optimizer: optimizer)
        optimizer = keras.optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)
        local = hvd.DiLoCo(model.trainable_variables, 6, **options)
        gradients = [
            [tf.constant(np.random.default_rng((hvd.rank(), step, slot)).normal(size=each.shape), tf.float32)]
            for step in range(16)
            for slot, each in enumerate(model.trainable_variables)
        ]

        def train(first, last):
            count = len(model.trainable_variables)
            for step in range(first, last):
                own = [each for (each,) in gradients[step * count : (step + 1) * count]]
                optimizer.apply(own, model.trainable_variables)
                local.step()

        checkpoint = hvd.ShardedCheckpoint(directory, model, optimizer, local_steps=local)
        return model, local, train, checkpoint

    model, local, train, checkpoint = new()
    train(0, 10)  # an exchange of the first fragment is under way
    checkpoint.save(step=10)
    checkpoint.wait()
    hvd.barrier()
    train(10, 16)
    local.finish()
    other, other_local, other_train, other_checkpoint = new()
    assert other_checkpoint.restore() == {"step": 10}
    other_train(10, 16)
    other_local.finish()
    check_same(other.get_weights(), model.get_weights())
    check_same(arrays(other_local.outer_variables), arrays(local.outer_variables))


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("kind", ["PowerSGD", "int8", "tape"])
def test_residuals_go_on(hvd, tmp_path, kind):
    """Weights and residuals are those of a training that was not cut. The compression of tapes is given by the program."""
    directory = shared(hvd, tmp_path / "checkpoints")

    def new():
        import keras

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((9,)), keras.layers.Dense(20), keras.layers.Dense(1)])
        compression = hvd.Compression.int8() if kind == "int8" else hvd.PowerSGD(rank=1)
        optimizer = keras.optimizers.SGD(0.01)
        given = {}
        if kind == "tape":
            given["compression"] = compression
        else:
            hvd.DistributedOptimizer(optimizer, compression=compression)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(rows):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(rows)[:, 0] - rows[:, 0]) ** 2)
            if kind == "tape":
                tape = hvd.DistributedGradientTape(tape, compression=compression)
            weights = [each.value for each in model.trainable_variables]
            optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)

        def train(first, last):
            for number in range(first, last):
                random = np.random.default_rng((hvd.rank(), number))
                step(tf.constant(random.normal(size=(8, 9)), tf.float32))

        checkpoint = hvd.ShardedCheckpoint(directory, model, optimizer, **given)
        return model, compression, train, checkpoint

    model, compression, train, checkpoint = new()
    train(0, 3)
    checkpoint.save(step=3)
    checkpoint.wait()
    hvd.barrier()
    train(3, 6)
    assert hvd.size() == 1 or any(np.abs(each).max() > 0 for each in arrays(compression.variables))
    for _ in range(2):  # a program that runs again, then one that goes back
        other, other_compression, other_train, other_checkpoint = new()
        assert other_checkpoint.restore() == {"step": 3}
        other_train(3, 6)
        check_same(other.get_weights(), model.get_weights())
        check_same(arrays(other_compression.variables), arrays(compression.variables))
        assert other_checkpoint.restore() == {"step": 3}
        other_train(3, 6)
        check_same(arrays(other_compression.variables), arrays(compression.variables))


@on_ranks(2)
def test_fit_with_diloco_goes_on(hvd, tmp_path):
    directory = shared(hvd, tmp_path / "checkpoints")

    def trained(epochs, *more):
        model, x, y = model_and_data(hvd, lambda optimizer: optimizer)
        model.layers[2].seed_generator.state.assign([hvd.rank(), 0])
        diloco = hvd.callbacks.DiLoCo(every=6)  # one epoch
        fit(hvd, model, x, y, epochs, [*more, diloco])
        return model, diloco

    model, diloco = trained(3)
    trained(1, hvd.callbacks.ShardedCheckpoint(directory))
    other, other_diloco = trained(3, hvd.callbacks.ShardedCheckpoint(directory))
    check_same(other.get_weights(), model.get_weights())
    check_same(arrays(other_diloco.outer_variables), arrays(diloco.outer_variables))
    check_same(arrays(other.optimizer.variables), arrays(model.optimizer.variables))


@on_ranks(1, 2, 3)
def test_elastic_states(hvd):
    """A commit holds whole slots, of which each rank takes its slices back."""
    model, x, y = model_and_data(hvd)
    state = hvd.elastic.KerasState(model, epoch=0)
    fit(hvd, model, x, y)
    state.commit()
    whole, slots = list(model.optimizer.whole_values()), arrays(model.optimizer.variables)
    attributes, values = state.content()
    assert attributes == {"epoch": 0}
    shapes = [each.shape for each in values]
    for each in whole:
        assert any(np.array_equal(each, value) for value in values)
    assert len(values) == len(model.optimizer.variables) + len(model.weights)
    assert str(shapes) in state.kind().replace("TensorShape", "")
    fit(hvd, model, x, y)
    state.restore()
    check_same(arrays(model.optimizer.variables), slots)
    fit(hvd, model, x, y)
    state.load((attributes, values))
    state.sync()
    check_same(arrays(model.optimizer.variables), slots)


@on_ranks(2)
def test_damage(hvd, tmp_path):
    """A part that is cut, a part that lacks, and another model."""
    from pathlib import Path

    directory = shared(hvd, tmp_path / "checkpoints")
    model, x, y = model_and_data(hvd)
    fit(hvd, model, x, y)
    first = model.get_weights()
    checkpoint = hvd.ShardedCheckpoint(directory, model)
    for epoch in (1, 2):
        checkpoint.save(epoch=epoch)
    checkpoint.wait()
    hvd.barrier()
    newest = max(Path(directory).iterdir(), key=lambda path: int(path.name.split("-")[1]))
    part = newest / "rank-1.npz"
    if hvd.rank() == 1:
        part.write_bytes(part.read_bytes()[:200])
    hvd.barrier()
    with pytest.raises(ValueError, match=r"remove this checkpoint to go on from an older one\. Received: "):
        hvd.ShardedCheckpoint(directory, model).restore()
    hvd.barrier()
    if hvd.rank() == 1:
        part.unlink()  # as if rank 1 was killed while it wrote
    hvd.barrier()
    model.set_weights([each + 1 for each in first])
    assert hvd.ShardedCheckpoint(directory, model).restore() == {"epoch": 1}
    check_same(model.get_weights(), first)
    import keras

    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(41)])
    other.compile(hvd.ShardedOptimizer(keras.optimizers.Adam()), "mse")
    with pytest.raises(ValueError, match=r"another model or optimizer: .* Received: .*kernel of shape"):
        hvd.ShardedCheckpoint(directory, other).restore()


@on_ranks(2)
def test_a_disk_that_is_full(hvd, tmp_path):
    """The checkpoint before stays, with a warning of the rank that could not write."""
    import logging

    from tfddl.keras.sharded import parts

    directory = shared(hvd, tmp_path / "checkpoints")
    model, x, y = model_and_data(hvd)
    fit(hvd, model, x, y)
    checkpoint = hvd.ShardedCheckpoint(directory, model)
    checkpoint.save(epoch=1)
    checkpoint.wait()

    def full(number):
        raise OSError(28, "No space left")

    heard = []
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger("tfddl").addHandler(listener)
    plain = parts.os.fsync
    if hvd.rank() == 1:
        parts.os.fsync = full
    try:
        checkpoint.save(epoch=2)
        checkpoint.wait()
    finally:
        parts.os.fsync = plain
        logging.getLogger("tfddl").removeHandler(listener)
    hvd.barrier()
    if hvd.rank() == 1:
        assert heard[0].startswith("Rank 1 could not write its part of checkpoint 2")
    assert len(heard) == hvd.rank()
    assert hvd.ShardedCheckpoint(directory, model).restore() == {"epoch": 1}


@on_ranks(2)
def test_wrong_arguments(hvd, tmp_path):
    import keras

    with pytest.raises(ValueError, match=r'save_freq is "epoch" or a number of batches: .* save_freq=0'):
        hvd.callbacks.ShardedCheckpoint("folder", save_freq=0)
    with pytest.raises(ValueError, match=r"pass 1 or more\. Received: keep=0"):
        hvd.callbacks.ShardedCheckpoint("folder", keep=0)
    with pytest.raises(ValueError, match=r"needs the weights: call model\.build"):
        hvd.ShardedCheckpoint("folder", keras.Sequential([keras.layers.Dense(1)]))
    model, x, y = model_and_data(hvd)
    callback = hvd.callbacks.ShardedCheckpoint(shared(hvd, tmp_path / "one"))
    fit(hvd, model, x, y, more=[callback])
    for each in (model, model_and_data(hvd)[0]):
        with pytest.raises(
            ValueError, match=r"serves one call of fit: .* Received: ShardedCheckpoint\('.*one'\) again"
        ):
            fit(hvd, each, x, y, more=[callback])
    hvd.barrier()
    with pytest.raises(
        ValueError, match=r"use a directory that all ranks can make and write to\. Received: .*File exists"
    ):
        hvd.ShardedCheckpoint(__file__, model).restore()
    with pytest.raises(TypeError, match="JSON"):
        hvd.ShardedCheckpoint(shared(hvd, tmp_path), model).save(epoch=object())
