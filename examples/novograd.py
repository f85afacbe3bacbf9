"""Trains with NovoGrad: TensorFlow Addons' where that is installed, else tfddl's.

    tfddlrun -np 2 python examples/novograd.py
    python examples/novograd.py

On TensorFlow 2.15 it runs on Keras 2, on later ones on Keras 3. Ends with an error unless the accuracy on held-out
digits is at least 0.9.
"""

import argparse
import importlib.util
import sys

import images
import numpy as np
import tensorflow as tf

import tfddl as hvd

REQUIRED_ACCURACY = 0.9
keras = tf.keras


def novograd(rate: float) -> keras.optimizers.Optimizer:
    """The optimizer of the library that is there."""
    if importlib.util.find_spec("tensorflow_addons") is not None:
        import tensorflow_addons

        return tensorflow_addons.optimizers.NovoGrad(rate)
    return hvd.optimizers.NovoGrad(rate)


def main() -> None:
    """Trains, evaluates, reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and step")
    options = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    data = images.load()
    x, y = hvd.data.shard(data.train_images, data.train_labels)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = hvd.DistributedOptimizer(novograd(0.02))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    first = hvd.rank() == 0
    model.fit(
        x,
        y,
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2 if first else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
    )
    answers = np.argmax(model.predict(data.test_images, verbose=0), axis=-1)
    correct = float(np.mean(answers == data.test_labels))
    if first:
        print(f"NovoGrad of {type(optimizer).__module__.partition('.')[0]}, TensorFlow {tf.__version__}")
        print(f"held-out accuracy: {correct:.4f}", flush=True)
    if correct < REQUIRED_ACCURACY:
        sys.exit(f"The accuracy is below {REQUIRED_ACCURACY}. Received: {correct:.4f}")


if __name__ == "__main__":
    main()
