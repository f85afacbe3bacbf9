"""A program for Horovod: what its collectives compute, and their gradients and exceptions."""

import inspect

import horovod
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common import process_sets
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import split_list
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import _executing_eagerly
from packaging.version import Version

assert Version(horovod.__version__) >= Version("0.28")
hvd.init()
hvd.init()
rank, size = hvd.rank(), hvd.size()
assert issubclass(HorovodInternalError, RuntimeError) and _executing_eagerly()
assert split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]

x = tf.constant([1.0, 2.0]) * (rank + 1)
total = sum(range(1, size + 1))
# By position, as Horovod has them: average, device_dense, device_sparse, compression.
np.testing.assert_allclose(hvd.allreduce(x, False, "/cpu:0", "", Compression.fp16), [total, 2 * total])
np.testing.assert_allclose(hvd.allreduce(x, average=True), [total / size, 2 * total / size])
np.testing.assert_allclose(hvd._allreduce(x), [total, 2 * total])
np.testing.assert_allclose(hvd.mpi_ops._allreduce(x), [total, 2 * total])
assert process_sets._temp_process_set_object(0) is hvd.global_process_set
slices = tf.IndexedSlices(tf.constant([[3], [4]]), tf.constant([0, rank + 1]), tf.constant([size + 1, 1]))
mean = tf.convert_to_tensor(hvd.allreduce(slices))
np.testing.assert_allclose(mean, [[3.0], *[[4.0 / size]] * size])
dense, (again) = hvd.grouped_allreduce([x, slices])
np.testing.assert_allclose(dense, [total / size, 2 * total / size])
np.testing.assert_allclose(tf.convert_to_tensor(again), mean)


@tf.function
def step(v):
    with tf.GradientTape() as tape, tf.GradientTape() as partial:
        loss = (rank + 1) * tf.reduce_sum(v * v)
    tape = hvd.DistributedGradientTape(tape)
    partial = hvd.PartialDistributedGradientTape(partial)
    return tape.gradient(loss, [v]) + partial.gradient(loss, [v])


for gradient in step(tf.Variable([1.0, 2.0])):
    np.testing.assert_allclose(gradient, np.array([2.0, 4.0]) * total / size)

# Horovod's gradients: an average for allgather and broadcast, N times the product for reducescatter.
v = tf.Variable(tf.ones([2 * size, 3]))
weights = tf.cast(rank + 1, tf.float32)
with tf.GradientTape(persistent=True) as tape:
    gathered = weights * tf.reduce_sum(hvd.allgather(v))
    grouped = weights * tf.reduce_sum(hvd.grouped_allgather([v])[0])
    sent = weights * tf.reduce_sum(hvd.broadcast(v, size - 1))
    scattered = tf.reduce_sum(hvd.reducescatter(v, op=hvd.Sum))
    halves = tf.reduce_sum(hvd.grouped_reducescatter([v])[0])
ones = np.ones([2 * size, 3])
np.testing.assert_allclose(tape.gradient(gathered, v), ones * total / size)
np.testing.assert_allclose(tape.gradient(grouped, v), ones * total / size)
np.testing.assert_allclose(tape.gradient(sent, v), ones * total / size * (rank == size - 1))
np.testing.assert_allclose(tape.gradient(scattered, v), ones * size)
np.testing.assert_allclose(tape.gradient(halves, v), ones)

for error, call in (
    (tf.errors.FailedPreconditionError, lambda: hvd.allgather(tf.constant(1.0))),
    (tf.errors.InvalidArgumentError, lambda: hvd.alltoall(tf.ones([1]), splits=[1.5])),
    (NotImplementedError, lambda: hvd.allreduce(slices, op=hvd.Max)),
    (NotImplementedError, lambda: hvd.grouped_allreduce([x, slices], prescale_factor=2.0)),
    (ValueError, lambda: hvd.allreduce(x, average=True, op=hvd.Sum)),
    (TypeError, lambda: hvd.grouped_allgather(tf.ones([3, 4]))),
    (TypeError, lambda: hvd.grouped_reducescatter(tf.ones([3, 4]))),
):
    try:
        call()
    except error:
        continue
    raise AssertionError(f"no {error.__name__}")

named = tf.function(lambda: hvd.mpi_ops._grouped_reducescatter([x, x], name="mine")).get_concrete_function()
assert any("mine" in str(operation.node_def) for operation in named.graph.get_operations())

# Both in one step, with a local layer.
layer, other = tf.Variable(1.0), tf.Variable(1.0)
with hvd.DistributedGradientTape(tf.GradientTape(), "/cpu:0") as tape:
    loss = (layer + other) * weights
tape.register_local_source(layer)
local, shared = tape.get_local_and_global_gradients(loss, [layer, other])
assert local[0][0] is layer and shared[0][0] is other
np.testing.assert_allclose([local[0][1], shared[0][1]], [(rank + 1) / size, total / size])

# A loss scale optimizer of TF1 has an attribute `_optimizer`, as Horovod's optimizers have.
v1 = tf.compat.v1
scale = v1.mixed_precision.FixedLossScale(8.0)
scaled = v1.mixed_precision.MixedPrecisionLossScaleOptimizer(v1.train.GradientDescentOptimizer(1.0), scale)
trained = tf.Variable(0.0)
hvd.DistributedOptimizer(scaled).minimize(lambda: trained * weights, var_list=[trained])
np.testing.assert_allclose(trained, -total / size)

# Some programs change the default of `ignore_name_scope`.
assert hvd.broadcast.__defaults__ == (None, False, hvd.global_process_set)
hvd.broadcast.__defaults__ = ("given", True, hvd.global_process_set)
np.testing.assert_allclose(hvd.broadcast(x, 0), [1.0, 2.0])
assert inspect.signature(hvd.broadcast).parameters["name"].default == "given"

# Objects with functions, also of this script.
assert hvd.broadcast_object(lambda: rank)() == 0
assert [each() for each in hvd.allgather_object(lambda: rank)] == list(range(size))
assert hvd.join() in range(size)
print(f"rank {rank} of {size}: fine")
