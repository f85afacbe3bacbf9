"""Collectives that come with a SavedModel, in a program that calls no collective itself."""

from tests.harness import run_script

SAVE = """
import sys
import tensorflow as tf
import tfddl as hvd

hvd.init()

class Scaled(tf.Module):
    def __init__(self):
        self.scale = tf.Variable(2.0)
        self._layer = hvd.SyncBatchNormalization()
        self._layer.build((None, 3))
        self.weights = [each.value for each in self._layer.variables]

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def normalized(self, x):
        return self._layer(x, training=True)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def sum(self, x):
        return hvd.allreduce(self.scale * x, op=hvd.Sum)

tf.saved_model.save(Scaled(), f"{sys.argv[1]}/{hvd.rank()}")
"""
LOAD = """
import sys
import tensorflow as tf
import tfddl as hvd

hvd.init()
model = tf.saved_model.load(f"{sys.argv[1]}/{hvd.rank()}")
x = tf.constant([1.0, 3.0]) * (hvd.rank() + 1)
with tf.GradientTape() as tape:
    tape.watch(x)
    y = model.sum(x)
assert y.numpy().tolist() == [6.0, 18.0], y
assert tape.gradient(y, x).numpy().tolist() == [4.0, 4.0]

@tf.function
def two(x):
    later = x
    for _ in range(200):
        later = tf.sin(later)
    first, second = (later, x) if hvd.rank() else (x, later)
    return model.sum(tf.clip_by_value(first, 1.0, 1.0)), model.sum(tf.clip_by_value(second, 10.0, 10.0))

rows = tf.random.normal([6, 3])
with tf.GradientTape(persistent=True) as tape:
    tape.watch(rows)
    loss = tf.reduce_sum(model.normalized(rows) ** 3)
slope = tape.gradient(loss, rows)
with tf.GradientTape() as tape:
    tape.watch(rows)
    loss = tf.reduce_sum(model.normalized(rows) ** 3)
tf.debugging.assert_equal(slope, tape.gradient(loss, rows))

for _ in range(5):  # in the order of the program on all ranks
    assert [each.numpy()[0] for each in two(tf.ones([20000]))] == [4.0, 40.0]
"""


def test_a_loaded_model_has_gradients_and_an_order(tmp_path):
    saved = run_script(2, SAVE, str(tmp_path))
    assert saved.code == 0, saved.output
    loaded = run_script(2, LOAD, str(tmp_path), fresh=True)  # a fork has imported the collectives
    assert loaded.code == 0, loaded.output
