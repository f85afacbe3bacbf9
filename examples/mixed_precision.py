"""Trains in float16 or bfloat16 with float32 weights, and a loss scale that all processes share.

    tfddlrun -np 2 python examples/mixed_precision.py
    tfddlrun -np 2 python examples/mixed_precision.py --policy mixed_bfloat16

Under `mixed_float16` Keras multiplies the loss, so that small gradients do not vanish in 16 bits, and skips a step whose
gradients overflow. All processes skip the same steps, also where only one of them has seen the overflow. Ends with an error
unless the accuracy on held-out digits is at least 0.95 and all processes hold the same weights and loss scale.
"""

import time

import common
import images
import keras
import tensorflow as tf

import tfddl as hvd


def build_model(image_shape: tuple[int, ...]) -> keras.Model:
    """A dense network; its layers compute in 16 bits and hold float32 weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(256, activation="relu"),
            # The probabilities need more digits than 16 bits have.
            layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )


def main() -> None:
    """Trains, evaluates, reports."""
    arguments = common.parser(__doc__)
    arguments.add_argument("--policy", default="mixed_float16", choices=["mixed_float16", "mixed_bfloat16"])
    options = arguments.parse_args()
    hvd.init()
    keras.utils.set_random_seed(options.seed + hvd.rank())
    keras.mixed_precision.set_dtype_policy(options.policy)

    data = images.load()
    x, y = hvd.data.shard(data.train_images, data.train_labels)
    model = build_model(x.shape[1:])
    # Gradients may travel in 16 bits too; they are added up in float32.
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(1e-3 * hvd.size()), compression=hvd.Compression.fp16
    )
    # compile() puts a LossScaleOptimizer around it under mixed_float16.
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    start = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
    )
    speed = options.epochs * len(x) * hvd.size() / (time.perf_counter() - start)
    if options.policy == "mixed_float16":
        scale = tf.reshape(tf.convert_to_tensor(model.optimizer.dynamic_scale), [1])
        scales = hvd.allgather(scale, name="scales").numpy()
        if hvd.rank() == 0:
            print("loss scales:", *(f"{one:g}" for one in scales))
    common.report(model, data, {"images/s": speed})


if __name__ == "__main__":
    main()
