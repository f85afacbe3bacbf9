"""A program for Horovod and Keras 2, under Keras 3: its losses and weights are those of one process with larger batches."""

import copy
import inspect
import os
import pickle
import sys
import types
from pathlib import Path

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

directory = Path(sys.argv[1])
hvd.init()
assert int(os.environ["HOROVOD_RANK"]) == hvd.rank() and int(os.environ["HOROVOD_SIZE"]) == hvd.size()
assert int(os.environ["HOROVOD_LOCAL_RANK"]) == hvd.local_rank()
assert os.environ["HOROVOD_HOSTNAME"] == os.uname().nodename
data = np.random.default_rng(1)
x = data.normal(size=(24 * hvd.size(), 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def model(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])


network = model(hvd.rank())
optimizer = hvd.DistributedOptimizer(
    tf.keras.optimizers.legacy.SGD(lr=0.05, momentum=0.9),
    backward_passes_per_step=2,
    average_aggregated_gradients=True,
)
assert optimizer.__class__.__module__.startswith("horovod._keras")
assert isinstance(optimizer, keras.optimizers.SGD)
tf.keras.backend.set_value(optimizer.learning_rate, 0.2)
assert float(optimizer.learning_rate) == np.float32(0.2)
optimizer.lr = 0.1
# lr wins over learning_rate, as in Keras 2: libraries put lr into a config, which has learning_rate.
adam = keras.optimizers.Adam(0.1, 0.8)
scaled = keras.optimizers.Adam.from_config({**adam.get_config(), "lr": adam.learning_rate * 2})
for each in (scaled, keras.optimizers.Adam(0.1, 0.8, lr=scaled.learning_rate)):
    assert float(each.learning_rate) == np.float32(0.2) and each.beta_1 == 0.8
assert network.trainable_variables[0].ref() == network.trainable_variables[0].value.ref()
mean = keras.metrics.Mean()
mean.update_state(3.0)
mean.reset_states()
assert float(mean.result()) == 0.0
network.compile(
    loss=tf.keras.losses.mean_squared_error, optimizer=optimizer, experimental_run_tf_function=False
)
mine = slice(hvd.rank(), None, hvd.size())
history = network.fit(
    x[mine],
    y[mine],
    batch_size=4,
    epochs=3,
    shuffle=False,
    verbose=0,
    callbacks=[BroadcastGlobalVariablesCallback(0), MetricAverageCallback()],
    workers=2,
)
assert len(optimizer.variables()) == len(optimizer.variables) > 2
assert int(optimizer._agg_helper.counter) == 0

alone = model(0)
alone.compile(loss="mse", optimizer=keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2))
expected = alone.fit(x, y, batch_size=4 * hvd.size(), epochs=3, shuffle=False, verbose=0)
np.testing.assert_allclose(history.history["loss"], expected.history["loss"], rtol=1e-4)
for own, other in zip(network.get_weights(), alone.get_weights(), strict=True):
    np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)

path = directory / f"{hvd.rank()}.keras"
network.save(path)
loaded = hvd.load_model(path)
assert loaded.optimizer.__class__.__module__.startswith("horovod._keras")
for other in (
    optimizer.__class__.from_config(optimizer.get_config()),
    type(optimizer).from_config(optimizer.get_config()),
    copy.deepcopy(optimizer),
    pickle.loads(pickle.dumps(optimizer)),
):
    assert other.__class__.__module__.startswith("horovod._keras") and other is not optimizer
    assert (
        hvd.DistributedOptimizer(other, backward_passes_per_step=2, average_aggregated_gradients=True)
        is other
    )
assert len(keras.tree.flatten(optimizer.variables)) == len(optimizer.variables)
assert "learning_rate" in inspect.getfullargspec(keras.optimizers.Adam.__init__).args


class OwnRate(keras.optimizers.SGD):
    """An optimizer with an attribute of its own by that name."""

    def __init__(self, lr):
        super().__init__(0.05)
        self.lr = lr


assert OwnRate(0.5).lr == 0.5 and float(OwnRate(0.5).learning_rate) == np.float32(0.05)


class Batches(keras.utils.Sequence):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        part = slice(8 * index, 8 * index + 8)
        return x[part], y[part]


by_generator, by_arrays = model(1), model(1)
for each in (by_generator, by_arrays):
    each.compile(loss="mse", optimizer=keras.optimizers.SGD(0.1))
losses = by_generator.fit_generator(Batches(), 3, 2, verbose=0, shuffle=False, max_queue_size=2).history[
    "loss"
]
assert (
    losses == by_arrays.fit(x[:24], y[:24], batch_size=8, epochs=2, verbose=0, shuffle=False).history["loss"]
)
assert by_generator.evaluate_generator(Batches(), 3, verbose=0) == by_arrays.evaluate(
    x[:24], y[:24], batch_size=8, verbose=0
)

# The callback takes a plain optimizer, with a warning.
plain = model(hvd.rank())
plain.compile(loss="mse", optimizer="sgd")
plain.fit(x, y, batch_size=8, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(hvd.size() - 1)])


def loss():
    return tf.reduce_sum(network(x[mine]))


variables = network.trainable_variables
(gradient, _), *_ = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))._compute_gradients(loss, variables)
with tf.GradientTape() as tape:
    total = loss()
own = tape.gradient(total, variables[0].value)
np.testing.assert_allclose(gradient, hvd.allreduce(own, "gradient"), rtol=1e-5)
assert hvd.size() == 1 or not np.allclose(gradient, own)

# Some programs register local variables in an `_allreduce` of their own.
table, head = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1)
divided = keras.Sequential([keras.Input((4,)), table, head])
table.kernel.assign(np.full((4, 1), 1.0 + hvd.rank()))
own_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
plain_allreduce = own_optimizer._allreduce
called = []


def register_then_allreduce(self, grads, variables):
    if not called:
        self.register_local_var(table.kernel)
    called.append(len(grads))
    return plain_allreduce(grads, variables)


own_optimizer._allreduce = types.MethodType(register_then_allreduce, own_optimizer)
divided.compile(own_optimizer, "mse")

# Others register them with the callback, in an `on_batch_end` of its own.
callback = BroadcastGlobalVariablesCallback(0)
plain_on_batch_end = callback.on_batch_end
batches = []


def register_then_broadcast(self, batch, logs=None):
    if not batches:
        self.register_local_var(table.kernel)
    batches.append(batch)
    plain_on_batch_end(batch, logs)


callback.on_batch_end = types.MethodType(register_then_broadcast, callback)
divided.fit(x[mine], y[mine], batch_size=12, verbose=0, callbacks=[callback])
assert called == [3] and batches == [0, 1]
np.testing.assert_array_equal(table.kernel, np.full((4, 1), 1.0 + hvd.rank()))
kernels = hvd.allgather(head.kernel.value[tf.newaxis])
assert all(np.array_equal(kernel, kernels[0]) for kernel in kernels)
combined = own_optimizer._allreduce_grads(
    [tf.constant([1.0 + hvd.rank()])], [head.bias], use_generic_names=True
)
np.testing.assert_allclose(combined, [[(1 + hvd.size()) / 2]])


@tf.function
def traced():
    return len(plain.optimizer.variables())  # the line that the warning names


assert int(traced()) == len(plain.optimizer.variables)
checked = hvd.allreduce(1.0 + hvd.rank(), "value")
assert float(checked) == (1 + hvd.size()) / 2


@tf.function
def values(value):
    return (
        hvd.allreduce(value),
        hvd.broadcast(value, 0),
        hvd.allgather([value]),
        hvd.reducescatter([value] * hvd.size()),
    )


average, first, gathered, scattered = values(tf.constant(1.0 + hvd.rank()))
assert float(average) == float(scattered[0]) == (1 + hvd.size()) / 2 and float(first) == 1.0
assert gathered.numpy().tolist() == [1.0 + rank for rank in range(hvd.size())]
weights = np.concatenate([np.ravel(each) for each in network.get_weights()])
gathered = hvd.allgather(weights[np.newaxis])
assert all(np.array_equal(row, weights) for row in gathered.numpy())
print(f"rank {hvd.rank()}: fine")
