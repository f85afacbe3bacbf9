"""Milliseconds of a training step with jit_compile on and off, on 1 process and on all, one core for each process.

    tfddlrun -np 2 python benchmarks/xla.py [--json FILE]

All six take turns in one run, without and with jit_compile: rank 0 trains alone with the plain optimizer while the other
ranks sleep; each rank trains a model of its own with the plain optimizer; all ranks train with the distributed optimizer.
The models are a CNN of the size of `examples/keras_digits.py` (`demo`) and a ResNet-20 for 32 x 32 images. Columns:

- `model`, `trains`, `jit`: the model, who trains, and whether jit_compile is on.
- `x alone` and `x no exchange`: the time over that of rank 0 alone, and of ranks that exchange nothing, with the same jit.
- `step ms`: time of `steps` steps on the slowest rank, divided by `steps`; median over rounds. The steps are those of
  `fit`, called without `fit`. The end of `fit` waits for the thread that tunes the dataset, and this thread
  sleeps longer and longer.
- `p10-p90 ms`: spread over rounds.
- `#wrong`: weights whose bits differ between ranks at the end.
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import report
import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd
from tfddl.bench import models as bench_models
from tfddl.bench.rounds import interleave
from tfddl.bench.worker import pin

WHO = ALONE, EACH, ALL = "rank 0 alone", "each rank its own", "all ranks one"


def seconds(model: keras.Model, data: Iterator[Any], steps: int) -> float:
    """Seconds of `steps` training steps on this rank."""
    start = time.perf_counter()
    for _ in range(steps):
        model.train_function(data)
    return time.perf_counter() - start


def wait_asleep() -> None:
    """A barrier that sleeps, while MPI's own would spin and take a core from the ranks that still work."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


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


def compiled(build: Any, distributed: bool, jit: bool) -> keras.Model:
    """A compiled model, with the same weights on all ranks."""
    keras.utils.set_random_seed(1)
    model = build()
    optimizer = keras.optimizers.SGD(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(optimizer) if distributed else optimizer, loss, jit_compile=jit)
    if distributed:
        hvd.broadcast_variables(model.variables, root_rank=0)
    model.make_train_function()
    return model


def data_for(model: keras.Model, batch: int) -> Iterator[Any]:
    """One random batch, without end."""
    generator = np.random.default_rng(hvd.rank())
    images = generator.standard_normal((batch, *model.input_shape[1:]), dtype="float32")
    return iter(tf.data.Dataset.from_tensors((images, generator.integers(0, 10, batch))).repeat())


def measure(name: str, build: Any, batch: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    """The six lines of one model."""
    models = {(who, jit): compiled(build, who == ALL, jit == "on") for who in WHO for jit in ("off", "on")}
    data = data_for(models[ALONE, "off"], batch)

    def block(who: str, model: keras.Model) -> tuple[float, int]:
        wait_asleep()
        mine = seconds(model, data, steps) if who != ALONE or hvd.rank() == 0 else 0.0
        return MPI.COMM_WORLD.allreduce(mine, MPI.MAX) / steps, 0

    timings = interleave(
        {f"{who}, {jit}": partial(block, who, model) for (who, jit), model in models.items()}, rounds
    )

    def ratio(who: str, jit: str, base: str) -> float:
        return float(np.median(np.divide(timings[f"{who}, {jit}"].blocks, timings[f"{base}, {jit}"].blocks)))

    return [
        {
            "model": name,
            "trains": who,
            "jit": jit,
            "step ms": timings[f"{who}, {jit}"].median / 1e3,
            "p10-p90 ms": f"{timings[f'{who}, {jit}'].low / 1e3:.1f}-{timings[f'{who}, {jit}'].high / 1e3:.1f}",
            "x alone": ratio(who, jit, ALONE),
            "x no exchange": ratio(who, jit, EACH),
            "#wrong": bench_models.different_weights(model) if who == ALL else 0,
        }
        for (who, jit), model in models.items()
    ]


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
    cores = len(os.sched_getaffinity(0))
    pin(hvd.local_rank())
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        rows += measure(
            name,
            {"demo": demo, "resnet20": lambda: bench_models.build("resnet20")}[name],
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
