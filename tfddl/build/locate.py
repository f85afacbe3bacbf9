"""Finds the native library that fits the running Python process: packaged, cached, or compiled now."""

from __future__ import annotations

from pathlib import Path

from tfddl.build import discover
from tfddl.build.cache import cache_directory, cached_or_built, locked
from tfddl.build.compile import CompileError, compile_library
from tfddl.build.sources import in_checkout, library_stem, source_directory, target_name
from tfddl.build.support import check_keras, check_platform, check_tensorflow

PACKAGED = Path(__file__).resolve().parent.parent / "binaries"


def check_environment() -> str:
    """Refuses what tfddl does not support, without importing TensorFlow.

    Returns:
        String, the version of the installed TensorFlow.

    Raises:
        UnsupportedError: this Python, platform, TensorFlow or Keras is not supported, or there is no TensorFlow.
    """
    check_platform()
    version = check_tensorflow(discover.tensorflow_version())
    check_keras(discover.keras_version())
    return version


def locate_library() -> Path:
    """Finds or makes the library for this process's TensorFlow, the MPI that mpi4py uses, and this platform.

    The one inside the package if it fits, else the one in the user's cache, else it is compiled into the
    cache, which takes about a minute and says so on stderr. Processes that ask at the same time compile once.

    Returns:
        Path of the library.

    Raises:
        UnsupportedError: this Python, platform, TensorFlow or Keras is not supported.
        DiscoveryError: mpi4py, MPI or its header is missing.
        CompileError: there is no library that fits, and it could not be compiled.
    """
    version = check_environment()
    mpi = discover.find_mpi()
    name = f"lib{library_stem(version, mpi.tag)}.so"
    packaged = PACKAGED / name
    if packaged.is_file():
        return packaged
    announcement = (
        f"tfddl: compiling its native library for TensorFlow {version} and {mpi.name} "
        "(once; it takes about a minute)..."
    )
    try:
        return cached_or_built(cache_directory() / name, lambda: _build(version, mpi), announcement)
    except CompileError as error:
        raise CompileError(f"{error}{_packaged_hint()}") from None


def _build(version: str, mpi: discover.Mpi) -> Path:
    tensorflow = discover.find_tensorflow()
    if not in_checkout():
        return compile_library(tensorflow, mpi, cache_directory())
    # A developer's next build compiles only what changed. Its directory serves many versions of the sources,
    # so it has a lock of its own.
    build_dir = source_directory().parent / "build" / target_name(version, mpi.tag)
    build_dir.mkdir(parents=True, exist_ok=True)
    with locked(build_dir / "lock"):
        return compile_library(tensorflow, mpi, cache_directory(), build_dir)


def _packaged_hint() -> str:
    targets = [path.name.removeprefix("libtfddl-").rsplit("-", 1)[0] for path in PACKAGED.glob("*.so")]
    return f" The installed package holds a library for {', '.join(targets)} only." if targets else ""
