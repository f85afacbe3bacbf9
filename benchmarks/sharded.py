"""ShardedOptimizer beside DistributedOptimizer: what a rank keeps, and how long a step takes.

    tfddlrun -np 2 python benchmarks/sharded.py [--jit] [--json FILE]

Two copies of a model start with the same weights and train on the same rows with Adam, with `train_on_batch`. The ways take
turns, and each round begins with the other one. Each rank has rows of its own, and uses one thread. Models:

- `dense`: 4.5 million values in kernels of 4 MiB.
- `small`: 161 variables of 4 to 9,216 values, 53 convolutions with batch normalization.

Columns:

- `weights, MB`: the trainable variables. One rank's, as in the next three columns; bytes of variables, counted.
- `state, MB`: variables of the unsharded optimizer. `sharded state, MB`: those of the sharded one, of the rank with most.
- `slices, MB`: flat copies of this rank's part of the weights, which only the sharded optimizer has.
- `state / N`: sharded state / unsharded state * the number of ranks. 1 is perfect; slices are rounded to 64 values.
- `ms`, `sharded, ms`: a step of the slowest rank, median over rounds.
- `sharded / unsharded`: of pairs in one round; median, p25 and p75 over rounds. The bar is 1.05.
- `#wrong`: values of weights that differ between both ways, or between the ranks, after the last round: bits without
  `--jit`. XLA rounds in its own order, so with `--jit` only a difference of more than 1e-4 of the largest counts.
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import report
import tensorflow as tf

import tfddl as hvd

BAR = 1.05


def dense() -> Any:
    """Returns a network of few large kernels."""
    return keras.Sequential(
        [
            keras.Input((256,)),
            *(keras.layers.Dense(1024, "relu") for _ in range(5)),
            keras.layers.Dense(10),
        ]
    )


def small() -> Any:
    """Returns a residual network of many small variables."""

    def layer(x: Any, size: int) -> Any:
        x = keras.layers.Conv2D(32, size, padding="same", use_bias=False)(x)
        return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))

    inputs = keras.Input((8, 8, 4))
    x = layer(inputs, 3)
    for _ in range(26):
        x = keras.layers.Add()([x, layer(layer(x, 3), 1)])
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


class Training:
    """One way to train a model.

    Args:
        make: Makes the model.
        distribute: Makes an optimizer combine its gradients.
        arguments: Those of the command line.

    Attributes:
        model: The model.
    """

    def __init__(self, make: Callable[[], Any], distribute: Callable[[Any], Any], arguments: Any) -> None:
        keras.utils.set_random_seed(1)
        self.model, self._batch, self._taken = make(), arguments.batch, 0
        draws = np.random.default_rng(hvd.rank())
        self._x = draws.normal(size=(16, arguments.batch, *self.model.input_shape[1:])).astype("float32")
        self._y = draws.integers(0, 10, (16, arguments.batch))
        optimizer = distribute(keras.optimizers.Adam(1e-3))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(optimizer, loss, jit_compile=arguments.jit)
        optimizer.build(self.model.trainable_variables)

    def seconds(self, steps: int) -> float:
        """Trains. Returns the time of a step of the slowest rank."""
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            index = self._taken % len(self._x)
            self.model.train_on_batch(self._x[index], self._y[index])
            self._taken += 1
        return largest((time.perf_counter() - begun) / steps)

    def values(self) -> np.ndarray:
        """All trainable weights as one vector."""
        return np.concatenate([np.ravel(weight) for weight in self.model.trainable_variables])


def size_of(variables: Any) -> int:
    """Bytes of some variables."""
    return sum(int(np.prod(each.shape)) * tf.as_dtype(each.dtype).size for each in variables)


def largest(number: float) -> float:
    """The largest of the numbers of all ranks."""
    return float(hvd.allreduce(tf.constant(number, tf.float64), op=hvd.Max, name="largest"))


def different(found: np.ndarray, expected: np.ndarray, rounds_differently: bool) -> int:
    """How many values differ."""
    if not rounds_differently:
        return int((found.view(np.uint32) != expected.view(np.uint32)).sum())
    return int((np.abs(found - expected) > 1e-4 * np.abs(expected).max()).sum())


def compare(make: Callable[[], Any], arguments: Any) -> dict[str, Any]:
    """A line of the table; a round in which both ways trace does not count."""
    ours, theirs = (
        Training(make, each, arguments) for each in (hvd.ShardedOptimizer, hvd.DistributedOptimizer)
    )
    times: list[list[float]] = []
    for number in range(arguments.rounds + 1):
        turns = [ours, theirs] if number % 2 else [theirs, ours]
        taken = {id(each): each.seconds(arguments.steps) for each in turns}
        times.append([taken[id(ours)], taken[id(theirs)]])
    one, other = np.array(times[1:]).T
    low, ratio, high = np.percentile(one / other, [25, 50, 75])
    mine, expected = ours.values(), theirs.values()
    first = hvd.broadcast(tf.constant(mine), 0, name=f"{make.__name__}.weights").numpy()
    wrong = different(mine, expected, arguments.jit) + different(mine, first, False)
    parts = ours.model.optimizer._slices.parts
    state = size_of(theirs.model.optimizer.variables)
    sharded, slices = (largest(size_of(each)) for each in (ours.model.optimizer.variables, parts))
    return {
        "model": make.__name__,
        "weights, MB": size_of(theirs.model.trainable_variables) / 1e6,
        "state, MB": state / 1e6,
        "sharded state, MB": sharded / 1e6,
        "slices, MB": slices / 1e6,
        "state / N": sharded / state * hvd.size(),
        "ms": float(np.median(other)) * 1e3,
        "sharded, ms": float(np.median(one)) * 1e3,
        "sharded / unsharded": float(ratio),
        "p25": float(low),
        "p75": float(high),
        "ok": "yes" if ratio <= BAR else "NO",
        "#wrong": int(largest(wrong)),
    }


MODELS = {make.__name__: make for make in (dense, small)}


def main() -> None:
    """Measures the models."""
    parser = report.parser(__doc__)
    parser.set_defaults(rounds=11)
    parser.add_argument("--steps", type=int, default=10, help="steps of each way in a round")
    parser.add_argument("--batch", type=int, default=32, help="rows of a rank's step")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="both by default")
    parser.add_argument("--jit", action="store_true", help="compile the steps with XLA")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    lines = [compare(MODELS[name], arguments) for name in arguments.models]
    report.show(f"sharded optimizer, {hvd.size()} ranks", lines, arguments.json)
    report.fail_if_wrong(lines)


if __name__ == "__main__":
    main()
