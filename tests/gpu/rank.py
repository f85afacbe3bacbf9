"""The start of a script whose ranks each have a GPU, the machine's or the double's: `from tests.gpu.rank import ...`."""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework.load_library import load_pluggable_device_library

import tfddl as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()

_plugin = os.environ.get("TFDDL_TEST_GPU_PLUGIN")
if _plugin is not None:
    # As a scheduler does: a plugin's device cannot tell which of several GPUs it is.
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    load_pluggable_device_library(_plugin)
    _cuda = ctypes.CDLL(os.environ["TFDDL_CUDA_LIBRARY"])
    _cuda.tfddl_fake_calls.restype = ctypes.c_long
if hvd.set_visible_gpu() is None:
    raise SystemExit(f"no GPU: TensorFlow sees none on rank {rank}")

GPU, CPU = "GPU:0", "CPU:0"
compiles = _plugin is None  # XLA knows no plugin's devices


@contextlib.contextmanager
def calling(times: int, *functions: str) -> Iterator[None]:
    """Checks how often functions of NCCL are called, together; only the double can tell."""

    def count() -> int:
        return sum(_cuda.tfddl_fake_calls(function.encode()) for function in functions) if _plugin else 0

    before = count()
    yield
    assert count() - before == (times if _plugin else 0), (functions, count() - before, times)


def lies_on(tensor: tf.Tensor, device: str) -> bool:
    """Where an eager tensor's memory is."""
    return bool(tensor.device.endswith(f"device:{device}"))


def wait_until_said(text: str) -> None:
    """Until a rank has written it: the first to end after a failure may take the others with it."""
    while text not in Path(os.environ["TMPDIR"], "output.txt").read_text(errors="replace"):
        time.sleep(0.05)
