"""Trains the same CNN with a loop of its own: a tape whose gradients are averaged over all processes.

    tfddlrun -np 2 python examples/digits_custom_loop.py
    python examples/digits_custom_loop.py

Ends with an error unless the accuracy on held-out digits is at least 0.95 and all processes hold the same
weights.
"""

import argparse
import time

import digits
import keras
import tensorflow as tf

import tfddl as hvd
from tfddl.runtime import stats


def main() -> None:
    """Trains, evaluates, reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and step")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(arguments.seed + hvd.rank())

    data = digits.load(hvd.rank(), hvd.size())
    batches = (
        tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
        .shuffle(len(data.train_images), seed=arguments.seed + hvd.rank())
        .batch(arguments.batch_size, drop_remainder=True)
    )
    model = digits.build_model()
    optimizer = keras.optimizers.Adam(1e-3 * hvd.size())
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy()

    # Before the first step: each process drew initial weights of its own.
    # `weights`, not `variables`: the state of the dropout's random numbers stays different in each.
    hvd.broadcast_variables(model.weights + optimizer.variables, root_rank=0)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    reduced = stats()["bytes_reduced"]
    steps = arguments.epochs * len(batches)
    progress = keras.utils.Progbar(steps, verbose=1 if hvd.rank() == 0 else 0)
    start = time.perf_counter()
    for _ in range(arguments.epochs):
        for images, labels in batches:
            loss = train_step(images, labels)
            progress.add(1, values=[("loss", loss)])
    seconds = time.perf_counter() - start
    reduced = stats()["bytes_reduced"] - reduced

    images_seen = steps * arguments.batch_size * hvd.size()
    accuracy = digits.accuracy(model, data)
    digits.report(
        model, accuracy=accuracy, bytes_per_step=reduced / steps, images_per_second=images_seen / seconds
    )


if __name__ == "__main__":
    main()
