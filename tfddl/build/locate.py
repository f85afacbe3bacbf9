"""Finds the native library that fits the running process: packaged, cached, or compiled now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tfddl.build import discover
from tfddl.build.cache import cache_directory, cached_or_built, forget_failure, is_whole, locked
from tfddl.build.compile import CompileError, compile_library, compile_xla_library
from tfddl.build.sources import in_checkout, library_stem, source_directory, target_name, xla_library_stem
from tfddl.build.support import check_keras, check_platform, check_tensorflow

PACKAGED = Path(__file__).resolve().parent.parent / "binaries"


def check_environment() -> str:
    """Checks that tfddl supports this environment, without importing TensorFlow.

    Returns:
        String, the version of the installed TensorFlow.

    Raises:
        UnsupportedError: this Python, platform, TensorFlow or Keras is not supported, or there is no TensorFlow.
    """
    check_platform()
    version = check_tensorflow(discover.tensorflow_version())
    check_keras(discover.keras_version(), version)
    return version


def locate_library() -> Path:
    """Finds or compiles the library for the TensorFlow and MPI of this process and this platform.

    Takes the library in the package if it fits, else the one in the user's cache. Else compiles it into the cache, which
    takes about a minute and prints a line on stderr. Of several processes at the same time only one compiles.

    Returns:
        Path of the library.

    Raises:
        UnsupportedError: this Python, platform, TensorFlow or Keras is not supported.
        DiscoveryError: mpi4py, MPI or its header is missing.
        CompileError: there is no library that fits, and it could not be compiled.
    """
    version = check_environment()
    mpi = discover.find_mpi()
    try:
        return _located(library_stem(version, mpi.tag), lambda: _build(version, mpi))
    except CompileError as error:
        raise CompileError(f"{error}{_packaged_hint()}") from None


def locate_xla_library(again: bool = False) -> Path:
    """Finds or compiles the library with the XLA kernels, as `locate_library` does with the main library.

    Only jit_compile=True needs it, so a failed build is remembered. Else each start would compile for minutes.

    Args:
        again: bool, whether to build again after a failure.

    Returns:
        Path of the library.

    Raises:
        UnsupportedError: this Python, platform, TensorFlow or Keras is not supported.
        DiscoveryError: TensorFlow lacks its headers.
        CompileError: there is no library that fits, and it could not be compiled.
    """
    version = check_environment()
    stem = xla_library_stem(version)
    if again:
        forget_failure(_cached(stem))
    return _located(stem, lambda: _build_xla(version), once=True)


def find_library() -> Path | None:
    """The library that `locate_library` would take; None if it would have to be compiled.

    Raises:
        UnsupportedError: see `locate_library`.
        DiscoveryError: see `locate_library`.
    """
    return _present(library_stem(check_environment(), discover.find_mpi().tag))


def find_xla_library() -> Path | None:
    """The library that `locate_xla_library` would take; None if it would have to be compiled.

    Raises:
        UnsupportedError: see `locate_library`.
    """
    return _present(xla_library_stem(check_environment()))


def _cached(stem: str) -> Path:
    return cache_directory() / f"lib{stem}.so"


def _present(stem: str) -> Path | None:
    candidates = (PACKAGED / f"lib{stem}.so", _cached(stem))
    return next((path for path in candidates if is_whole(path)), None)


def _located(stem: str, build: Callable[[], object], once: bool = False) -> Path:
    packaged = PACKAGED / f"lib{stem}.so"
    return packaged if is_whole(packaged) else cached_or_built(_cached(stem), build, once)


def _build(version: str, mpi: discover.Mpi) -> Path:
    tensorflow = discover.find_tensorflow()
    with _build_directory(target_name(version, mpi.tag)) as build_dir:
        return compile_library(tensorflow, mpi, cache_directory(), build_dir)


def _build_xla(version: str) -> Path:
    tensorflow = discover.find_tensorflow()
    if tensorflow is None:
        raise discover.DiscoveryError("tfddl's XLA kernels need TensorFlow, which is not installed here.")
    with _build_directory(f"xla-{target_name(version, None)}") as build_dir:
        return compile_xla_library(tensorflow, cache_directory(), build_dir)


@contextlib.contextmanager
def _build_directory(name: str) -> Iterator[Path | None]:
    """A directory of the checkout, where the next build compiles only changed files. None in an installed package.

    All versions of the sources share the directory, so it has its own lock.
    """
    if not in_checkout():
        yield None
        return
    directory = source_directory().parent / "build" / name
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock"):
        yield directory


def _packaged_hint() -> str:
    targets = [
        path.name.removeprefix("libtfddl-").rsplit("-", 1)[0] for path in PACKAGED.glob("libtfddl-*.so")
    ]
    return f" The installed package holds a library for {', '.join(targets)} only." if targets else ""
