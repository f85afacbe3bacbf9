"""Ways to train a language model over slow links: how busy the processors stay, and what becomes of the loss.

    python -m tfddl.bench.lab $(mktemp -d) 100mbit,20ms \\
        tfddlrun -np 2 -H hostA:1,hostB:1 python benchmarks/slow_links.py utilisation
    tfddlrun -np 2 python benchmarks/slow_links.py loss [--csv FILE] [--svg FILE]
    python benchmarks/slow_links.py predict

Each rank uses one thread. `WAYS` has a line for each way to exchange gradients or weights. H is the number of steps between
two exchanges.

`utilisation` needs a network: the lab's, or a real one. Columns:

- `alone, ms`, `step, ms`: a step without communication, and with it; the slowest rank, medians over rounds. Both take turns,
  in blocks of H steps (of `--block` steps for a way that exchanges in each). A block of Streaming DiLoCo begins and ends
  with one fragment under way, so that as many exchanges are in it as in any H steps.
- `utilisation, %`: alone / step of one round, the median over rounds; `least` and `most` are of single rounds.
- `MB a step`: what the first host sent, by /proc/net/dev. 0 where there is no interface `cable`.

`loss` trains with each way from the same weights on the same rows, with the same schedule of AdamW. The loss is the mean
over the rows for validation, in nats a byte; where ranks have different weights, each takes its part of the rows.

`predict` measures nothing: prediction.py has the formulas and their source.
"""

import csv
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import language_model
import numpy as np
import report
import tensorflow as tf
from prediction import table

import tfddl as hvd

VALIDATION_ROWS = 256
INT8_BYTES = 1 + 4 / 256  # and a scale for each 256


@dataclasses.dataclass(frozen=True)
class Way:
    """A line of the tables.

    Attributes:
        name: For people, and for `--ways`.
        each_step: Makes the optimizer that exchanges gradients, from a plain one. None: it stays plain.
        seldom: Makes what exchanges weights every H steps, from variables and H. None: nothing does.
        streaming: Whether `seldom` also takes `fragments` and `delay`.
        bytes: Bytes of a weight or gradient on the network, for `predict`. 0: it is not predicted.
    """

    name: str
    each_step: Callable[[Any], Any] | None = None
    seldom: Callable[..., Any] | None = None
    streaming: bool = False
    bytes: float = 4


def without_momentum(variables: Any, every: int) -> Any:
    """DiLoCo whose outer steps are no longer than the movement of the ranks."""
    return hvd.DiLoCo(variables, every, keras.optimizers.SGD(0.7))


def power_sgd(optimizer: Any) -> Any:
    """Gradients travel as factors of rank 4."""
    return hvd.DistributedOptimizer(optimizer, compression=hvd.PowerSGD(rank=4))


WAYS = [
    Way("data parallel", hvd.DistributedOptimizer),
    Way("fp16", partial(hvd.DistributedOptimizer, compression=hvd.Compression.fp16), bytes=2),
    Way("int8", partial(hvd.DistributedOptimizer, compression=hvd.Compression.int8), bytes=INT8_BYTES),
    Way("PowerSGD", power_sgd, bytes=0),
    Way("sharded", hvd.ShardedOptimizer),
    # A new way to exchange gradients in each step gets its line here.
    Way("LocalSGD", seldom=hvd.LocalSGD),
    Way("DiLoCo without momentum", seldom=without_momentum),
    Way("DiLoCo", seldom=hvd.DiLoCo),
    Way(
        "streaming int8 DiLoCo",
        seldom=partial(hvd.DiLoCo, mixing=0.5, compression=hvd.Compression.int8),
        streaming=True,
        bytes=INT8_BYTES,
    ),
]


class Training:
    """A model that trains in one way, on rows of its own for each rank.

    Args:
        way: The way.
        every: H.
        arguments: Those of the command line.
    """

    def __init__(self, way: Way, every: int, arguments: Any) -> None:
        self.way, self.every, self.taken = way, every, 0
        self._batch = arguments.batch
        self.model = language_model.language_model(arguments.width, arguments.layers, arguments.length)
        training, validation = language_model.text()
        count = arguments.steps * self._batch * hvd.size()
        self._rows = language_model.rows(training, count, arguments.length, seed=1)
        self._validation = language_model.rows(validation, VALIDATION_ROWS, arguments.length, seed=2)
        variables = self.model.trainable_variables
        hvd.broadcast_variables(variables, root_rank=0)
        plain = self._optimizer(arguments)
        optimizer = way.each_step(plain) if way.each_step else plain
        self.fragments: int = arguments.fragments if way.streaming else 1
        self.delay: int = arguments.delay if way.streaming else 0
        parts = {"fragments": self.fragments, "delay": self.delay} if way.streaming else {}
        self._exchange = way.seldom(variables, every, **parts) if way.seldom else None
        self._step = self._function(optimizer)
        self._alone = self._function(self._optimizer(arguments)) if way.each_step else self._step
        self._loss = tf.function(self._loss_of)

    def _optimizer(self, arguments: Any) -> Any:
        warm = max(1, arguments.steps // 20)
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, arguments.steps, alpha=0.05, warmup_target=arguments.rate, warmup_steps=warm
        )
        optimizer = keras.optimizers.AdamW(rate)
        optimizer.build(self.model.trainable_variables)
        return optimizer

    def _loss_of(self, rows: Any) -> Any:
        logits = self.model(rows[:, :-1], training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(rows[:, 1:], logits))

    def _function(self, optimizer: Any) -> Callable[[Any], Any]:
        @tf.function
        def step(rows: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self._loss_of(rows)
            variables = self.model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        return step

    def _next(self) -> tf.Tensor:
        begin = (self.taken * hvd.size() + hvd.rank()) * self._batch % len(self._rows)
        return tf.constant(self._rows[begin : begin + self._batch])

    def step(self) -> None:
        """Trains for one step, with what the way exchanges."""
        float(self._step(self._next()))
        self.taken += 1
        if self._exchange is not None:
            self._exchange.step()

    def alone(self) -> None:
        """Makes the same step without communication."""
        float(self._alone(self._next()))

    def finish(self) -> None:
        """Ends exchanges that are under way."""
        if self._exchange is not None:
            self._exchange.finish()

    def validate(self, name: str) -> float:
        """The loss of the rows for validation; the mean over the ranks, each with its part and its weights."""
        mine = self._validation[hvd.rank() :: hvd.size()]
        parts = [
            float(self._loss(tf.constant(part))) for part in np.array_split(mine, max(1, len(mine) // 16))
        ]
        return float(hvd.allreduce(tf.constant(np.mean(parts)), name=name))


def series(arguments: Any) -> list[tuple[Way, int, str]]:
    """The ways that were asked for; those that exchange seldom with each H."""
    found = []
    for way in WAYS:
        for every in arguments.every if way.seldom else [1]:
            fits = every % arguments.fragments == 0 and arguments.delay < every // arguments.fragments
            wanted = not arguments.ways or way.name in arguments.ways.split(",")
            if wanted and (fits or not way.streaming):
                found.append((way, every, f"{way.name}, H={every}" if way.seldom else way.name))
    return found


def sent() -> int:
    """Bytes that this host has sent on the cable."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(line.split()[9]) for line in lines if line.strip().startswith("cable:"))


def seconds(step: Callable[[], None], count: int, name: str) -> float:
    """Time of some steps, that of the slowest rank."""
    hvd.barrier()
    begun = time.perf_counter()
    for _ in range(count):
        step()
    return float(hvd.allreduce(tf.constant(time.perf_counter() - begun), op=hvd.Max, name=name))


def utilisation(arguments: Any) -> list[dict[str, Any]]:
    """Measures all ways, one after the other."""
    lines = []
    for way, every, name in series(arguments):
        training = Training(way, every, arguments)
        count = every if way.seldom else arguments.block
        training.step()
        training.alone()
        times, traffic = [], []
        for _ in range(arguments.rounds):
            alone = seconds(training.alone, count, f"{name}.alone")
            if way.seldom:  # up to the beginning of a period, or of an exchange in the background
                seconds(training.step, -training.taken % (every // training.fragments), f"{name}.before")
            before = sent()
            times.append((alone, seconds(training.step, count, f"{name}.step")))
            traffic.append((sent() - before) / count / 1e6)
            seconds(training.step, training.delay, f"{name}.after")
        training.finish()
        alone_times, step_times = np.array(times).T / count * 1e3
        ratios = 100 * alone_times / step_times
        lines.append(
            {
                "way": name,
                "alone, ms": float(np.median(alone_times)),
                "step, ms": float(np.median(step_times)),
                "utilisation, %": float(np.median(ratios)),
                "least": float(min(ratios)),
                "most": float(max(ratios)),
                "MB a step": float(np.median(traffic)),
            }
        )
        if hvd.rank() == 0:
            print(lines[-1], flush=True)
    return lines


def loss(arguments: Any) -> list[dict[str, Any]]:
    """Trains in each way, and writes the curves."""
    lines, curves = [], []
    for way, every, name in series(arguments):
        training, begun = Training(way, every, arguments), time.perf_counter()
        for step in range(1, arguments.steps + 1):
            training.step()
            if step == arguments.steps:
                training.finish()
            if step % arguments.validate_every == 0 or step == arguments.steps:
                rows = step * arguments.batch * hvd.size()
                curves.append((name, step, rows, training.validate(f"{name}.{step}")))
        taken = time.perf_counter() - begun
        lines.append({"way": name, "rows": curves[-1][2], "loss": curves[-1][3], "seconds": taken})
        lines[-1]["less data parallel"] = lines[-1]["loss"] - lines[0]["loss"]
        if hvd.rank() == 0:
            print(lines[-1], flush=True)
    if hvd.rank() == 0 and arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["way", "steps", "rows", "validation loss"])
            writer.writerows((name, step, rows, f"{value:.4f}") for name, step, rows, value in curves)
    if hvd.rank() == 0 and arguments.svg:
        draw(curves, arguments.svg)
    return lines


def draw(curves: list[tuple[str, int, int, float]], path: Path) -> None:
    """Writes the curves as a picture, with the same bytes each time."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "tfddl", "svg.fonttype": "none", "font.size": 10})
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="steps", ylabel="validation loss, nats a byte")
    for name in dict.fromkeys(name for name, *_ in curves):
        mine = [(step, value) for other, step, _, value in curves if other == name]
        axes.plot(*zip(*mine, strict=True), label=name, linewidth=1.5)
    figure.legend(frameon=False, loc="outside right upper")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


MODES = {
    "utilisation": utilisation,
    "loss": loss,
    "predict": lambda arguments: table(arguments, [each for each in series(arguments) if each[0].bytes]),
}


def main() -> None:
    """Measures or predicts."""
    parser = report.parser(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--every", type=int, nargs="+", help="numbers of steps H between two exchanges")
    parser.add_argument("--fragments", type=int, default=5, help="of streaming DiLoCo")
    parser.add_argument("--delay", type=int, default=5, help="of streaming DiLoCo, in steps")
    parser.add_argument("--ways", default="", help="names out of WAYS, with commas; all by default")
    parser.add_argument("--steps", type=int, default=800, help="steps of a training, and of its schedule")
    parser.add_argument("--batch", type=int, default=8, help="rows of a rank's step")
    parser.add_argument("--rate", type=float, default=1e-3, help="largest learning rate")
    for name, default in (("width", 320), ("layers", 4), ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--block", type=int, default=4, help="steps between turns, for exchanges in each step"
    )
    parser.add_argument("--validate-every", type=int, default=50)
    parser.add_argument("--csv", type=Path, help="file for the curves of `loss`")
    parser.add_argument("--svg", type=Path, help="picture of the curves of `loss`")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024], help="for `predict`")
    parser.add_argument("--weights", type=float, default=5.13e6, help="for `predict`")
    parser.add_argument("--step-seconds", type=float, default=0.17, help="t, for `predict`")
    parser.add_argument("--latency", type=float, default=0.02, help="a in seconds, one way, for `predict`")
    parser.add_argument(
        "--efficiency", type=float, default=0.96, help="part of the rate that is data, for `predict`"
    )
    parser.add_argument("--message-seconds", type=float, default=2e-5, help="o, for `predict`")
    arguments = parser.parse_args()
    arguments.every = arguments.every or ([10, 50, 200] if arguments.mode == "loss" else [50])
    title = f"slow links, {arguments.mode}"
    if arguments.mode != "predict":
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        hvd.init()
        title += f", {hvd.cross_size()} hosts, {hvd.size()} ranks"
    report.show(title, MODES[arguments.mode](arguments), arguments.json)


if __name__ == "__main__":
    main()
