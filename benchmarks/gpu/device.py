"""Shared parts of the benchmarks for GPUs: the GPU of this process, and notes on GPUs and versions."""

import sys
from pathlib import Path

import tensorflow as tf
from mpi4py import MPI

import tfddl as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of report.py

GPU = "GPU:0"


def start() -> int:
    """Joins the job. Ends the program with one line if a rank has no GPU.

    Returns:
        CUDA's index of the GPU of this process.
    """
    hvd.init()
    mine = hvd.set_visible_gpu()
    without = [rank for rank, there in enumerate(MPI.COMM_WORLD.allgather(mine is not None)) if not there]
    if without:
        if hvd.rank() == 0:
            print(f"no GPU: TensorFlow sees none on ranks {without}, and there is nothing to measure")
        raise SystemExit(0)
    assert mine is not None
    return int(mine.name.rpartition(":")[2])


def notes() -> list[str]:
    """Notes on the GPUs of all ranks, and the version of NCCL."""
    visible = tf.config.get_visible_devices("GPU")[0]
    name = tf.config.experimental.get_device_details(visible).get("device_name", "a GPU of unknown name")
    names = MPI.COMM_WORLD.allgather(name)
    return [f"GPUs by rank: {', '.join(names)}", f"NCCL {hvd.nccl_built()}"]
