"""`rank_zero_only`: a callback on one rank, and those that have to run on all."""

import csv

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras import support


@on_ranks(2, full=(1, 3))
def test_one_rank_writes(hvd, tmp_path):
    network = support.model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    shard = support.shard(support.data(hvd.size(), steps=4), hvd.rank(), hvd.size())
    path = tmp_path / f"log.{hvd.rank()}.csv"
    checkpoint = tmp_path / f"model.{hvd.rank()}.keras"
    network.fit(
        *shard,
        batch_size=support.BATCH,
        epochs=2,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.rank_zero_only(keras.callbacks.CSVLogger(path)),
            hvd.callbacks.rank_zero_only(keras.callbacks.ModelCheckpoint(checkpoint)),
        ],
    )
    assert [file.exists() for file in (path, checkpoint)] == [hvd.rank() == 0] * 2
    if hvd.rank() == 0:
        assert len(list(csv.DictReader(path.open()))) == 2
    weights = np.concatenate([np.ravel(each) for each in network.get_weights()])
    assert all(np.array_equal(weights, each) for each in hvd.allgather_object(weights))


@on_ranks(1)
def test_what_changes_the_training_is_refused(hvd):
    for callback in (keras.callbacks.ReduceLROnPlateau(), hvd.callbacks.MetricAverageCallback()):
        with pytest.raises(ValueError, match=f"All ranks have to run a {type(callback).__name__}"):
            hvd.callbacks.rank_zero_only(callback)
    with pytest.raises(TypeError, match=r"a callback of Keras: .* Received: 'TensorBoard'"):
        hvd.callbacks.rank_zero_only("TensorBoard")


@on_ranks(1)
def test_names_of_modules(hvd):
    import tfddl.keras as other
    from tfddl.callbacks import BroadcastGlobalVariablesCallback

    assert BroadcastGlobalVariablesCallback is hvd.callbacks.BroadcastGlobalVariablesCallback
    assert other.init is hvd.init
    assert other.DistributedOptimizer is hvd.DistributedOptimizer
    before = hvd.stats()["requests"]
    hvd.allreduce(1.0)
    assert hvd.stats()["requests"] == before + 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spark", "start the training on the hosts of the cluster by tfddlrun or mpirun"),
        ("LocalGradientAggregationHelper", "backward_passes_per_step"),
        ("vars_to_refs", "programs that import horovod; start them by tfddlrun --horovod"),
        ("mpi_ops", "programs that import horovod"),
    ],
)
def test_absent_names_of_horovod(name, text):
    import tfddl

    with pytest.raises(AttributeError, match=f"module 'tfddl' has no attribute '{name}': .*{text}"):
        getattr(tfddl, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = tfddl.nothing
