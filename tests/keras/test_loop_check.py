"""A loop of the program's own that combines no gradient is told at the end of the job."""

import pytest

from tests.harness import run_script, slow

LOOP = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf
    import tfddl as hvd

    hvd.init()
    x, y = hvd.data.shard(np.ones([8, 4], "float32"), np.ones([8, 1], "float32"))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    hvd.broadcast_variables(model.weights, root_rank=0)
    model.predict(x, verbose=0)
    for _ in range(2 if sys.argv[1] != "predict" else 0):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if sys.argv[1] == "average":
        for weight in model.weights:
            weight.assign(hvd.allreduce(weight))
"""


@pytest.mark.parametrize("kind", ["plain", "average", slow("predict")])
def test_a_loop_that_combines_no_gradient(kind):
    result = run_script(2, LOOP, kind)
    assert result.code == 0, result.output
    told = "This job of 2 ranks has combined no gradient, though hvd.data.shard has dealt the data"
    assert result.output.count(told) == (kind == "plain"), result.output
