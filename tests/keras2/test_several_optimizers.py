"""A model of Keras 2 with an optimizer for each of its parts, of which one combines nothing."""

import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras.support import logged
from tests.keras2 import support

keras = tf.keras
KINDS = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}


class Parts(keras.Model):
    """Two layers, each trained by an optimizer of its own; built in the first step."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(8), keras.layers.Dense(support.TARGETS)]

    def call(self, x):
        return self.parts[1](self.parts[0](x))

    def compile(self, optimizers):
        super().compile()
        self.optimizers = optimizers

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        for part, optimizer in zip(self.parts, self.optimizers, strict=True):
            variables = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("kind", KINDS)
@on_ranks(1, 2, 3)
def test_one_of_two_optimizers_is_plain(hvd, kind):
    keras.utils.set_random_seed(7 + hvd.rank())
    network, mine = Parts(), support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
    network.compile([hvd.DistributedOptimizer(KINDS[kind].Adam(0.01)), KINDS[kind].SGD(0.01)])

    def fit(local=None):
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local)
        with logged() as said:
            network.fit(*mine, batch_size=support.BATCH, epochs=2, verbose=0, callbacks=[first])
        return [line for line in said if "were equal on all ranks" in line]

    said = fit()
    assert len(said) == (hvd.size() > 1 and hvd.rank() == 0)
    names = ", ".join(variable.name for variable in network.parts[1].trainable_variables)
    received = f"took steps: model.optimizers[1] (SGD); weights that differ: {names}"
    assert all(received in line for line in said)
    assert not fit(network.parts[1].trainable_variables)
