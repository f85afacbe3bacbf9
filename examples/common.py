"""What the examples share beside their images: the command line, the model, and the report at the end."""

import argparse
import hashlib
import sys

import images
import keras
import numpy as np
import tensorflow as tf

import tfddl as hvd

REQUIRED_ACCURACY = 0.95


def parser(description: str, epochs: int = 20) -> argparse.ArgumentParser:
    """The command line that all examples have: `--epochs`, `--batch-size`, `--seed`."""
    result = argparse.ArgumentParser(description=description.splitlines()[0])
    result.add_argument("--epochs", type=int, default=epochs)
    result.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    result.add_argument("--seed", type=int, default=1)
    return result


def build_model(image_shape: tuple[int, ...]) -> keras.Model:
    """A small CNN: 0.1 million weights for the digits."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.25),
            layers.Dense(10, activation="softmax"),
        ]
    )


def accuracy(model: keras.Model, data: images.Images) -> float:
    """The part of the held-out images that the model names correctly."""
    answers = np.argmax(model.predict(data.test_images, batch_size=360, verbose=0), axis=-1)
    return float(np.mean(answers == data.test_labels))


def weight_hashes(model: keras.Model) -> list[str]:
    """A hash of all weights from each process, in rank order."""
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).digest()
    words = tf.constant(np.frombuffer(digest, "int64")[np.newaxis])
    return [row.tobytes().hex() for row in hvd.allgather(words, name="weight_hashes").numpy()]


def report(model: keras.Model, data: images.Images, speed: dict[str, float] | None = None) -> None:
    """Prints the results on rank 0: hashes of the weights, `speed`, and at last the accuracy.

    Raises:
        SystemExit: On every process, when the weights differ or the accuracy is too low.
    """
    conclude(model, "held-out accuracy", accuracy(model, data), REQUIRED_ACCURACY, speed)


def conclude(
    model: keras.Model, name: str, value: float, required: float, figures: dict[str, float] | None = None
) -> None:
    """Prints on rank 0 hashes of the weights, `figures`, and at last the value that tells whether it has learned.

    Raises:
        SystemExit: On every process, when the weights differ or the value is too low.
    """
    hashes = weight_hashes(model)
    equal = len(set(hashes)) == 1
    if hvd.rank() == 0:
        for rank, text in enumerate(hashes):
            print(f"weights of rank {rank}: {text[:16]}")
        print(f"weights equal on all {hvd.size()} ranks: {'yes' if equal else 'NO'}")
        for figure, number in (figures or {}).items():
            print(f"{figure}: {number:,.0f}")
        print(f"{name}: {value:.4f}", flush=True)
    hvd.barrier()  # The first process that ends with an error ends all of them.
    if not equal:
        sys.exit("The weights differ between ranks.")
    if not value >= required:
        sys.exit(f"The {name} is below {required}. Received: {value:.4f}")
