"""Times the steps of Keras' fit with tfddl beside those without it, on GPUs, with mixed_float16.

    python benchmarks/gpu/training.py [--models resnet50 transformer] [--no-xla] [--json FILE]
    tfddlrun -np 4 python benchmarks/gpu/training.py         # on a machine with four GPUs

Columns, one line for each model; `tfddl/bench/rounds.py` defines the medians.

- `batch`: examples of a rank in a step. `weights`: number of trained weights.
- `plain ms`: a step of plain Keras on each rank, without communication. `tfddl ms`: a step with `DistributedOptimizer`.
  Steps are calls of the function that fit calls. What fit does before its first step does not count.
- `examples/s`: of one rank with tfddl.
- `kept` = plain / tfddl: the share of the speed of plain Keras that is left. The bar at one rank is 0.98.
- `#wrong`: weights whose bits differ from rank 0's, and losses that are not finite.
"""

from collections.abc import Callable
from typing import Any

import device
import keras
import numpy as np
import report
import tensorflow as tf

import tfddl as hvd
from tfddl.bench.adapters import Way
from tfddl.bench.models import different_weights
from tfddl.bench.rounds import measure

BAR = 0.98


def resnet50(batch: int) -> tuple[keras.Model, tf.Tensor, tf.Tensor]:
    """Keras' ResNet-50 for images of 224 x 224, with a batch."""
    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    x = np.random.default_rng(hvd.rank()).normal(size=(batch, 224, 224, 3))
    return model, tf.constant(x, tf.float16), tf.constant(np.arange(batch) % 1000)


def transformer(batch: int, length: int = 256, width: int = 512) -> tuple[keras.Model, tf.Tensor, tf.Tensor]:
    """Six blocks of attention and dense layers that predict one of 8,192 words, with a batch of sentences."""
    layers, words = keras.layers, 8192
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    for _ in range(6):
        y = layers.LayerNormalization()(x)
        x = layers.Add()(
            [x, layers.MultiHeadAttention(8, width // 8, flash_attention=False)(y, y, use_causal_mask=True)]
        )
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    model = keras.Model(tokens, layers.Dense(words, dtype="float32")(layers.LayerNormalization()(x)))
    x = np.random.default_rng(hvd.rank()).integers(0, words, size=(batch, length))
    return model, tf.constant(x, tf.int32), tf.constant((x + 1) % words)


MODELS: dict[str, tuple[Callable[[int], tuple[keras.Model, tf.Tensor, tf.Tensor]], int]] = {
    "resnet50": (resnet50, 128),
    "transformer": (transformer, 32),
}


def way(
    build: Callable[[int], Any], batch: int, steps: int, compiled: bool, distributed: bool
) -> tuple[Way, keras.Model]:
    """So many steps of fit, on one batch that stays on the GPU."""
    keras.utils.set_random_seed(1)
    model, x, y = build(batch)
    optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=compiled)
    dataset = tf.data.Dataset.from_tensors((x, y)).cache().repeat()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if distributed else []
    model.fit(dataset, steps_per_epoch=1, verbose=0, callbacks=callbacks)  # makes and compiles the step
    data, last = iter(dataset), [0.0]  # a dataset of the same shapes, or XLA compiles anew

    def call() -> None:
        for _ in range(steps):
            logs = model.train_function(data)
        last[0] = float(logs["loss"])  # waits for the GPU

    def wrong() -> int:
        different = different_weights(model) if distributed else 0
        return different + (not np.isfinite(last[0]))

    return Way(call, wrong), model


def row(name: str, rounds: int, steps: int, compiled: bool) -> dict[str, Any]:
    """Measures one line of the table."""
    build, batch = MODELS[name]
    plain, _ = way(build, batch, steps, compiled, distributed=False)
    ours, model = way(build, batch, steps, compiled, distributed=True)
    timings = measure({"plain": plain, "tfddl": ours}, rounds=rounds, calls=1)
    plain_ms, tfddl_ms = (timings[each].median / steps / 1e3 for each in ("plain", "tfddl"))
    kept = plain_ms / tfddl_ms
    return {
        "model": name,
        "xla": "yes" if compiled else "no",
        "batch": batch,
        "weights": model.count_params(),
        "plain ms": plain_ms,
        "tfddl ms": tfddl_ms,
        "examples/s": 1e3 * batch / tfddl_ms,
        "kept": kept,
        "ok": "" if hvd.size() > 1 else "yes" if kept >= BAR else "NO",
        "#wrong": sum(timing.wrong for timing in timings.values()),
    }


def main() -> None:
    """Measures every model."""
    parser = report.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument(
        "--no-xla", action="store_true", help="jit_compile=False: nothing to compile for minutes"
    )
    arguments = parser.parse_args()
    device.start()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    rows = [row(name, arguments.rounds, arguments.steps, not arguments.no_xla) for name in arguments.models]
    report.show(f"steps of fit on GPUs, {hvd.size()} ranks", rows, arguments.json, device.notes())
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
