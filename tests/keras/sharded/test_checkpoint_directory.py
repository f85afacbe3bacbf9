"""Directories of checkpoints: of several ranks, of several programs, and of layers with more than variables."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras.sharded.support import shared
from tests.keras.support import logged


def one_weight(value):
    import keras

    constant = keras.initializers.Constant(value)
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer=constant)])


@on_ranks(2, 3)
def test_a_directory_that_ranks_do_not_share(hvd, tmp_path):
    from tfddl.keras.sharded import checkpoint as module
    from tfddl.keras.sharded import parts

    base = shared(hvd, tmp_path)
    mine = f"{base}/of-rank-{hvd.rank()}"
    message = rf"that all ranks share.* Received: .*rank 1: {base}/of-rank-1 is another directory than that of rank 0"
    checkpoint = hvd.ShardedCheckpoint(mine, one_weight(1.0))
    for call in (checkpoint.restore, checkpoint.save):
        with mock.patch.object(parts, "_SECONDS_TO_SEE", 0.3), pytest.raises(ValueError, match=message):
            call()
    hvd.barrier()
    assert not list(tmp_path.glob("*/.shared-*"))

    def refuse(base, token):
        raise PermissionError("not here")

    leaves = mock.patch.object(module, "leave_mark", refuse if hvd.rank() == 0 else parts.leave_mark)
    with leaves, pytest.raises(ValueError, match=r"Received: rank 0: not here$"):
        hvd.ShardedCheckpoint(base, one_weight(1.0)).restore()


@on_ranks(1, 2)
def test_a_program_that_does_not_restore(hvd, tmp_path):
    """Its checkpoints follow those of earlier programs, and are the newest."""
    directory = shared(hvd, tmp_path / "checkpoints")
    for value, count in ((1.0, 3), (2.0, 1)):
        checkpoint = hvd.ShardedCheckpoint(directory, one_weight(value))
        for step in range(count):
            checkpoint.save(step=step)
        checkpoint.wait()
        hvd.barrier()
    model = one_weight(0.0)
    assert hvd.ShardedCheckpoint(directory, model).restore() == {"step": 0}
    assert model.get_weights()[0] == 2.0


@on_ranks(1, 2)
def test_two_models_in_one_directory(hvd, tmp_path):
    directory = shared(hvd, tmp_path / "checkpoints")
    first, second = (hvd.ShardedCheckpoint(directory, one_weight(value)) for value in (1.0, 2.0))
    first.save()
    second.save()
    with pytest.raises(ValueError, match=r"give each a directory of its own\. Received: '.*/checkpoints'"):
        first.save()


@on_ranks(1)
def test_what_is_refused(hvd, tmp_path):
    for directory in ("gs://bucket/checkpoints", Path("gs://bucket/checkpoints")):
        with pytest.raises(ValueError, match=r"Received: .*'gs:/.*bucket/checkpoints'"):
            hvd.ShardedCheckpoint(directory, one_weight(1.0))
    model = one_weight(1.0)
    model.compile("sgd", "mse")
    checkpoint = hvd.ShardedCheckpoint(tmp_path, model)
    for saved_with in ({"step": 3}, {}):
        checkpoint.save(**saved_with)
        checkpoint.wait()
        callbacks = [hvd.callbacks.ShardedCheckpoint(tmp_path)]
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"goes on from checkpoints .* saved with {saved_with}"):
                model.fit(np.ones([1, 1]), np.ones([1, 1]), callbacks=callbacks)


@on_ranks(1, 2)
def test_a_fit_that_is_interrupted(hvd, tmp_path):
    """As in a notebook: the same callbacks go on with the epoch."""
    import keras

    def interrupt(epoch, logs):
        if epoch == 1 and not interrupted:
            interrupted.append(epoch)
            raise KeyboardInterrupt

    interrupted = []
    model = one_weight(1.0)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    saves = hvd.callbacks.ShardedCheckpoint(shared(hvd, tmp_path / "checkpoints"))
    stops = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), saves, stops]
    with pytest.raises(KeyboardInterrupt):
        model.fit(np.ones([2, 1]), np.ones([2, 1]), epochs=3, verbose=0, callbacks=callbacks)
    again = model.fit(np.ones([2, 1]), np.ones([2, 1]), epochs=3, verbose=0, callbacks=callbacks)
    assert again.epoch == [1, 2]


@on_ranks(1)
def test_a_model_without_optimizer_restores_the_weights(hvd, tmp_path):
    model = one_weight(1.0)
    model.compile("adam", "mse")
    checkpoint = hvd.ShardedCheckpoint(tmp_path, model)
    checkpoint.save(epoch=1)
    checkpoint.wait()
    other = one_weight(0.0)
    with logged() as warnings:
        assert hvd.ShardedCheckpoint(tmp_path, other).restore() == {"epoch": 1}
    assert len(warnings) == 1 and warnings[0].endswith("Received: Adam")
    assert other.get_weights()[0] == 1.0


@on_ranks(1, 2)
@pytest.mark.parametrize("way", ["checkpoint", "elastic"])
def test_adapted_layers(hvd, tmp_path, way):
    """A program that goes on need not adapt again: Normalization computes with the restored mean."""
    import keras

    def model():
        return keras.Sequential([keras.Input((1,)), keras.layers.Normalization()])

    directory = shared(hvd, tmp_path / "checkpoints")
    adapted, other = model(), model()
    adapted.layers[0].adapt(np.array([[10.0], [30.0]]))
    if way == "checkpoint":
        checkpoint = hvd.ShardedCheckpoint(directory, adapted)
        checkpoint.save()
        checkpoint.wait()
        hvd.barrier()
        hvd.ShardedCheckpoint(directory, other).restore()
    else:
        states = [hvd.elastic.KerasState(each, keras.optimizers.SGD()) for each in (adapted, other)]
        states[1].load(states[0].content())
    np.testing.assert_allclose(other(np.array([[30.0]])), [[1.0]], rtol=1e-5)
