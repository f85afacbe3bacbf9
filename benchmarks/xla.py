"""Milliseconds a step of `fit` with jit_compile on and off, on 1 process and on all, one core for each process.

    tfddlrun -np 2 python benchmarks/xla.py [--json FILE]

All four are taken in one run, in turns: in a round, rank 0 first trains alone with the plain optimizer while the others
sleep, without and with jit_compile, then all train with the distributed one. The models are the one of
`examples/keras_digits.py` in size (`demo`) and a ResNet-20 for 32 x 32 images. Columns:

- `processes`, `model`, `jit`: who trains what, and how.
- `step ms`: time of `steps` steps of `fit`, of the slowest rank, divided by `steps`; median over rounds.
- `p10-p90 ms`: spread over rounds.
- `#wrong`: weights that are not the same bits on all ranks at the end.
"""

from typing import Any

import keras
import numpy as np
import report
import tensorflow as tf
from mpi4py import MPI
from training import pin_to_a_core, seconds, wait_asleep

import tfddl as hvd


def demo() -> keras.Model:
    """A small CNN for digits of 8 x 8."""
    layers = keras.layers
    model = [
        keras.Input((8, 8, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
    ]
    return keras.Sequential(
        [*model, layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)]
    )


def resnet20() -> keras.Model:
    """He et al. 2015, section 4.2, with n = 3: 0.27 million weights."""
    layers = keras.layers

    def convolve(x: Any, filters: int, stride: int = 1) -> Any:
        x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    images = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolve(images, 16))
    for filters in (16, 32, 64):
        for block in range(3):
            stride = 2 if filters > 16 and block == 0 else 1
            shortcut = x if stride == 1 else layers.Conv2D(filters, 1, strides=2, use_bias=False)(x)
            y = layers.ReLU()(convolve(x, filters, stride))
            x = layers.ReLU()(layers.Add()([convolve(y, filters), shortcut]))
    return keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def compiled(build: Any, distributed: bool, jit: bool) -> keras.Model:
    """A model that is ready to train."""
    keras.utils.set_random_seed(1)
    model = build()
    optimizer = keras.optimizers.SGD(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(optimizer) if distributed else optimizer, loss, jit_compile=jit)
    return model


def data_for(model: keras.Model, batch: int) -> tf.data.Dataset:
    """One random batch again and again."""
    generator = np.random.default_rng(hvd.rank())
    images = generator.standard_normal((batch, *model.input_shape[1:]), dtype="float32")
    return tf.data.Dataset.from_tensors((images, generator.integers(0, 10, batch))).repeat()


def different_weights(model: keras.Model) -> int:
    """How many trained weights have not rank 0's bits, over all ranks. (The moving averages are each rank's own.)"""
    weights = np.concatenate([np.asarray(v).ravel() for v in model.trainable_variables]).view("int32")
    return int(MPI.COMM_WORLD.allreduce(np.count_nonzero(weights != MPI.COMM_WORLD.bcast(weights)), MPI.SUM))


def measure(name: str, build: Any, batch: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    """The four lines of one model."""
    models = {
        (ranks, jit): compiled(build, ranks > 1, jit) for ranks in (1, hvd.size()) for jit in (False, True)
    }
    data = data_for(models[1, False], batch)
    times: dict[tuple[int, bool], list[float]] = {key: [] for key in models}
    for number in range(rounds + 1):
        for (ranks, jit), model in models.items():
            wait_asleep()
            options: dict[str, Any] = {}
            if number == 0 and ranks > 1:
                options["callbacks"] = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
            mine = seconds(model, data, steps, **options) if ranks > 1 or hvd.rank() == 0 else 0.0
            slowest = MPI.COMM_WORLD.allreduce(mine, MPI.MAX) / steps
            if number > 0:  # the first round compiles
                times[ranks, jit].append(slowest)
    return [_row(name, key, times[key], different_weights(model)) for key, model in models.items()]


def _row(name: str, key: tuple[int, bool], times: list[float], different: int) -> dict[str, Any]:
    low, median, high = (float(np.percentile(times, q)) * 1e3 for q in (10, 50, 90))
    return {
        "model": name,
        "processes": key[0],
        "jit": "on" if key[1] else "off",
        "step ms": median,
        "p10-p90 ms": f"{low:.1f}-{high:.1f}",
        "#wrong": different if key[0] > 1 else 0,
    }


def main() -> None:
    """Measures both models."""
    parser = report.parser(__doc__)
    parser.add_argument("--batch", type=int, default=16, help="images per process and step")
    parser.add_argument("--steps", type=int, default=20, help="steps in a round")
    parser.add_argument("--models", nargs="+", default=["demo", "resnet20"], help="which ones")
    parser.set_defaults(rounds=5)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    cores = pin_to_a_core()
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        rows += measure(
            name,
            {"demo": demo, "resnet20": resnet20}[name],
            arguments.batch,
            arguments.steps,
            arguments.rounds,
        )
    report.show(
        "training with jit_compile on and off",
        rows,
        arguments.json,
        [f"{cores} cores, {hvd.local_size()} processes"],
    )
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
