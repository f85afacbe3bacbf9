"""Loads the library with the XLA kernels, which run collectives inside `jit_compile=True`."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading

from tfddl import _compat, _graphs
from tfddl._environment import switched_on
from tfddl.runtime import basics, library, processors
from tfddl.runtime.job import process

VARIABLE = "TFDDL_XLA"

_lock = threading.Lock()
_FUNCTIONS = ("call", "start", "finish", "rank_query", "last_error")


class _EngineFunctions(ctypes.Structure):
    """Functions of the main library that the kernels call (custom_ops/xla/api.h)."""

    _fields_ = [(name, ctypes.c_void_p) for name in _FUNCTIONS]


def xla_built() -> bool:
    """Whether collectives run inside functions that XLA compiles (`jit_compile=True`).

    The first call loads the library with the XLA kernels. If there is none yet, it compiles the library, which takes a few
    minutes. Everything else works without it.
    """
    return why_not() is None


def why_not() -> str | None:
    """Loads the XLA kernels. Returns None, or the reason why there are none; a failure is printed once on stderr."""
    with _lock:  # two threads may trace at the same time
        return _outcome()


@functools.cache
def _outcome() -> str | None:
    if not switched_on(VARIABLE):
        return f"{VARIABLE}=0"
    try:
        has_gpus = _load()
    except (OSError, RuntimeError, ImportError) as error:
        print(
            f"tfddl: jit_compile=True is not available: {str(error).rstrip('.')}. To silence this line, set "
            "TFDDL_XLA=0",
            file=sys.stderr,
            flush=True,
        )
        return "they could not be compiled or loaded"
    if _compat.sees_gpus() and not has_gpus:
        return "those for GPUs need TensorFlow 2.21 or later"
    _warn_about_threads()
    _warn_about_processors()
    return None


def _warn_about_threads() -> None:
    """A collective in a compiled program keeps a thread. If this is the only thread, all other programs wait."""
    import tensorflow as tf

    threads = tf.config.threading.get_inter_op_parallelism_threads() or int(
        os.environ.get("TF_NUM_INTEROP_THREADS") or len(os.sched_getaffinity(0))
    )
    if threads == 1 and basics.is_initialized() and basics.size() > 1 and basics.rank() == 0:
        print(
            "tfddl: a collective inside jit_compile=True keeps one of TensorFlow's inter-op threads, of which there is one. "
            "Programs that run at the same time need one each, or they wait for each other for ever: call "
            "tf.config.threading.set_inter_op_parallelism_threads(2).",
            file=sys.stderr,
            flush=True,
        )


def _warn_about_processors() -> None:
    job = process.job
    if job is None or job.rank != 0 or _compat.sees_gpus():
        return
    text = processors.about_xla(job)
    if text:
        print(f"tfddl: {text}", file=sys.stderr, flush=True)


def require(kind: str) -> None:
    """Refuses a collective that is traced for XLA without XLA kernels; see `require_kernels`."""
    if _graphs.in_xla_context():
        require_kernels(kind)


def require_kernels(kind: str) -> None:
    """Loads the XLA kernels.

    Args:
        kind: The name of the collective, for the message.

    Raises:
        ValueError: There are no XLA kernels.
    """
    if not xla_built():
        raise ValueError(
            f"tfddl's {kind} cannot run inside a function compiled by XLA without XLA kernels ({why_not()}): use "
            "jit_compile=False for the function, or `model.compile(..., jit_compile=False)`. Received: "
            "jit_compile=True"
        )


def _load() -> bool:
    """Loads the kernels. Returns whether they include kernels for GPUs."""
    from tfddl.build.locate import locate_xla_library

    native = library.native()
    path = str(locate_xla_library())
    import tensorflow as tf

    # Registers the kernels. TensorFlow raises its own kinds of errors.
    try:
        with library.loading(path):
            tf.load_library(path)
    except (tf.errors.OpError, NotImplementedError) as error:
        raise RuntimeError(str(error)) from None
    kernels = ctypes.CDLL(path)
    attach = kernels.tfddl_xla_attach
    attach.argtypes, attach.restype = [_EngineFunctions], ctypes.c_char_p
    addresses = (ctypes.cast(getattr(native, f"tfddl_{name}"), ctypes.c_void_p) for name in _FUNCTIONS)
    reason = attach(_EngineFunctions(*addresses))
    if reason:
        raise RuntimeError(reason.decode())
    return bool(kernels.tfddl_xla_has_gpus())
