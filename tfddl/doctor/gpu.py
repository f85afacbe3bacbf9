"""Probes of GPUs: the driver, TensorFlow's view, NCCL."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from tfddl.build import discover
from tfddl.doctor.finding import Finding, fault, note, ok

LEAST_NCCL = 21800  # 2.18
_DEVICES = Path("/dev")


def device_files() -> list[str]:
    """The names of the files of NVIDIA's GPUs on this host."""
    return sorted(each.name for each in _DEVICES.glob("nvidia[0-9]*"))


def gpu() -> Iterator[Finding]:
    """The GPUs of the host, those that TensorFlow sees, and NCCL."""
    there = device_files()
    if not there:
        yield ok("GPU", "none on this host")
        return
    try:
        driver = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        driver = "driver unknown"
    yield ok("GPU", f"{', '.join(there)} ({driver})")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and "SLURM_JOB_ID" in os.environ:
        yield ok("CUDA_VISIBLE_DEVICES", f"{visible!r}: the GPUs of this job of Slurm")
    elif visible is not None:
        yield note(
            "CUDA_VISIBLE_DEVICES",
            repr(visible),
            "unset CUDA_VISIBLE_DEVICES, unless a scheduler has set it: hvd.init() gives each process its GPU",
        )
    if discover.tensorflow_version() is not None:
        yield from _of_tensorflow(len(there))
    yield from nccl()


def _of_tensorflow(count: int) -> Iterator[Finding]:
    import tensorflow as tf

    seen = len(tf.config.list_physical_devices("GPU"))
    if seen == 0:
        yield fault("TensorFlow's GPUs", f"none of {count}", "pip install 'tensorflow[and-cuda]'")
    else:
        yield ok("TensorFlow's GPUs", f"{seen} of {count}")


def nccl() -> Iterator[Finding]:
    """The NCCL that combines tensors on GPUs."""
    from tfddl.runtime.library import nccl_path

    path = nccl_path()
    version = ctypes.c_int()
    try:
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        yield fault("NCCL", str(error), "pip install nvidia-nccl-cu12")
        return
    text = f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100} ({path})"
    if version.value < LEAST_NCCL:
        yield fault(
            "NCCL", f"{text}, and tfddl needs 2.18", "pip install --no-deps --upgrade nvidia-nccl-cu12"
        )
    else:
        yield ok("NCCL", text)
