"""The engine and NCCL without TensorFlow: every collective and dtype against NumPy, then the time of an allreduce.

    PYTHONPATH=. mpirun -np 1 python benchmarks/gpu/core.py [--gpus N] [--largest BYTES] [--library FILE]

For a machine with a GPU and without TensorFlow. It needs NumPy, mpi4py with the header of its MPI, g++, make, cmake, the
driver and NCCL. It calls `tfddl_start` and `tfddl_finish`, as programs compiled by XLA do. Ranks that share a GPU need NCCL
2.30.3 or later, NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 NCCL_NVLS_ENABLE=0 and a time limit; their times mean nothing.

Columns of the second part, one line for each size; `tfddl/bench/rounds.py` defines the medians.

- `tfddl us`: from the call until the caller's stream has the result: agreement, NCCL, events.
- `direct us`: `ncclAllReduce` and the wait for its event. Both are in place: out of place NCCL also copies, at one rank.
- `over us`: the difference. The bar is 15 us at one rank.
- `#wrong`: elements that were not the exact sum of whole numbers.
"""

import argparse
import ctypes
import itertools
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import direct
import numpy as np
from mpi4py import MPI

from tfddl.bench.adapters import Way
from tfddl.bench.case import count_wrong
from tfddl.bench.rounds import measure
from tfddl.build.compile import compile_library
from tfddl.build.discover import find_mpi
from tfddl.runtime import library

# The numbers of custom_ops/base/types.h; NumPy has no bfloat16.
_NAMES = (
    "float16 - float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128"
)
DTYPES = {name: number for number, name in enumerate(_NAMES.split()) if name != "-"}
REDUCED = [name for name in DTYPES if name not in ("int16", "uint16", "bool", "complex64", "complex128")]
AVERAGE, SUM, MIN, MAX, PRODUCT = 0, 1, 3, 4, 5
ALLREDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, ALLTOALL = range(5)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


class Engine:
    """The native library, on this process's GPU.

    Args:
        path: The library, with or without TensorFlow's ops.
        gpu: CUDA's index of the GPU.
        device: The memory of the GPU and the caller's stream.
    """

    def __init__(self, path: Path, gpu: int, device: direct.Direct) -> None:
        self._native, self._gpu, self._device = ctypes.CDLL(str(path)), gpu, device
        self._native.tfddl_last_error.restype = ctypes.c_char_p
        self._native.tfddl_set_nccl_wheel((library.nccl_wheel() or "").encode())
        self._runs = itertools.count(1)
        self._communicators = MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
        addresses = (ctypes.c_void_p(MPI._addressof(each)) for each in self._communicators)
        self._check(self._native.tfddl_init(*addresses, ctypes.c_double(10), ctypes.c_double(60)))

    def prepare(
        self,
        kind: int,
        x: Sequence[ctypes.c_void_p],
        y: Sequence[ctypes.c_void_p],
        shapes: Sequence[Sequence[int]],
        dtype: str,
        op: int = SUM,
        root: int = 0,
    ) -> Callable[[], None]:
        """Returns a function that runs one collective from `x` to `y`, and returns when the result is there.

        A compiled program also makes the arguments only once. `x` and `y` may be the same memory.
        """
        text = _encode(kind, f"{kind} {op} {dtype} {shapes}", DTYPES[dtype], op, root, shapes)
        length, stream, run = ctypes.c_size_t(len(text)), self._device.stream, ctypes.c_int32()
        to, of = (ctypes.c_void_p * len(y))(*y), (ctypes.c_void_p * len(x))(*x)
        reference, start, finish = ctypes.byref(run), self._native.tfddl_start, self._native.tfddl_finish

        def call() -> None:
            run.value = next(self._runs)
            self._check(start(text, length, of, to, self._gpu, stream, reference))
            self._check(finish(text, length, to, self._gpu, stream, run))
            self._device.wait()

        return call

    def close(self) -> None:
        """Leaves the job."""
        self._check(self._native.tfddl_shutdown(ctypes.c_double(30)) == 0)

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(self._native.tfddl_last_error().decode())


def _encode(kind: int, name: str, dtype: int, op: int, root: int, shapes: Sequence[Sequence[int]]) -> bytes:
    """A call as text, field by field as custom_ops/core/compiled/call.cc reads it."""

    def number(*values: int) -> bytes:
        return struct.pack(f"={len(values)}q", *values)

    def string(text: str) -> bytes:
        return number(len(text)) + text.encode()

    fields = [string(""), number(0), string(name), number(kind, dtype, op), string("1.0"), string("1.0")]
    fields += [string(""), number(0, 1, root), string("equal"), number(len(shapes))]
    fields += [number(len(shape), *shape) for shape in shapes]
    return b"".join([*fields, number(RANK, SIZE)]).hex().encode()


def values(rank: int, shape: Sequence[int], dtype: str) -> np.ndarray:
    """The input of a rank: numbers from 1 to 4, so that products of few ranks fit 8 bits."""
    return (1 + (np.arange(np.prod(shape)) + 3 * rank) % 4).reshape(shape).astype(dtype)


def check_reductions(engine: Engine, device: direct.Direct) -> None:
    """Checks reductions of two tensors at once, with the result in the memory of the input."""
    reductions = {SUM: np.add, MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply, AVERAGE: np.add}
    shapes = [(1001,), (3, 5)]
    for op, dtype in itertools.product(reductions, REDUCED):
        if op == AVERAGE and not dtype.startswith("float"):
            continue
        memory = [device.copy(values(RANK, shape, dtype)) for shape in shapes]
        engine.prepare(ALLREDUCE, memory, memory, shapes, dtype, op)()
        for each, shape in zip(memory, shapes, strict=True):
            every = [values(rank, shape, dtype) for rank in range(SIZE)]
            expected = reductions[op].reduce(every, dtype=dtype)
            if op == AVERAGE:
                expected = (expected / SIZE).astype(dtype)
            got = device.read(each, expected.size, dtype).reshape(shape)
            np.testing.assert_allclose(got, expected, 1e-3 if op == AVERAGE and dtype == "float16" else 1e-6)
        device.free(*memory)


def check_moves(engine: Engine, device: direct.Direct) -> None:
    """Checks the other collectives, with every dtype."""
    for dtype in DTYPES:
        every = [values(rank, (2 * SIZE, 5), dtype) for rank in range(SIZE)]
        x = device.copy(every[RANK])
        expected = {
            ALLGATHER: np.concatenate(every),
            ALLTOALL: np.concatenate([each[2 * RANK : 2 * RANK + 2] for each in every]),
        }
        if dtype in REDUCED:
            expected[REDUCESCATTER] = np.add.reduce(every, dtype=dtype)[2 * RANK : 2 * RANK + 2]
        for kind, result in expected.items():
            y = device.copy(np.zeros_like(result))
            engine.prepare(kind, [x], [y], [every[0].shape], dtype)()
            np.testing.assert_array_equal(device.read(y, result.size, dtype).reshape(result.shape), result)
            device.free(y)
        engine.prepare(BROADCAST, [x], [x], [every[0].shape], dtype, root=SIZE - 1)()
        np.testing.assert_array_equal(device.read(x, every[0].size, dtype), every[-1].ravel())
        device.free(x)


def row(engine: Engine, device: direct.Direct, size: int, rounds: int) -> tuple[str, int]:
    """Measures one line of the table. Returns the line, and the number of wrong elements."""
    count = size // 4
    mine, expected = (
        values(RANK, (count,), "float32"),
        sum(values(rank, (count,), "float32") for rank in range(SIZE)),
    )
    source, x, y = (device.copy(mine) for _ in range(3))

    in_place = engine.prepare(ALLREDUCE, [x], [x], [(count,)], "float32")

    def wrong() -> int:
        """Counts the wrong elements of one more call, on fresh values."""
        device.move(x, source, size)
        in_place()
        return count_wrong(device.read(x, count), expected)

    def direct_wrong() -> int:
        device.move(y, source, size)
        device.allreduce(y, y, count)
        return count_wrong(device.read(y, count), expected)

    ways = {
        "tfddl": Way(in_place, wrong),
        "direct": Way(
            lambda: device.allreduce(y, y, count),
            direct_wrong,
        ),
    }
    timings = measure(ways, rounds=rounds, calls=max(3, min(200, (256 << 20) // size)))
    device.free(source, x, y)
    tfddl, nccl = timings["tfddl"], timings["direct"]
    over, wrong_ones = tfddl.median - nccl.median, tfddl.wrong + nccl.wrong
    return f"{size:>12,}{tfddl.median:>12.1f}{nccl.median:>12.1f}{over:>12.1f}{wrong_ones:>8}", wrong_ones


def main() -> None:
    """Checks all collectives, then times an allreduce."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=15, help="blocks of calls for each way; ways take turns"
    )
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes of the largest tensor")
    parser.add_argument(
        "--library", type=Path, help="the native library; compiled without TensorFlow unless given"
    )
    parser.add_argument("--gpus", type=int, default=1, help="of this machine, which its ranks take in turn")
    arguments = parser.parse_args()
    gpu = RANK % arguments.gpus
    with tempfile.TemporaryDirectory() as directory:
        path = arguments.library or compile_library(None, find_mpi(), Path(directory))
        device = direct.Direct(gpu)
        engine = Engine(path, gpu, device)
    check_reductions(engine, device)
    check_moves(engine, device)
    print(f"rank {RANK}: every collective and dtype is right", flush=True)
    if RANK == 0:
        print(f"{'bytes':>12}{'tfddl us':>12}{'direct us':>12}{'over us':>12}{'#wrong':>8}")
    for size in (size for size in SIZES if size <= arguments.largest):
        line, wrong_ones = row(engine, device, size, arguments.rounds)
        if RANK == 0:
            print(line, flush=True)
        if wrong_ones:
            raise SystemExit(f"rank {RANK}: {wrong_ones} elements of the sums of {size} bytes were wrong")
    engine.close()
    device.close()


if __name__ == "__main__":
    main()
