"""Trains a small ResNet on a folder of images, one directory a class, and prints a classification report.

    tfddlrun -np 2 python examples/image_folder.py
    tfddlrun -np 2 python examples/image_folder.py --data path/to/images --size 64 --epochs 30

Without `--data` the folder is made of scikit-learn's digits: nothing is downloaded. Batch normalization takes the statistics
of all processes' batches, the held-out images are evaluated by all processes together, and the best model is kept in a file
with `--checkpoint`. Ends with an error unless the accuracy on held-out images is at least 0.95 (`--required`) and all
processes hold the same weights.
"""

import tempfile
import time
from pathlib import Path

import common
import images
import keras
import numpy as np
import tensorflow as tf
from sklearn.metrics import classification_report

import tfddl as hvd

HELD_OUT = 0.2


def digits_folder(folder: Path) -> None:
    """Writes the digits as `<folder>/<class>/<number>.png`."""
    data = images.load()
    pixels = np.concatenate([data.train_images, data.test_images])
    labels = np.concatenate([data.train_labels, data.test_labels])
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / f"digit-{label}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tf.io.encode_png(tf.cast(image * 255, tf.uint8)).numpy())


def list_files(folder: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Paths, the number of each one's class, and the classes: in one order, which is the same in every process."""
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    paths = [
        (str(path), number)
        for number, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
    ]
    np.random.default_rng(0).shuffle(paths)
    return np.array([path for path, _ in paths]), np.array([int(number) for _, number in paths]), classes


def dataset(paths: np.ndarray, labels: np.ndarray, size: int, batch: int, shuffle: bool) -> tf.data.Dataset:
    """Batches of images, float32 [n, size, size, 3] from 0 to 1, and labels."""

    def read(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        return tf.image.resize(image, (size, size)) / 255.0, label

    files = tf.data.Dataset.from_tensor_slices((paths, labels))
    # Decoded once, and kept: for more images than fit into memory leave cache() out.
    decoded = files.map(read, num_parallel_calls=tf.data.AUTOTUNE).cache()
    shuffled = decoded.shuffle(len(paths)) if shuffle else decoded
    return shuffled.batch(batch, drop_remainder=shuffle).prefetch(tf.data.AUTOTUNE)


def block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    """Two convolutions, and a way around them."""
    layers = keras.layers
    y = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(hvd.SyncBatchNormalization(momentum=0.9)(y))
    y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
    y = hvd.SyncBatchNormalization(momentum=0.9)(y)
    if x.shape != y.shape:
        x = layers.Conv2D(filters, 1, strides=strides, use_bias=False)(x)
    return layers.Activation("relu")(layers.Add()([x, y]))


def build_model(size: int, classes: int) -> keras.Model:
    """Three blocks of 16, 32 and 64 filters."""
    inputs = keras.Input((size, size, 3))
    x = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        x = block(x, filters, strides)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))


def report_by_class(
    model: keras.Model, held_out: tf.data.Dataset, labels: np.ndarray, classes: list[str]
) -> None:
    """Prints precision and recall of each class, from the answers of all processes, on rank 0."""
    answers = np.argmax(model.predict(held_out, verbose=0), axis=-1)
    # allgather takes different numbers of rows.
    pairs = hvd.allgather(tf.constant(np.stack([labels, answers], axis=1)), name="answers").numpy()
    if hvd.rank() == 0:
        numbers = list(range(len(classes)))
        print(classification_report(*pairs.T, labels=numbers, target_names=classes, zero_division=0.0))


def train(folder: Path, options) -> None:
    """Trains, evaluates, reports."""
    paths, labels, classes = list_files(folder)
    test = int(HELD_OUT * len(paths))
    mine = hvd.data.shard(paths[test:], labels[test:])
    # Every image counts once, so that the parts may be uneven.
    held_out = slice(hvd.rank(), test, hvd.size())
    training = dataset(*mine, options.size, options.batch_size, shuffle=True)
    validation = dataset(paths[held_out], labels[held_out], options.size, 128, shuffle=False)

    model = build_model(options.size, len(classes))
    rate = 2e-3 * hvd.size()
    steps = options.epochs * len(training)
    # The rate of many processes is high: it begins with that of one.
    schedule = keras.optimizers.schedules.CosineDecay(
        rate / hvd.size(), steps - steps // 5, warmup_target=rate, warmup_steps=steps // 5
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(schedule))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    if options.checkpoint:
        callbacks.append(hvd.callbacks.BestModelCheckpoint(options.checkpoint, "val_accuracy"))
    start = time.perf_counter()
    model.fit(
        training,
        validation_data=validation,
        epochs=options.epochs,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=callbacks,
    )
    seconds = time.perf_counter() - start
    report_by_class(model, validation, labels[held_out], classes)
    accuracy = hvd.evaluate(model, validation, verbose=0, return_dict=True)["accuracy"]
    speed = steps * options.batch_size * hvd.size() / seconds
    common.conclude(model, "held-out accuracy", accuracy, options.required, {"images/s": speed})


def main() -> None:
    """Reads the command line, and makes the folder where none is given."""
    arguments = common.parser(__doc__, epochs=8)
    arguments.add_argument(
        "--data", type=Path, help="a directory of each class, with images in it; else digits"
    )
    arguments.add_argument("--size", type=int, default=8, help="pixels that images are resized to")
    arguments.add_argument("--checkpoint", type=Path, help="file for the best model, ending in .keras")
    arguments.add_argument("--required", type=float, default=common.REQUIRED_ACCURACY)
    options = arguments.parse_args()
    hvd.init()
    keras.utils.set_random_seed(options.seed + hvd.rank())
    with tempfile.TemporaryDirectory() as temporary:
        if options.data is None:
            digits_folder(Path(temporary))
        train(options.data or Path(temporary), options)


if __name__ == "__main__":
    main()
