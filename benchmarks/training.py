"""Images per second of a small CNN on 1 process and on all, one core for each process.

    tfddlrun -np 2 python benchmarks/training.py [--json FILE]

Both are taken in one run, in turns: in a round, rank 0 first trains alone with the plain optimizer while the
others sleep, then all train with the distributed one. Synthetic images, 64 x 64 x 3; TensorFlow has one
thread within ops and one between ops; each process is bound to one core of its own. Columns:

- `processes`, `batch`: how many train, and images per process and step.
- `step ms`: time of `steps` steps of `fit`, of the slowest rank, divided by `steps`; median over rounds.
- `p10-p90 ms`: spread over rounds.
- `images/s` = processes x batch / step.
- `efficiency %` = images/s of n processes / (n x images/s of one), from the medians.
- `#wrong`: weights that are not the same bits on all ranks at the end.
"""

import os
import time
from typing import Any

import keras
import numpy as np
import report
import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd


def pin_to_a_core() -> int:
    """Binds this process to one of the cores that it may use, each rank of the machine to another."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[hvd.local_rank() % len(cores)]
    os.sched_setaffinity(0, {core})
    return len(cores)


def build_model(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """Four convolutions and a classifier, 0.5 million weights."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((64, 64, 3))])
    for filters in (32, 64, 128, 256):
        model.add(layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu"))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(256, activation="relu"))
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    return model


def batches(batch: int) -> tf.data.Dataset:
    """One random batch again and again: reading data is no part of the time."""
    generator = np.random.default_rng(hvd.rank())
    images = generator.standard_normal((batch, 64, 64, 3), dtype="float32")
    labels = generator.integers(0, 10, batch)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def seconds(model: keras.Model, data: tf.data.Dataset, steps: int, **options: Any) -> float:
    """Seconds that `steps` steps of `fit` take on this rank."""
    start = time.perf_counter()
    model.fit(data, steps_per_epoch=steps, verbose=0, **options)
    return time.perf_counter() - start


def wait_asleep() -> None:
    """A barrier that leaves the core to those that still work: MPI's own would spin."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def measure_rounds(batch: int, steps: int, rounds: int) -> tuple[list[float], list[float], int]:
    """Seconds a step alone and together, by round, and the number of weights that differ between ranks."""
    data = batches(batch)
    alone = build_model(keras.optimizers.SGD(1e-3))
    together = build_model(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-3)))
    seconds(alone, data, 2)
    seconds(together, data, 2, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        wait_asleep()
        mine = seconds(alone, data, steps) if hvd.rank() == 0 else 0.0
        wait_asleep()
        times[0].append(MPI.COMM_WORLD.bcast(mine) / steps)
        mine = seconds(together, data, steps)
        times[1].append(MPI.COMM_WORLD.allreduce(mine, MPI.MAX) / steps)
    weights = np.concatenate([weight.ravel() for weight in together.get_weights()]).view("int32")
    different = int(np.count_nonzero(weights != MPI.COMM_WORLD.bcast(weights)))
    return *times, MPI.COMM_WORLD.allreduce(different, MPI.SUM)


def row(processes: int, batch: int, times: list[float]) -> dict[str, Any]:
    """A line of the table, from seconds a step."""
    low, median, high = (float(np.percentile(times, q)) * 1e3 for q in (10, 50, 90))
    return {
        "processes": processes,
        "batch": batch,
        "step ms": median,
        "p10-p90 ms": f"{low:.1f}-{high:.1f}",
        "images/s": processes * batch / median * 1e3,
    }


def main() -> None:
    """Measures 1 process and all of them."""
    parser = report.parser(__doc__)
    parser.add_argument("--batch", type=int, default=64, help="images per process and step")
    parser.add_argument("--steps", type=int, default=10, help="steps in a round")
    parser.set_defaults(rounds=7)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    cores = pin_to_a_core()
    keras.utils.set_random_seed(1 + hvd.rank())

    one, all_, wrong = measure_rounds(arguments.batch, arguments.steps, arguments.rounds)
    rows = [row(1, arguments.batch, one), row(hvd.size(), arguments.batch, all_)]
    for line in rows:
        line["efficiency %"] = 100 * line["images/s"] / (line["processes"] * rows[0]["images/s"])
        line["#wrong"] = wrong
    notes = [f"{cores} cores for {hvd.local_size()} processes"]
    report.show("training a CNN on 64 x 64 images, one core a process", rows, arguments.json, notes)
    report.fail_if_wrong(rows)


if __name__ == "__main__":
    main()
