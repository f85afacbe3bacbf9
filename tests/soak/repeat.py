"""The program of a rank that repeats one training step: python -m tests.soak.repeat RUNS

Each run starts from the same weights and inputs. The last line of rank 0 tells the hashes of the weights after the runs.
"""

from __future__ import annotations

import hashlib
import json
import sys

import keras
import numpy as np

import tfddl as hvd
from tests.soak.jobs import FOUND

SEED = 7


def model() -> keras.Model:
    """Some kinds of layers, and buckets of several sizes."""
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main(runs: int) -> None:
    """Repeats the step, and compares the hashes of all ranks."""
    hvd.init()
    keras.utils.set_random_seed(SEED)
    network = model()
    network.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "sparse_categorical_crossentropy")
    generator = np.random.default_rng([SEED, hvd.rank()])
    x, y = generator.normal(size=(32, 12, 12, 3)).astype("float32"), generator.integers(10, size=32)
    weights = network.get_weights()
    hashes = set()
    for _ in range(runs):
        network.set_weights(weights)
        network.train_on_batch(x, y)
        trained = b"".join(variable.numpy().tobytes() for variable in network.trainable_variables)
        hashes.add(hashlib.sha256(trained).hexdigest())
    found = sorted(set().union(*hvd.allgather_object(hashes)))
    if hvd.rank() == 0:
        print(FOUND + json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
