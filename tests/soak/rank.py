"""The program of a rank in `make soak`: python -m tests.soak.rank STEPS SEED DIRECTORY"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfddl as hvd
from tests.soak.samples import take

CYCLE = 50
"""Steps after which the sequence of actions begins anew. A sample is taken at its end, where all ranks are equally far."""
SLOW_PART, SLOW_S = 0.05, 0.02
"""The part of the steps before which a rank sleeps, and for how many seconds at most."""
RESTART = 100
"""Steps after which the job is left and started anew. Not in the second half of the steps, where a leak of one job shows."""
MAX_ROWS = 20000


class Soak:
    """The actions of one rank.

    `shared` draws the same numbers on all ranks, `own` other numbers on each.
    """

    def __init__(self, steps: int, seed: int, directory: Path) -> None:
        self.steps = steps
        self.shared = np.random.default_rng(seed)
        self.own = np.random.default_rng([seed, hvd.rank()])
        self.directory = directory
        keras.utils.set_random_seed(seed)
        self.model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(4)]
        )
        self.model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), "mse")
        self.weights = [tf.Variable(tf.random.normal([size, 8])) for size in (8, 64, 512, 4096)]
        self.saver = tf.train.Checkpoint(model=self.model)
        self.train = tf.function(self.train_step)

    def step(self, number: int) -> None:
        """One step: training and a collective, and at some steps of a cycle something rarer."""
        if self.own.random() < SLOW_PART:
            time.sleep(self.own.random() * SLOW_S)
        self.train()
        self.collective()
        rare = {10: self.process_set, 20: self.checkpoint, 30: self.process_set, 40: self.join, 45: self.fit}
        rare.get(number % CYCLE, lambda: None)()
        if number % RESTART == RESTART // 4 and number < self.steps / 2:
            hvd.shutdown()
            hvd.init()

    def train_step(self) -> None:
        with tf.GradientTape() as plain:
            loss = tf.add_n([tf.reduce_sum(tf.sin(weight)) for weight in self.weights])
        tape = hvd.DistributedGradientTape(plain)
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(1e-3 * gradient)

    def collective(self) -> None:
        """A collective of a size that changes."""
        rows = int(2 ** (self.shared.random() * np.log2(MAX_ROWS)))
        x = np.ones([rows, 3], "float32")
        match self.shared.integers(6):
            case 0:
                hvd.allreduce(x, op=hvd.Sum)
            case 1:
                hvd.grouped_allreduce([x, x[: rows // 2]])
            case 2:
                hvd.allgather(x[: self.own.integers(rows)])
            case 3:
                hvd.broadcast(x, 0)
            case 4:
                hvd.alltoall(np.ones([rows * hvd.size(), 3], "float32"))
            case 5:
                hvd.reducescatter(x)

    def process_set(self) -> None:
        """A process set comes, runs collectives and goes."""
        ranks = sorted(self.shared.permutation(hvd.size())[: self.shared.integers(1, hvd.size())].tolist())
        process_set = hvd.add_process_set(ranks)

        # TensorFlow keeps the kernel of each eager op of each process set for ever, but not those of a function.
        @tf.function
        def run(x: tf.Tensor) -> list[tf.Tensor]:
            return [
                hvd.allreduce(x, process_set=process_set),
                hvd.allgather(x, process_set=process_set),
                hvd.broadcast(x, ranks[0], process_set=process_set),
            ]

        if process_set.included():
            run(np.ones([100, 3], "float32"))
        hvd.remove_process_set(process_set)

    def checkpoint(self) -> None:
        """Rank 0 writes a file. Not by Keras: its `save` and `save_weights` leak 70 kB each time, also without tfddl."""
        if hvd.rank() == 0:
            self.saver.write(str(self.directory / "checkpoint"))
        hvd.broadcast_variables(self.model.variables, root_rank=0)
        assert hvd.broadcast_object({"rank": hvd.rank()}, 0) == {"rank": 0}

    def join(self) -> None:
        """Rank 0 has less data than the others."""
        for _ in range(int(self.own.integers(3)) if hvd.rank() else 0):
            hvd.allreduce(np.ones(100, "float32"), name="before join")
        hvd.join()

    def fit(self) -> None:
        x = np.ones([32, 16], "float32")
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ]
        self.model.fit(x, x[:, :4], batch_size=8, verbose=0, callbacks=callbacks)


def main(steps: int, seed: int, directory: Path) -> None:
    """Runs the steps, and writes a line for each sample."""
    hvd.init()
    soak = Soak(steps, seed, directory)
    with open(directory / f"rank{hvd.rank()}.jsonl", "w", buffering=1) as file:
        for number in range(1, steps + 1):
            soak.step(number)
            if number % CYCLE == 0:
                gc.collect()
                hvd.barrier()
                print(json.dumps(dataclasses.asdict(take(number))), file=file)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
