"""Trains on MNIST, or on the digits that need no download, with all that a long job wants.

    tfddlrun -np 2 python examples/mnist.py
    tfddlrun -np 2 python examples/mnist.py --data ~/mnist --epochs 4 --checkpoints ~/runs/1

The data is a tf.data pipeline, sharded before it is shuffled. The learning rate is scaled to the number of
processes, warmed up and decayed. Process 0 saves the best model and, after every epoch, all it takes to
resume: the same command goes on where an interrupted job stopped, or trains on with more `--epochs`.
Ends with an error unless the accuracy on held-out images is at least 0.95 and all processes hold the same
weights.
"""

from pathlib import Path

import common
import images
import keras
import tensorflow as tf

import tfddl as hvd

WARMUP_EPOCHS = 3
LEARNING_RATE = 0.02


def main() -> None:
    """Trains, evaluates, reports."""
    parser = common.parser(__doc__)
    parser.add_argument("--data", type=Path, help=images.OPTION_HELP)
    parser.add_argument("--checkpoints", type=Path, help="directory to save to, and to resume from")
    options = parser.parse_args()

    hvd.init()
    # One seed for all would draw the same dropout masks and the same shuffling in every process.
    keras.utils.set_random_seed(options.seed + hvd.rank())

    data = images.load(options.data)
    model = common.build_model(data.train_images.shape[1:])
    rate = LEARNING_RATE * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        batches(data.train_images, data.train_labels, options.batch_size, shuffle=True),
        validation_data=batches(data.test_images, data.test_labels, options.batch_size, shuffle=False),
        epochs=options.epochs,
        shuffle=False,  # The pipeline does.
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=callbacks(rate, options.epochs, options.checkpoints),
    )
    common.report(model, data)


def batches(x: tf.Tensor, y: tf.Tensor, batch_size: int, shuffle: bool) -> tf.data.Dataset:
    """This process's part of the images, in equally many batches for all."""
    dataset = hvd.data.shard(tf.data.Dataset.from_tensor_slices((x, y)))
    if shuffle:
        # Only now: each process may shuffle its own part as it likes.
        dataset = dataset.shuffle(10_000)
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def callbacks(rate: float, epochs: int, directory: Path | None) -> list[keras.callbacks.Callback]:
    """In an order that matters: restore, then broadcast; average the metrics before they are looked at."""
    restore, save = [], []
    if directory is not None:
        # From Keras 3.8 on add double_checkpoint=True: a crash in the middle of a backup leaves the one before.
        backup = keras.callbacks.BackupAndRestore(directory / "backup", delete_checkpoint=False)
        restore = [hvd.callbacks.rank_zero_only(backup)]  # One process writes, and finds it again.
        save = [hvd.callbacks.BestModelCheckpoint(directory / "best.keras", "val_accuracy", mode="max")]
    return [
        *restore,
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=WARMUP_EPOCHS, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(
            rate, lambda epoch: 0.1 if epoch >= 0.8 * epochs else 1.0, start_epoch=WARMUP_EPOCHS
        ),
        *save,
    ]


if __name__ == "__main__":
    main()
