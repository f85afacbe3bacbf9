"""Trains the same CNN with a loop of its own: a tape whose gradients are averaged over all processes.

    tfddlrun -np 2 python examples/digits_custom_loop.py
    python examples/digits_custom_loop.py

Ends with an error unless the accuracy on held-out digits is at least 0.95 and all processes hold the same
weights.
"""

import time

import common
import images
import keras
import tensorflow as tf

import tfddl as hvd


def main() -> None:
    """Trains, evaluates, reports."""
    options = common.parser(__doc__).parse_args()
    hvd.init()
    keras.utils.set_random_seed(options.seed + hvd.rank())

    data = images.load()
    whole = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
    mine = hvd.data.shard(whole)
    # Each process shuffles its own part, in an order of its own.
    batches = mine.shuffle(len(mine)).batch(options.batch_size, drop_remainder=True)
    model = common.build_model(data.train_images.shape[1:])
    optimizer = keras.optimizers.Adam(1e-3 * hvd.size())
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy()

    # Before the first step: each process drew initial weights of its own.
    # `weights`, not `variables`: the state of the dropout's random numbers stays different in each.
    hvd.broadcast_variables(model.weights + optimizer.variables, root_rank=0)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_function(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    reduced = hvd.stats()["bytes_reduced"]
    steps = options.epochs * len(batches)
    start = time.perf_counter()
    for epoch in range(options.epochs):
        losses = [train_step(x, y) for x, y in batches]
        loss = hvd.allreduce(
            tf.reduce_mean(losses), name="loss"
        )  # All processes call it; the first one prints.
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)
    seconds = time.perf_counter() - start
    reduced = hvd.stats()["bytes_reduced"] - reduced

    images_seen = steps * options.batch_size * hvd.size()
    common.report(model, data, {"bytes reduced per step": reduced / steps, "images/s": images_seen / seconds})


if __name__ == "__main__":
    main()
