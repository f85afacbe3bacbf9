"""Trains a small CNN on handwritten digits with `model.fit`, each process on its own part of the data.

    tfddlrun -np 2 python examples/keras_digits.py
    python examples/keras_digits.py

The second line is the same job on one process. Ends with an error unless the accuracy on held-out digits is
at least 0.95 and all processes hold the same weights.
"""

import time

import common
import images
import keras

import tfddl as hvd


def main() -> None:
    """Trains, evaluates, reports."""
    options = common.parser(__doc__).parse_args()
    hvd.init()
    # One seed for all would draw the same dropout masks and the same shuffling in every process.
    keras.utils.set_random_seed(options.seed + hvd.rank())

    data = images.load()
    x, y = hvd.data.shard(data.train_images, data.train_labels)
    model = common.build_model(x.shape[1:])
    # The average over N batches is less noisy than one batch: it carries a larger step.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    reduced = hvd.stats()["bytes_reduced"]
    start = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=1 if hvd.rank() == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
    )
    seconds = time.perf_counter() - start
    reduced = hvd.stats()["bytes_reduced"] - reduced

    steps, images_seen = int(optimizer.iterations.numpy()), options.epochs * len(x) * hvd.size()
    common.report(model, data, {"bytes reduced per step": reduced / steps, "images/s": images_seen / seconds})


if __name__ == "__main__":
    main()
