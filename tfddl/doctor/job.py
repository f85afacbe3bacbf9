"""One rank of the job that `tfddl doctor -np N` starts: a hello, an allreduce, a fit, the time of a megabyte."""

from __future__ import annotations

import socket
import statistics
import sys
import time

from tfddl.doctor.finding import fault, note, ok
from tfddl.doctor.probe import report

STEPS, ROUNDS = 10, 30
SLOW_S = 2e-3


def main(wanted: int) -> None:
    """Runs the checks, in turn, and reports them on rank 0."""
    import numpy as np
    import tensorflow as tf

    import tfddl as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    hosts = hvd.allgather_object(socket.gethostname())
    if rank == 0:
        text = (
            f"{size} ranks on {', '.join(f'{name} ({hosts.count(name)})' for name in dict.fromkeys(hosts))}"
        )
        if size == wanted:
            report(ok("hello", text))
        else:
            report(fault("hello", f"{text}; {wanted} were started", "tfddl doctor, and look at mpirun"))
    parts = [np.random.default_rng(each).normal(size=1000).astype("float32") for each in range(size)]
    total = hvd.allreduce(tf.constant(parts[rank]), op=hvd.Sum).numpy()
    error = float(np.abs(total - np.sum(parts, axis=0)).max())
    if rank == 0:
        text = f"the sum of 1000 numbers differs from NumPy's by {error:.1e} at most"
        report(
            ok("allreduce", text)
            if error < 1e-4
            else fault("allreduce", text, "report a bug, with this output")
        )
    _fit(hvd, np, rank, size)
    _time(hvd, tf, rank)
    hvd.shutdown()


def _fit(hvd, np, rank: int, size: int) -> None:  # type: ignore[no-untyped-def]
    from tfddl import _compat

    keras = _compat.keras()
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x = np.random.default_rng(rank).normal(size=(STEPS * 8, 4)).astype("float32")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=8, verbose=0, callbacks=callbacks)
    weights = hvd.allgather_object([each.tobytes() for each in model.get_weights()])
    if rank == 0:
        text = (
            f"{STEPS} steps, weights equal on {sum(each == weights[0] for each in weights)} of {size} ranks"
        )
        equal = all(each == weights[0] for each in weights)
        report(ok("fit", text) if equal else fault("fit", text, "report a bug, with this output"))


def _time(hvd, tf, rank: int) -> None:  # type: ignore[no-untyped-def]
    megabyte = tf.zeros([1 << 18])
    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        reduce(megabyte)
        times.append(time.perf_counter() - begin)
    if rank == 0:
        median = statistics.median(times)
        text = f"1 MB in {median * 1e6:.0f} us (median of {ROUNDS})"
        usual = f"{text}; 2 ranks of one host take 200 to 500 us"
        slow = hvd.size() == hvd.local_size() == 2 and median > SLOW_S
        cure = "run tfddl doctor -np 2 again when nothing else runs here; more ranks than cores are slow too"
        report(note("speed", usual, cure) if slow else ok("speed", usual))


if __name__ == "__main__":
    main(int(sys.argv[1]))
