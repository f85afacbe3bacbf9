"""The start of a script whose ranks each have a GPU of the double's: `from tests.gpu.rank import ...`."""

import ctypes
import os
import time
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework.load_library import load_pluggable_device_library

import tfddl as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()

# As a scheduler does: a plugin's device cannot tell which of several GPUs it is.
os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
load_pluggable_device_library(os.environ["TFDDL_TEST_GPU_PLUGIN"])
assert hvd.set_visible_gpu() is not None

_cuda = ctypes.CDLL(os.environ["TFDDL_CUDA_LIBRARY"])
_cuda.tfddl_fake_calls.restype = ctypes.c_long

GPU, CPU = "GPU:0", "CPU:0"


def calls(function: str) -> int:
    """How often this process has called a function of CUDA or NCCL."""
    return int(_cuda.tfddl_fake_calls(function.encode()))


def lies_on(tensor: tf.Tensor, device: str) -> bool:
    """Where an eager tensor's memory is."""
    return bool(tensor.device.endswith(f"device:{device}"))


def wait_until_said(text: str) -> None:
    """Until a rank has written it: the first to end after a failure may take the others with it."""
    while text not in Path(os.environ["TMPDIR"], "output.txt").read_text(errors="replace"):
        time.sleep(0.05)
