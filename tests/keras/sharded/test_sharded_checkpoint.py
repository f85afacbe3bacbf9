"""Checkpoints of which each rank writes a part, and elastic commits of divided states."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, run_script
from tests.keras.sharded.support import arrays, check_same, fit, model_and_data, shared
from tests.keras.support import logged
from tfddl import _compat

pytestmark = pytest.mark.skipif(_compat.is_keras_2(), reason="ShardedOptimizer is for Keras 3")


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
    assert len(hvd.broadcast_object(list(Path(directory).glob("checkpoint-*")))) == 2
    seen = trained(3, [hvd.callbacks.ShardedCheckpoint(directory)])  # has nothing to train
    check_same(weights(seen), weights(whole))


@on_ranks(2)
def test_optimizers_of_two_networks(hvd, tmp_path):
    """As in a GAN: each has slots for its own network alone, also in a program that runs again."""
    import keras

    def new():
        keras.utils.set_random_seed(1)
        first, second = (keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]) for _ in range(2))
        model = keras.Sequential([keras.Input((5,)), first, keras.layers.Dense(5), second])
        model.first = hvd.ShardedOptimizer(keras.optimizers.Adam(0.01))
        model.second = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))

        def train():
            for network, optimizer in ((first, model.first), (second, model.second)):
                weights = network.trainable_variables
                optimizer.apply([tf.fill(each.shape, 1.0 + hvd.rank()) for each in weights], weights)
            return arrays([*model.variables, *model.first.variables, *model.second.variables])

        return hvd.ShardedCheckpoint(directory, model), train

    directory = shared(hvd, tmp_path / "checkpoints")
    checkpoint, train = new()
    train()
    checkpoint.save(step=1)
    checkpoint.wait()
    hvd.barrier()
    again, train_again = new()
    assert again.restore() == {"step": 1}
    check_same(train_again(), train())


OTHER_RANKS = """
import sys, keras, numpy as np
import tfddl as hvd
from tfddl.gradients import residuals
from tests.keras.support import logged
from tests.keras.sharded.support import fit, model_and_data
hvd.init()
folder = sys.argv[1]
compression = hvd.Compression.int8()
model, x, y = model_and_data(hvd, lambda optimizer: hvd.ShardedOptimizer(optimizer, compression=compression))
checkpoint = hvd.ShardedCheckpoint(folder + "/checkpoints", model, keep=1)
about = checkpoint.restore()
number = about.get("number", 0)

def unsent():
    found = residuals.of_the_job(compression)
    return np.concatenate([each.ravel() for name, each in found.items() if "unsent" in name])

if number:
    with np.load(folder + "/whole.npz") as whole:
        *expected, left = (whole[f"arr_{index}"] for index in range(len(whole.files)))
    for value, each in zip(model.optimizer.whole_values(), expected, strict=True):
        np.testing.assert_array_equal(value, each)
    found = unsent()
    kept = min(len(found), len(left))
    assert np.abs(found).max() > 1e-5 and not found[kept:].any() and not left[kept:].any()
    np.testing.assert_allclose(found[:kept], left[:kept], atol=1e-6)
fit(hvd, model, x, y)
checkpoint.save(number=number + 1)
values = [*model.optimizer.whole_values(), unsent()]
if hvd.rank() == 0:
    np.savez(folder + "/whole.npz", *values)
checkpoint.wait()
print("went on from", number, flush=True)
"""


@pytest.mark.slow
def test_another_number_of_ranks(tmp_path):
    """Checkpoints of three ranks serve one, then two, with all slots and the mean residual."""
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
    with contextlib.redirect_stderr(io.StringIO()) as said:
        other, other_diloco = trained(3, hvd.callbacks.ShardedCheckpoint(directory))
    assert said.getvalue().count("tfddl: going on from ") == (hvd.rank() == 0)
    check_same(other.get_weights(), model.get_weights())
    check_same(arrays(other_diloco.outer_variables), arrays(diloco.outer_variables))
    check_same(arrays(other.optimizer.variables), arrays(model.optimizer.variables))


@on_ranks(2)
@pytest.mark.parametrize("way", ["tape", "callback", "one rank"])
def test_local_layers(hvd, tmp_path, way):
    """Each rank gets its own weights and slots back: of a tape, of the broadcast, and of a rank outside a process set."""
    import keras

    from tfddl.gradients import reduced_marks

    keras.utils.set_random_seed(1)
    head = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), head])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 2)).astype("float32")
    if way == "tape":
        with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[head]) as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)
        head.kernel.assign_add([[1.0 + hvd.rank()]] * 3)
        optimizer.variables[-2].assign([[1.0 + hvd.rank()]] * 3)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    if way == "callback":
        local = [*head.trainable_variables, optimizer.variables[-2]]
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local)
        model.fit(x, x[:, 0], verbose=0, callbacks=[broadcast])
    elif way == "one rank" and hvd.rank() == 1:
        reduced_marks.leave_own([head.kernel])
    kept = arrays([*model.variables, *optimizer.variables])
    assert len(set(hvd.allgather_object(head.kernel.numpy().tobytes()))) == 2
    checkpoint = hvd.ShardedCheckpoint(shared(hvd, tmp_path / "checkpoints"), model)
    checkpoint.save()
    checkpoint.wait()
    hvd.barrier()
    for each in (*model.variables, *optimizer.variables):
        each.assign(tf.zeros_like(each))
    checkpoint.restore()
    check_same(arrays([*model.variables, *optimizer.variables]), kept)


@on_ranks(2)
@pytest.mark.parametrize("way", ["one rank", "DiLoCo"])
def test_the_best_weights_are_saved(hvd, tmp_path, way):
    """The last checkpoint has what EarlyStopping has restored, and StopTogetherCallback made equal."""
    import keras

    directory = shared(hvd, tmp_path / "checkpoints")
    worsens = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(own=epoch))

    def trained():
        wrap = hvd.DistributedOptimizer if way == "one rank" else lambda optimizer: optimizer
        model, x, y = model_and_data(hvd, wrap)
        stopping = keras.callbacks.EarlyStopping("own", mode="min", patience=9, restore_best_weights=True)
        diloco = hvd.callbacks.DiLoCo(every=4)
        more = [worsens, hvd.callbacks.ShardedCheckpoint(directory)]
        more += [stopping] if way == "DiLoCo" or hvd.rank() == 0 else []
        more += [diloco] if way == "DiLoCo" else []
        fit(hvd, model, x, y, 2, more)
        return model, diloco

    model, diloco = trained()
    hvd.barrier()
    again, _ = trained()  # has nothing to train
    check_same(again.get_weights(), model.get_weights())
    if way == "DiLoCo":
        check_same(arrays(diloco.outer_variables[:1]), arrays(model.trainable_variables[:1]))


@on_ranks(2)
@pytest.mark.parametrize("way", ["stop", "NaN"])
def test_an_epoch_that_is_cut(hvd, tmp_path, way):
    """An epoch without its last batch is not done. NaN, here on one rank alone, pushes no checkpoint out."""
    import keras

    directory = shared(hvd, tmp_path / "checkpoints")
    model, x, y = model_and_data(hvd, hvd.DistributedOptimizer)
    done = []

    def act(batch, logs):
        done.append(batch)
        if len(done) == 8:
            if way == "stop":
                model.stop_training = True
            elif hvd.rank() == 1:
                model.layers[0].kernel.assign(tf.fill([5, 40], float("nan")))

    saver = hvd.callbacks.ShardedCheckpoint(directory, save_freq=2, keep=1)
    acting = keras.callbacks.LambdaCallback(on_train_batch_end=act)
    with logged() as said:
        fit(hvd, model, x, y, 2, [saver, acting])
    hvd.barrier()
    assert hvd.ShardedCheckpoint(directory, model).restore() == {"epoch": 1}
    assert model.optimizer.iterations.numpy() == (8 if way == "stop" else 6)
    assert np.isfinite(model.layers[0].kernel.numpy()).all()
    assert any("saves nothing while weights are NaN" in each for each in said) == (
        way == "NaN" and hvd.rank() == 0
    )


@on_ranks(2)
def test_averages_in_the_model(hvd, tmp_path):
    """At the end of an epoch SwapEMAWeights has put averages into the model; training goes on from the weights."""
    import keras

    directory = shared(hvd, tmp_path / "checkpoints")
    model, x, y = model_and_data(hvd, hvd.DistributedOptimizer, use_ema=True, ema_momentum=0.9)
    seen = {}

    def cut(epoch, logs):
        if epoch == 1:
            seen["begin"] = arrays([*model.trainable_variables, *model.optimizer.variables])
            raise KeyboardInterrupt

    notes = keras.callbacks.LambdaCallback(
        on_epoch_begin=cut, on_epoch_end=lambda *_: seen.update(end=arrays(model.trainable_variables))
    )
    more = [
        hvd.callbacks.ShardedCheckpoint(directory),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        notes,
    ]
    with pytest.raises(KeyboardInterrupt):
        fit(hvd, model, x, y, 3, more)
    assert any(np.abs(a - b).max() > 0.01 for a, b in zip(seen["begin"], seen["end"], strict=False))
    more[0]._checkpoint.wait()
    hvd.barrier()
    assert hvd.ShardedCheckpoint(directory, model).restore() == {"epoch": 1}
    found = arrays([*model.trainable_variables, *model.optimizer.variables])
    for one, other in zip(found, seen["begin"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)  # Keras swaps by adding and subtracting


@on_ranks(1, 2, 3)
def test_elastic_states(hvd):
    """A commit holds whole slots, of which each rank takes its slices back."""
    model, x, y = model_and_data(hvd)
    state = hvd.elastic.KerasState(model, epoch=0)
    fit(hvd, model, x, y)
    state.commit()
    whole, slots = list(model.optimizer.whole_values()), arrays(model.optimizer.variables)
    attributes, values, beside = state.content()
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
    state.load((attributes, values, beside))
    state.sync()
    check_same(arrays(model.optimizer.variables), slots)


@on_ranks(2)
def test_damage(hvd, tmp_path, monkeypatch):
    """An error of one rank alone, a part that is cut, a part that lacks, and another model."""
    from pathlib import Path

    from tfddl.keras.sharded import contents

    directory = shared(hvd, tmp_path / "checkpoints")
    model, x, y = model_and_data(hvd)
    fit(hvd, model, x, y)
    first = model.get_weights()
    checkpoint = hvd.ShardedCheckpoint(directory, model)
    for epoch in (1, 2):
        checkpoint.save(epoch=epoch)
    checkpoint.wait()
    hvd.barrier()
    with monkeypatch.context() as patched:
        if hvd.rank() == 0:
            patched.setattr(contents, "resume_residuals", lambda *_: [][0])
        with pytest.raises(ValueError, match=r"Received: .*rank 0: IndexError: list index"):
            hvd.ShardedCheckpoint(directory, model).restore()
    hvd.barrier()
    newest = max(Path(directory).glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
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

    for units, kind, received in (
        (40, "RMSprop", r"\['RMSprop'\]}, in .*'Adam'"),
        (41, "Adam", "kernel of shape"),
    ):
        layers = [keras.layers.Dense(units, use_bias=False), keras.layers.BatchNormalization()]
        other = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1)])
        other.compile(hvd.ShardedOptimizer(getattr(keras.optimizers, kind)()), "mse")
        with pytest.raises(ValueError, match=rf"another model or optimizer: .* Received: .*{received}"):
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
        for epoch in (2, 3, 4):
            checkpoint.save(epoch=epoch)
            checkpoint.wait()
            hvd.barrier()
    finally:
        parts.os.fsync = plain
        logging.getLogger("tfddl").removeHandler(listener)
    hvd.barrier()
    if hvd.rank() == 1:
        assert heard[0].startswith("Rank 1 could not write its part of checkpoint 2")
    assert len(heard) == 3 * hvd.rank()
    # The last two may still be written by other ranks; the part of rank 0 of the second checkpoint would fill the disk.
    assert sorted(int(folder.name.split("-")[1]) for folder in Path(directory).glob("checkpoint-*")) == [
        1,
        3,
        4,
    ]
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
        ValueError, match=r"that all ranks share, and can make and write to\. Received: .*File exists"
    ):
        hvd.ShardedCheckpoint(__file__, model).restore()
    with pytest.raises(TypeError, match="JSON"):
        hvd.ShardedCheckpoint(shared(hvd, tmp_path), model).save(epoch=object())


@on_ranks(2)
def test_another_job_beside(hvd, tmp_path):
    """Two jobs with one directory remove each other's checkpoints."""
    directory = shared(hvd, tmp_path / "checkpoints")
    model, _, _ = model_and_data(hvd)
    with logged() as said:
        hvd.ShardedCheckpoint(directory, model).restore()
        hvd.ShardedCheckpoint(directory, model).restore()  # the same job again
    assert said == []
    hold = "import fcntl, sys\nlock = open(sys.argv[1], 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\nprint(flush=True)\ninput()"
    other = Path(shared(hvd, tmp_path / "others"))
    with contextlib.ExitStack() as stack:
        if hvd.rank() == 0:
            other.mkdir(exist_ok=True)  # the other rank may have made it
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            job = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", hold, other / ".lock"], **pipes)
            )
            job.stdout.readline()
            stack.callback(job.stdin.close)
        checkpoint = hvd.ShardedCheckpoint(other, model)
        with logged() as said:
            checkpoint.save(epoch=1)
            checkpoint.save(epoch=2)
            checkpoint.wait()
        assert len(said) == (hvd.rank() == 0)
        if hvd.rank() == 0:
            assert "Another job saves" in said[0] and str(other) in said[0]
    hvd.barrier()
    assert hvd.ShardedCheckpoint(other, model).restore() == {"epoch": 2}
