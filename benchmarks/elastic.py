"""Times losses: how long a training takes in which ranks are killed, and how long a commit takes.

    python benchmarks/elastic.py [-np 4] [--steps 500] [--every 120,30]

A step is a pause, as for a device that computes, and an allreduce of the gradients. A rank is killed every so many seconds,
until one is left. Ways to go on:

- *in the processes*: `tfddlrun --elastic`, and a program that depends on no old rank (ULFM).
- *new start*: the same, but the program has called `hvd.size()` before, so that all processes start again.
- *from a disk*: `tfddlrun` without --elastic, started again after each loss with one process less. Rank 0 writes the weights
  to a file as often as the others commit.

Columns: seconds from the first step to the last; the same divided by that of the training without a kill; the median of the
seconds from a kill to the next step; steps that were made again; the median time of a commit or file; and whether the
weights are those of a training without a kill, to 1e-4 of the largest (`#wrong`, 0 if so).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import report

WAYS = ("in the processes", "new start", "from a disk")
ROWS, WIDTH = 240, 512


def train(arguments: argparse.Namespace) -> None:
    """One rank of one start."""
    import keras
    import tensorflow as tf

    import tfddl as hvd

    hvd.init()
    if arguments.way == "new start":
        hvd.size()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH, "tanh") for _ in range(arguments.layers))]
    )
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
    state: Any = hvd.elastic.KerasState(model, optimizer, step=0)
    file = arguments.folder / "weights.npz"
    if arguments.way == "from a disk" and file.exists():
        loaded = np.load(file)
        state.step = int(loaded["step"])
        for index, variable in enumerate(state.variables):
            variable.assign(loaded[str(index)])
        state.save()

    @tf.function
    def step(rows: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((model(rows) - rows) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    def save() -> None:
        values: dict[str, Any] = {str(index): np.asarray(each) for index, each in enumerate(state.variables)}
        np.savez(arguments.folder / "part.npz", step=state.step, **values)
        (arguments.folder / "part.npz").rename(file)

    @hvd.elastic.run
    def run(state: Any) -> None:
        note(arguments.folder, "pid", hvd.rank(), os.getpid())
        while state.step < arguments.steps:
            rank, size = hvd.rank(), hvd.size()
            time.sleep(arguments.pause)
            step(tf.constant(x[rank * ROWS // size : (rank + 1) * ROWS // size]))
            state.step += 1
            if rank == 0:
                note(arguments.folder, "step", state.step, size)
            if state.step % arguments.commit_every == 0:
                began = time.perf_counter()
                if arguments.way != "from a disk":
                    state.commit()
                elif rank == 0:
                    save()
                if rank == 0:
                    note(arguments.folder, "commit", time.perf_counter() - began)

    run(state)
    if hvd.rank() == 0:
        np.save(arguments.folder / "end.npy", np.concatenate([each.ravel() for each in model.get_weights()]))


def note(folder: Path, *values: Any) -> None:
    """Adds a line to the file that the parent reads."""
    with (folder / "notes").open("a") as file:
        print(time.time(), *values, file=file)


def notes(folder: Path) -> list[list[str]]:
    """The whole lines so far."""
    path = folder / "notes"
    return (
        [line.split() for line in path.read_text().splitlines(True) if line.endswith("\n")]
        if path.exists()
        else []
    )


def measure(arguments: argparse.Namespace, way: str, every: float) -> tuple[dict[str, Any], np.ndarray]:
    """Trains once in a way, with a kill every so many seconds (0: none)."""
    kills: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in range(arguments.processes, 0, -1):
            job = start(arguments, way, folder, size)
            while job.poll() is None:
                time.sleep(0.01)
                times = [float(each[0]) for each in notes(folder) if each[1] == "step"]
                due = times and every and time.time() >= times[0] + every * (len(kills) + 1)
                if due and times[-1] > max(kills, default=0.0) and len(kills) + 1 < arguments.processes:
                    kills.append(kill_last(folder))
            if job.returncode == 0:
                break
            if way != "from a disk":
                raise RuntimeError(f"{way}: tfddlrun ended with {job.returncode}")
        lines, weights = notes(folder), np.load(folder / "end.npy")
    steps = [(float(each[0]), int(each[2])) for each in lines if each[1] == "step"]
    after = [min(moment for moment, _ in steps if moment > kill) - kill for kill in kills]
    commits = [float(each[2]) for each in lines if each[1] == "commit"]
    line = {
        "way": way if every else "no kill",
        "kill every": f"{every:g} s" if every else "",
        "kills": len(kills),
        "seconds": steps[-1][0] - steps[0][0],
        "from kill to step": float(np.median(after)) if after else 0.0,
        "steps again": len(steps) - arguments.steps,
        "commit, ms": float(np.median(commits)) * 1e3,
    }
    return line, weights


def start(arguments: argparse.Namespace, way: str, folder: Path, size: int) -> subprocess.Popen[bytes]:
    """Starts the job."""
    options = [] if way == "from a disk" else ["--elastic"]
    program = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    for name in ("steps", "pause", "layers", "commit_every"):
        program += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    launcher = [sys.executable, "-m", "tfddl.launch.run", *options, "-np", str(size)]
    return subprocess.Popen([*launcher, *program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_last(folder: Path) -> float:
    """Kills the rank with the largest number, and returns the time."""
    processes = [(int(each[2]), int(each[3])) for each in notes(folder) if each[1] == "pid"]
    living = [(rank, pid) for rank, pid in processes if Path(f"/proc/{pid}").exists()]
    os.kill(max(living)[1], signal.SIGKILL)
    return time.time()


def main() -> None:
    """Measures all ways, or is one rank of one of them."""
    parser = report.parser(__doc__)
    parser.add_argument("-np", dest="processes", type=int, default=4, help="ranks at the beginning")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--pause", type=float, default=0.4, help="seconds of each step without other work")
    parser.add_argument("--layers", type=int, default=8, help="layers of 2 MB with their momentum")
    parser.add_argument("--commit-every", type=int, default=20, help="steps between two commits")
    parser.add_argument(
        "--every", default="120,30", help="seconds between two kills, one series for each number"
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="ways to measure")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        train(arguments)
        return
    first, expected = measure(arguments, WAYS[0], 0.0)
    lines = [first | {"of no kill": 1.0, "#wrong": 0}]
    for every in map(float, arguments.every.split(",")):
        for way in arguments.ways.split(","):
            line, weights = measure(arguments, way, every)
            wrong = int(np.abs(weights - expected).max() > 1e-4 * np.abs(expected).max())
            lines.append(line | {"of no kill": line["seconds"] / first["seconds"], "#wrong": wrong})
            print(json.dumps(lines[-1]), flush=True)
    report.show(f"{arguments.steps} steps, {arguments.processes} ranks at first", lines, arguments.json)
    report.fail_if_wrong(lines)


if __name__ == "__main__":
    main()
