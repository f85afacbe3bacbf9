"""A training step of an unchanged program beside the same program written by hand.

    tfddlrun -np 2 python benchmarks/data_parallel.py [--json FILE]

*DataParallel*: `fit` gets all the data and the global batch size. *by hand*: each rank keeps its rows of each global batch,
and trains with `DistributedOptimizer`, the broadcast and MetricAverageCallback. The two take turns. Columns:

- `ms`: time of a step on rank 0; median over the steps of a round but the first two of each epoch, then over rounds.
- `DataParallel / by hand`: the same for both, of pairs in one round; median, p25 and p75 over rounds. The bar is 1.03.
- `of epochs`: the same ratio for whole epochs of 64 steps, with what happens at their beginnings and ends.
- `#wrong`: rounds after which a weight differs by more than 1e-4 of the largest.
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import report

import tfddl as hvd

BAR = 1.03


def dense() -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns a network of dense layers, 8,192 rows and their classes."""
    layers = [
        keras.Input((256,)),
        *(keras.layers.Dense(1024, "relu") for _ in range(3)),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers), rows(256), classes()


def images() -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns a network of convolutions, 8,192 images and their classes."""
    layers = [
        keras.Input((32, 32, 3)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers), rows(32, 32, 3), classes()


def rows(*shape: int) -> np.ndarray:
    """8,192 rows of float32."""
    return np.random.default_rng(0).normal(size=(8192, *shape)).astype("float32")


def classes() -> np.ndarray:
    """8,192 numbers from 0 to 9."""
    return np.random.default_rng(1).integers(0, 10, 8192)


class Clock(keras.callbacks.Callback):
    """Times steps and epochs."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets an earlier fit."""
        self.steps: list[float] = []
        self.epochs: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts."""
        self._start = self._last = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Times a step. The first ones of an epoch start its data."""
        now = time.perf_counter()
        if batch > 1:
            self.steps.append(now - self._last)
        self._last = now

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Times an epoch."""
        self.epochs.append(time.perf_counter() - self._start)


def compiled(make: Callable[[], Any], optimizer: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """A network with the same first weights each time, and its data."""
    keras.utils.set_random_seed(1)
    network, x, y = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer, loss, metrics=["accuracy"])
    return network, x, y


def seconds(network: Any, data: Any, batch: int, callbacks: list[Any]) -> tuple[float, float]:
    """Trains for two epochs. Returns the median of a step, and the time of the second epoch."""
    clock = Clock()
    network.fit(*data, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=[*callbacks, clock])
    return float(np.median(clock.steps)), clock.epochs[-1]


def compare(make: Callable[[], Any], batch: int, rounds: int) -> dict[str, Any]:
    """A line of the table; the first round of each way traces, and does not count."""
    ours, x, y = compiled(make, keras.optimizers.SGD(0.01))
    theirs, *_ = compiled(make, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    size, rank = hvd.size(), hvd.rank()
    mine = np.arange(len(x)).reshape(-1, size, batch // size)[:, rank].ravel()
    own = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    times, wrong = [], 0
    for _ in range(rounds + 1):
        parallel = hvd.DataParallel(seed=1)
        one = seconds(ours, (x, y), batch, [])
        parallel.stop()
        other = seconds(theirs, (x[mine], y[mine]), batch // size, own)
        times.append((one, other))
        found, expected = (np.concatenate([w.ravel() for w in each.get_weights()]) for each in (ours, theirs))
        wrong += int(np.abs(found - expected).max() > 1e-4 * np.abs(expected).max())
    (one, other), epochs = np.array(times[1:]).transpose(2, 1, 0)
    low, ratio, high = np.percentile(one / other, [25, 50, 75])
    return {
        "model": make.__name__,
        "global batch": batch,
        "DataParallel, ms": float(np.median(one)) * 1e3,
        "by hand, ms": float(np.median(other)) * 1e3,
        "DataParallel / by hand": float(ratio),
        "p25": float(low),
        "p75": float(high),
        "of epochs": float(np.median(epochs[0] / epochs[1])),
        "ok": "yes" if ratio <= BAR else "NO",
        "#wrong": wrong,
    }


def main() -> None:
    """Measures two models."""
    parser = report.parser(__doc__)
    parser.set_defaults(rounds=9)
    parser.add_argument("--batch", type=int, default=128, help="rows of a global batch")
    arguments = parser.parse_args()
    hvd.init()
    lines = [compare(make, arguments.batch, arguments.rounds) for make in (dense, images)]
    report.show(f"steps of unchanged programs, {hvd.size()} ranks", lines, arguments.json)
    report.fail_if_wrong(lines)


if __name__ == "__main__":
    main()
