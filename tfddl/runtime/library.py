"""Loads the native library once, into TensorFlow and into ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tfddl.runtime.job import process

TCP_PARAMETERS = {"OMPI_MCA_btl_tcp_flags": "9", "OMPI_MCA_btl_tcp_max_send_size": "300000"}
"""Parameters of Open MPI for messages between hosts over TCP: as sends (1) from where the data lies (8), and a piece of a
collective (256 KiB) in one. By default Open MPI announces each as a put, and waits for an answer that comes behind the data
of the other direction: an exchange of 8 MB in both directions took 1.7 times as long as the cable needs, and now 1.03."""


@functools.cache
def _load() -> tuple[ModuleType, ctypes.CDLL]:
    from tfddl.build.locate import check_environment, locate_library

    check_environment()
    import tensorflow as tf

    mpi()  # loads libmpi first: with another libmpi than mpi4py's the job would run on two MPIs
    path = str(locate_library())
    with loading(path):
        module = tf.load_op_library(path)
    native = ctypes.CDLL(path)
    texts = (
        "build_info",
        "last_error",
        "failure",
        "stats",
        "gather",
        "set_in_flight",
        "record_write",
    )
    for name in texts:
        getattr(native, f"tfddl_{name}").restype = ctypes.c_char_p
    native.tfddl_init.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_double]
    native.tfddl_add_set.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    native.tfddl_remove_set.argtypes = [ctypes.c_int, ctypes.c_double]
    # The name of the presence; rank, size and local size; the seconds to a warning and to the end.
    wait: list[Any] = [ctypes.c_char_p, *[ctypes.c_int] * 3, *[ctypes.c_double] * 2]
    native.tfddl_wait_begins.argtypes = [ctypes.c_char_p, *wait]
    native.tfddl_exit_begins.argtypes = [*wait, ctypes.c_double]
    native.tfddl_shutdown.argtypes = [ctypes.c_double]
    native.tfddl_bound_finalize.argtypes = [ctypes.c_double]
    native.tfddl_set_nccl_wheel.argtypes = [ctypes.c_char_p]
    native.tfddl_set_nccl_wheel((nccl_wheel() or "").encode())
    if process.finalizes_mpi:
        native.tfddl_finalize_mpi_at_exit()
    return module, native


@contextlib.contextmanager
def loading(path: str) -> Iterator[None]:
    """Names the cause where a library cannot be loaded because its file system is mounted noexec.

    Args:
        path: That of the library which is loaded inside.

    Raises:
        RuntimeError: The file system is mounted noexec.
    """
    from tfddl.build.cache import is_noexec

    try:
        yield
    except Exception as error:  # TensorFlow has several kinds
        directory = Path(path).parent
        if not is_noexec(directory):
            raise
        raise RuntimeError(
            f"tfddl cannot load its native library from {directory}, whose file system is mounted noexec; set "
            f"TFDDL_CACHE_DIR to a directory of a file system without noexec. Received: {error}"
        ) from None


def nccl_wheel() -> str | None:
    """The path of NCCL's library in the Python package nvidia-nccl-cu12, or None without the package."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # no package `nvidia` at all
        return None
    for directory in (package and package.submodule_search_locations) or ():
        library = Path(directory) / "lib" / "libnccl.so.2"
        if library.is_file():
            return str(library)
    return None


def nccl_path() -> str:
    """NCCL as collectives open it: `TFDDL_NCCL_LIBRARY`, else of the package nvidia-nccl-cu12, else of the system."""
    return os.environ.get("TFDDL_NCCL_LIBRARY") or nccl_wheel() or "libnccl.so.2"


def mpi() -> Any:
    """Loads and returns `mpi4py.MPI`, and takes over what it does when it is loaded and when Python ends.

    `init()` initializes MPI, since this waits for the other ranks. The native library finalizes MPI, since it knows the
    exit code of the program then.

    Raises:
        RuntimeError: mpi4py or MPI is not installed.
    """
    from tfddl.build.discover import DiscoveryError, no_mpi

    try:
        if "mpi4py.MPI" not in sys.modules:
            import mpi4py

            if mpi4py.rc.initialize:
                process.finalizes_mpi = mpi4py.rc.finalize is not False
                mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DiscoveryError(no_mpi(error)) from None
    return MPI


def set_home() -> None:
    """Sets HOME where it is missing, as in some containers and services: Open MPI does not start without it."""
    if "HOME" not in os.environ:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = ""
        os.environ["HOME"] = home or "/"


def initialize_mpi() -> None:
    """Initializes MPI where nobody has, which waits for the other ranks. MPI is finalized at the end of the process."""
    MPI = mpi()
    if not MPI.Is_initialized():
        for name, value in TCP_PARAMETERS.items():
            os.environ.setdefault(name, value)
        set_home()
        MPI.Init_thread()
        # Once more: only a handler that is made after MPI_Init runs before that of MPICH.
        if process.finalizes_mpi or sys.modules["mpi4py"].rc.finalize is not False:
            native().tfddl_finalize_mpi_at_exit()


def ops() -> ModuleType:
    """The generated Python functions of the TensorFlow ops."""
    return _load()[0]


def note(process_set: int, name: str, text: str) -> None:
    """Leaves a note beside a collective, for the message of the watchdog if the other ranks wait for other ones.

    Args:
        process_set: The number of the process set.
        name: That of the collective.
        text: The note.
    """
    native().tfddl_note(process_set, name.encode(), text.encode())


def native() -> ctypes.CDLL:
    """The C ABI of the engine (custom_ops/api/c_api.h). Calls release the GIL."""
    return _load()[1]
