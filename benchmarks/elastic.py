"""Times a loss: seconds from the kill of a rank to the next step of the others, and the speed of commits.

    tfddlrun --elastic -np 3 python benchmarks/elastic.py [--layers 8]

In each start the last rank kills itself after step 12 of 20, until one rank is left. The state is committed after every
fifth step. Rank 0 prints the seconds between each kill and the next step, and the median time of the last start's commits.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import tfddl as hvd

WIDTH = 1024


def network(layers: int) -> Any:
    """Dense layers with Adam: 12 MB of state each."""
    model = keras.Sequential([keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH) for _ in range(layers))])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-4)), "mse")
    return model


def main() -> None:
    """Trains, and loses a rank in each start but the last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8, help="layers of the network")
    layers = parser.parse_args().layers
    if "TFDDL_COMMITS" not in os.environ:
        parser.error("start it by tfddlrun --elastic -np 3")
    hvd.init()
    mark = Path(os.environ["TFDDL_COMMITS"]).with_suffix(".killed")
    model = network(layers)
    state = hvd.elastic.KerasState(model, step=0)
    x = np.ones((8, WIDTH), "float32")
    commits = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        killed = float(mark.read_text()) if mark.exists() else None
        while state.step < 20:
            model.train_on_batch(x, x)
            state.step += 1
            if killed is not None and hvd.rank() == 0:
                print(
                    f"{time.time() - killed:.1f} s from the kill to the next step, number of ranks: {hvd.size()}"
                )
            killed = None
            if state.step == 12 and hvd.rank() == hvd.size() - 1 > 0:
                mark.write_text(repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            if state.step % 5 == 0:
                began = time.perf_counter()
                state.commit()
                commits.append(time.perf_counter() - began)

    train(state)
    megabytes = sum(np.prod(each.shape) * 4 for each in state.variables) / 1e6
    seconds = float(np.median(commits))
    if hvd.rank() == 0:
        print(f"a commit of {megabytes:.0f} MB: {seconds * 1e3:.0f} ms, {megabytes / seconds:.0f} MB/s")
        mark.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
