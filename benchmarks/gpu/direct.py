"""Direct calls of NCCL and of CUDA's driver: the least time of an allreduce on a GPU."""

import ctypes
import os
from typing import Any

import numpy as np
from mpi4py import MPI

from tfddl.runtime import library

_FLOAT32, _SUM = 7, 0  # of nccl.h
_NOT_READY = 600


class _UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Direct:
    """A communicator of all ranks and a stream, separate from tfddl's.

    Args:
        ordinal: CUDA's index of the GPU.
    """

    def __init__(self, ordinal: int) -> None:
        self._cuda = ctypes.CDLL(os.environ.get("TFDDL_CUDA_LIBRARY") or "libcuda.so.1")
        self._nccl = ctypes.CDLL(library.nccl_path())
        self._nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, _UniqueId, ctypes.c_int]
        self._context, self.stream, self._other = (ctypes.c_void_p() for _ in range(3))
        self._comm, self._event, self._before = (ctypes.c_void_p() for _ in range(3))
        self._call(self._cuda.cuInit, 0)
        self._call(self._cuda.cuDevicePrimaryCtxRetain, ctypes.byref(self._context), ordinal)
        self._call(self._cuda.cuCtxSetCurrent, self._context)
        self._call(self._cuda.cuStreamCreateWithPriority, ctypes.byref(self.stream), 1, -5)
        self._call(self._cuda.cuStreamCreate, ctypes.byref(self._other), 1)
        for event in (self._event, self._before):
            self._call(self._cuda.cuEventCreate, ctypes.byref(event), 2)
        world, unique = MPI.COMM_WORLD, _UniqueId()
        if world.rank == 0:
            self._call(self._nccl.ncclGetUniqueId, ctypes.byref(unique))
        unique = _UniqueId.from_buffer_copy(world.bcast(bytes(unique)))
        self._call(self._nccl.ncclCommInitRank, ctypes.byref(self._comm), world.size, unique, world.rank)

    def copy(self, values: np.ndarray) -> ctypes.c_void_p:
        """Copies values to new memory of the GPU."""
        memory = ctypes.c_void_p()
        self._call(self._cuda.cuMemAlloc_v2, ctypes.byref(memory), ctypes.c_size_t(values.nbytes))
        self._call(
            self._cuda.cuMemcpyHtoD_v2,
            memory,
            ctypes.c_void_p(values.ctypes.data),
            ctypes.c_size_t(values.nbytes),
        )
        return memory

    def move(self, to: ctypes.c_void_p, source: ctypes.c_void_p, size: int) -> None:
        """Copies bytes within the memory of the GPU."""
        self._call(self._cuda.cuMemcpyDtoD_v2, to, source, ctypes.c_size_t(size))

    def read(self, memory: ctypes.c_void_p, count: int, dtype: str = "float32") -> np.ndarray:
        """Reads values from the memory of the GPU."""
        values = np.empty(count, dtype)
        self._call(
            self._cuda.cuMemcpyDtoH_v2,
            ctypes.c_void_p(values.ctypes.data),
            memory,
            ctypes.c_size_t(values.nbytes),
        )
        return values

    def free(self, *memory: ctypes.c_void_p) -> None:
        """Frees memory of the GPU."""
        for pointer in memory:
            self._call(self._cuda.cuMemFree_v2, pointer)

    def allreduce(self, x: ctypes.c_void_p, y: ctypes.c_void_p, count: int) -> None:
        """Sums `count` float32 numbers over the ranks, and returns when the sums are there."""
        size = ctypes.c_size_t(count)
        self._call(self._nccl.ncclAllReduce, x, y, size, _FLOAT32, _SUM, self._comm, self.stream)
        self.wait()

    def allreduce_behind(self, x: ctypes.c_void_p, y: ctypes.c_void_p, count: int) -> None:
        """As `allreduce`, behind an event of another stream: each op waits for TensorFlow's stream in this way."""
        self._call(self._cuda.cuEventRecord, self._before, self._other)
        self._call(self._cuda.cuStreamWaitEvent, self.stream, self._before, 0)
        self.allreduce(x, y, count)

    def wait(self) -> None:
        """Waits until the stream has finished its work."""
        self._call(self._cuda.cuEventRecord, self._event, self.stream)
        while (code := self._cuda.cuEventQuery(self._event)) == _NOT_READY:
            pass
        if code:
            raise RuntimeError(f"cuEventQuery returned {code}")

    def close(self) -> None:
        """Frees the communicator."""
        self._call(self._nccl.ncclCommDestroy, self._comm)

    @staticmethod
    def _call(function: Any, *arguments: object) -> None:
        code = function(*arguments)
        if code:
            raise RuntimeError(f"{function.__name__} returned {code}")
