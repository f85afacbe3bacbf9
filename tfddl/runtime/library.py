"""Loads the native library once, into TensorFlow and into ctypes."""

from __future__ import annotations

import ctypes
import functools
from types import ModuleType


@functools.cache
def _load() -> tuple[ModuleType, ctypes.CDLL]:
    # Its libmpi has to be the one that mpi4py has loaded, or the job would run on two MPIs.
    import tensorflow as tf
    from mpi4py import MPI  # noqa: F401

    from tfddl.build.locate import locate_library

    path = str(locate_library())
    module = tf.load_op_library(path)
    native = ctypes.CDLL(path)
    for name in ("build_info", "last_error", "failure", "stats", "flight_log"):
        getattr(native, f"tfddl_{name}").restype = ctypes.c_char_p
    native.tfddl_init.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_double]
    native.tfddl_init_begins.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_double,
        ctypes.c_double,
    ]
    native.tfddl_shutdown.argtypes = [ctypes.c_double]
    return module, native


def ops() -> ModuleType:
    """The generated Python functions of the TensorFlow ops."""
    return _load()[0]


def native() -> ctypes.CDLL:
    """The C ABI of the engine (custom_ops/core/c_api.h). Calls release the GIL."""
    return _load()[1]
