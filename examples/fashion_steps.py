"""From one device to many: the same training without tfddl, and with it in eight steps.

    python examples/fashion_steps.py --single-device
    tfddlrun -np 2 python examples/fashion_steps.py

Read `train_on_one_device` first, then `train_on_many`: the lines that are new are those below the steps.
Ends with an error unless the accuracy on held-out images is at least 0.95 and all processes hold the same weights.
"""

import argparse
from pathlib import Path

import common
import images
import keras

import tfddl as hvd


def train_on_one_device(data: images.Images, options: argparse.Namespace) -> keras.Model:
    """Keras as always."""
    keras.utils.set_random_seed(options.seed)
    model = common.build_model(data.train_images.shape[1:])
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(
        data.train_images,
        data.train_labels,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(data.test_images, data.test_labels),
        verbose=2,
        callbacks=[keras.callbacks.ModelCheckpoint(options.checkpoint)] if options.checkpoint else [],
    )
    return model


def train_on_many(data: images.Images, options: argparse.Namespace) -> keras.Model:
    """The same in every process of a job."""
    # Step 1, initialise: who am I, how many are we, and which GPU is mine? From here on all processes run the same lines.
    hvd.init()

    # Step 2, seed: with the same seed all processes would drop out the same units.
    keras.utils.set_random_seed(options.seed + hvd.rank())

    # Step 3, shard: each process trains on its own images, and all on equally many.
    x, y = hvd.data.shard(data.train_images, data.train_labels)
    validation = hvd.data.shard(data.test_images, data.test_labels)

    # Step 4, scale: a step now sees `size` batches and may be that much longer. DistributedOptimizer averages
    # the gradients over all processes.
    model = common.build_model(data.train_images.shape[1:])
    rate = 0.02 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    callbacks = [
        # All processes begin with the weights of process 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Step 5, average metrics: over all processes, before a callback looks at them.
        hvd.callbacks.MetricAverageCallback(),
        # Step 6, warm up: the long steps do harm at first. From rate / size to rate in three epochs.
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=3, verbose=1),
        # Step 7, schedule: a tenth of the rate for the last fifth of the epochs.
        hvd.callbacks.LearningRateScheduleCallback(
            rate, lambda epoch: 0.1 if epoch >= 0.8 * options.epochs else 1.0, start_epoch=3
        ),
    ]
    # Step 8, checkpoint: all hold the same weights, one writes them. And one talks (verbose below).
    if options.checkpoint:
        callbacks.append(hvd.callbacks.rank_zero_only(keras.callbacks.ModelCheckpoint(options.checkpoint)))

    model.fit(
        x,
        y,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=validation,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=callbacks,
    )
    return model


def main() -> None:
    """Trains one way or the other, reports."""
    parser = common.parser(__doc__)
    parser.add_argument("--data", type=Path, help=images.OPTION_HELP)
    parser.add_argument("--checkpoint", type=Path, help="file .keras to save the model to after each epoch")
    parser.add_argument("--single-device", action="store_true", help="train without tfddl")
    options = parser.parse_args()

    data = images.load(options.data)
    if options.single_device:
        print(f"held-out accuracy: {common.accuracy(train_on_one_device(data, options), data):.4f}")
    else:
        common.report(train_on_many(data, options), data)


if __name__ == "__main__":
    main()
