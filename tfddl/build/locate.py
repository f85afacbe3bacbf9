"""Finds the native library that fits the running process: packaged, cached, or compiled now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tfddl.build import discover
from tfddl.build.cache import cache_directory, cached_or_built, failure, forget_failure, is_whole, locked
from tfddl.build.compile import CompileError, compile_library, compile_xla_library
from tfddl.build.packaged import find_packaged, find_packaged_xla, what_is_packaged
from tfddl.build.sources import in_checkout, library_stem, source_directory, target_name, xla_library_stem
from tfddl.build.support import check_keras, check_platform, check_tensorflow


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
    takes one to five minutes and prints lines on stderr. One process compiles at a time; others wait for it.

    Returns:
        Path of the library.

    Raises:
        UnsupportedError: this Python, platform, TensorFlow or Keras is not supported.
        DiscoveryError: mpi4py, MPI or its header is missing.
        CompileError: there is no library that fits, and it could not be compiled.
    """
    version = check_environment()
    mpi = discover.find_mpi()
    stem = library_stem(version, mpi.tag)
    packaged = find_packaged(stem, version, mpi)
    if packaged:
        return packaged
    with _what_is_packaged():
        return cached_or_built(_cached(stem), lambda: _build(version, mpi))


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
    packaged = find_packaged_xla(stem, version)
    if packaged:
        return packaged
    with _what_is_packaged():
        if again:
            forget_failure(_cached(stem))
        return cached_or_built(_cached(stem), lambda: _build_xla(version), once=True)


def find_library() -> Path | None:
    """The library that `locate_library` would take; None if it would have to be compiled.

    Raises:
        UnsupportedError: see `locate_library`.
        DiscoveryError: see `locate_library`.
    """
    version, mpi = check_environment(), discover.find_mpi()
    stem = library_stem(version, mpi.tag)
    return find_packaged(stem, version, mpi) or _in_cache(stem)


def lock_in_cache() -> Path:
    """The file that `locate_library` locks before it compiles.

    Raises:
        UnsupportedError: see `locate_library`.
        DiscoveryError: see `locate_library`.
        CompileError: there is no directory for the cache.
    """
    return _cached(library_stem(check_environment(), discover.find_mpi().tag)).with_suffix(".lock")


def find_xla_library() -> Path | None:
    """The library that `locate_xla_library` would take; None if it would have to be compiled.

    Raises:
        UnsupportedError: see `locate_library`.
    """
    version = check_environment()
    stem = xla_library_stem(version)
    return find_packaged_xla(stem, version) or _in_cache(stem)


def xla_failure() -> str:
    """Why `locate_xla_library` does not compile before `tfddl build`; empty if it would.

    Raises:
        UnsupportedError: see `locate_library`.
    """
    try:
        return failure(_cached(xla_library_stem(check_environment())))
    except (CompileError, OSError):  # no cache, or one of another user
        return ""


def _cached(stem: str) -> Path:
    return cache_directory() / f"lib{stem}.so"


def _in_cache(stem: str) -> Path | None:
    try:
        path = _cached(stem)
    except CompileError:  # no cache
        return None
    return path if is_whole(path) else None


def _build(version: str, mpi: discover.Mpi) -> Path:
    tensorflow = discover.find_tensorflow()
    with _build_directory(target_name(version, mpi.tag)) as build_dir:
        return compile_library(tensorflow, mpi, cache_directory(), build_dir)


def _build_xla(version: str) -> Path:
    tensorflow = discover.find_tensorflow()
    if tensorflow is None:
        raise discover.DiscoveryError(
            "tfddl's XLA kernels need TensorFlow, which is not installed here: pip install tensorflow-cpu, or for "
            "GPUs 'tensorflow[and-cuda]'."
        )
    with _build_directory(f"xla-{target_name(version, None)}") as build_dir:
        return compile_xla_library(tensorflow, cache_directory(), build_dir)


@contextlib.contextmanager
def _build_directory(name: str) -> Iterator[Path | None]:
    """A directory of the checkout, where the next build compiles only changed files.

    None in an installed package, and in a checkout that this user cannot write.

    All versions of the sources share the directory, so it has its own lock.
    """
    if not in_checkout():
        yield None
        return
    directory = source_directory().parent / "build" / name
    with contextlib.ExitStack() as held:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(directory / "lock"))
            found: Path | None = directory
        except OSError:
            found = None
        yield found


@contextlib.contextmanager
def _what_is_packaged() -> Iterator[None]:
    """Adds to an error which TensorFlows and MPIs would need no compiler."""
    try:
        yield
    except CompileError as error:
        raise type(error)(" ".join(filter(None, (str(error), what_is_packaged())))) from None
