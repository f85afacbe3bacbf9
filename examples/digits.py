"""What both digits examples share: the data, the model, and the report at the end.

The digits are the 1,797 images of 8 x 8 pixels that scikit-learn ships: nothing is downloaded.
"""

import dataclasses
import hashlib
import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfddl as hvd

REQUIRED_ACCURACY = 0.95


@dataclasses.dataclass(frozen=True)
class Digits:
    """This process's part of the training images, and all held-out ones.

    Attributes:
        train_images: float32 [n, 8, 8, 1], from 0 to 1.
        train_labels: int64 [n].
        test_images: float32 [m, 8, 8, 1].
        test_labels: int64 [m].
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(rank: int, size: int) -> Digits:
    """Loads the digits and takes every `size`-th training image from `rank` on.

    Every process gets equally many: one that ran out of batches early would leave the others waiting. The
    split is the same in all of them, so that no held-out image is trained on anywhere.
    """
    source = load_digits()
    images = (source.images[..., np.newaxis] / 16.0).astype("float32")
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    mine = train[rank::size][: len(train) // size]
    return Digits(images[mine], source.target[mine], images[test], source.target[test])


def build_model() -> keras.Model:
    """A CNN of 0.1 million weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.25),
            layers.Dense(10, activation="softmax"),
        ]
    )


def accuracy(model: keras.Model, data: Digits) -> float:
    """The part of the held-out digits that the model names correctly."""
    answers = np.argmax(model.predict(data.test_images, batch_size=360, verbose=0), axis=-1)
    return float(np.mean(answers == data.test_labels))


def weight_hashes(model: keras.Model) -> list[str]:
    """A hash of all weights from each process, in rank order."""
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).digest()
    words = tf.constant(np.frombuffer(digest, "int64")[np.newaxis])
    return [row.tobytes().hex() for row in hvd.allgather(words, name="weight_hashes").numpy()]


def report(model: keras.Model, *, accuracy: float, bytes_per_step: float, images_per_second: float) -> None:
    """Prints the results on rank 0; the accuracy comes last.

    Raises:
        SystemExit: On every process, when the weights differ or the accuracy is too low.
    """
    hashes = weight_hashes(model)
    equal = len(set(hashes)) == 1
    if hvd.rank() == 0:
        print()
        for rank, text in enumerate(hashes):
            print(f"weights of rank {rank}: {text[:16]}")
        print(f"weights equal on all {hvd.size()} ranks: {'yes' if equal else 'NO'}")
        print(f"bytes reduced per step: {bytes_per_step:,.0f}")
        print(f"images/s: {images_per_second:,.0f}")
        print(f"held-out accuracy: {accuracy:.4f}", flush=True)
    if not equal:
        sys.exit("The weights differ between ranks.")
    if accuracy < REQUIRED_ACCURACY:
        sys.exit(f"The accuracy is below {REQUIRED_ACCURACY}. Received: {accuracy:.4f}")
