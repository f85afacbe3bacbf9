"""Trains a small CNN on handwritten digits with `model.fit`, each process on its own part of the data.

    tfddlrun -np 2 python examples/keras_digits.py
    python examples/keras_digits.py

The second line is the same job on one process. Ends with an error unless the accuracy on held-out digits is
at least 0.95 and all processes hold the same weights.
"""

import argparse
import time

import digits
import keras

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
    # One seed for all would draw the same dropout masks and the same shuffling in every process.
    keras.utils.set_random_seed(arguments.seed + hvd.rank())

    data = digits.load(hvd.rank(), hvd.size())
    model = digits.build_model()
    # The average over N batches is less noisy than one batch: it carries a larger step.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    reduced = stats()["bytes_reduced"]
    start = time.perf_counter()
    model.fit(
        data.train_images,
        data.train_labels,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        verbose=1 if hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
    )
    seconds = time.perf_counter() - start
    reduced = stats()["bytes_reduced"] - reduced

    steps = int(optimizer.iterations.numpy())
    images = arguments.epochs * len(data.train_images) * hvd.size()
    accuracy = digits.accuracy(model, data)
    digits.report(
        model, accuracy=accuracy, bytes_per_step=reduced / steps, images_per_second=images / seconds
    )


if __name__ == "__main__":
    main()
