"""Horovod for TensorFlow: one collective in a tf.function; gradients through `DistributedGradientTape`."""

from __future__ import annotations

import horovod.tensorflow as hvd

from tfddl.bench.adapters import Process, Ways, in_graph


def ways(process: Process) -> Ways:
    """Joins a job of Horovod."""
    return in_graph.of_library(
        hvd,
        process,
        {
            "allreduce": lambda t, name: hvd.allreduce(t, op=hvd.Sum, name=name),
            "broadcast": lambda t, name: hvd.broadcast(t, 0, name=name),
            "allgather": lambda t, name: hvd.allgather(t, name=name),
            "reducescatter": lambda t, name: hvd.reducescatter(t, op=hvd.Sum, name=name),
            "alltoall": lambda t, name: hvd.alltoall(t, name=name)[0],
        },
    )
