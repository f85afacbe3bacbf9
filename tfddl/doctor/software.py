"""Probes of the installed software: Python, TensorFlow, Keras, the native library, the compiler."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tfddl._environment import switched_on
from tfddl.build import discover, locate, support
from tfddl.build.cache import LEAST_MB, cache_directory, is_noexec
from tfddl.build.compile import CompileError, find_cmake, find_compiler
from tfddl.doctor.finding import Finding, fault, note, ok
from tfddl.doctor.gpu import device_files

_MB = 1 << 20
_CACHE = "export TFDDL_CACHE_DIR=/tmp/tfddl-cache"
_OTHER_DISK = "export TFDDL_CACHE_DIR=/path/on/another/file/system"


def python() -> Iterator[Finding]:
    """The version of Python and of the platform."""
    version = f"{sys.version.split()[0]} ({sys.executable})"
    try:
        support.check_platform()
    except support.UnsupportedError as error:
        yield fault("Python", str(error), "python3.12 -m venv venv, on Linux x86_64, and install tfddl there")
    else:
        yield ok("Python", version)
    first = shutil.which("python")
    if first is None or not os.path.samefile(os.path.dirname(first), os.path.dirname(sys.executable)):
        found = f"{first}, another one" if first else "none"
        yield note(
            "python on PATH", found, f"name this one in commands: tfddlrun -np 2 {sys.executable} train.py"
        )


def tensorflow() -> Iterator[Finding]:
    """The version of TensorFlow, and whether it can be imported."""
    version = discover.tensorflow_version()
    try:
        support.check_tensorflow(version)
    except support.UnsupportedError as error:
        yield fault("TensorFlow", str(error), "pip install 'tensorflow-cpu>=2.16,<2.22'")
        return
    try:
        import tensorflow as tf
    except Exception as error:
        yield fault(
            "TensorFlow",
            f"{version} is installed, and cannot be imported. {type(error).__name__}: {_first_line(error)}",
            f"pip install --force-reinstall tensorflow-cpu=={version}",
        )
        return
    packages = discover.tensorflow_packages()
    if "tensorflow" in packages and "tensorflow-cpu" in packages:
        keep, drop = "tensorflow-cpu", "tensorflow"
        if device_files():
            keep, drop = drop, keep
        yield note(
            "TensorFlow",
            f"tensorflow {packages['tensorflow']} and tensorflow-cpu {packages['tensorflow-cpu']} are both installed, in "
            "one directory: the last one replaced files of the other. `pip install tf_keras` without --no-deps does that",
            f"pip uninstall {drop} && pip install --force-reinstall --no-deps {keep}=={packages[keep]}",
        )
    text = support.untested(version or "", None)
    yield note("TensorFlow", f"{tf.__version__}, {text}") if text else ok("TensorFlow", tf.__version__)


def keras() -> Iterator[Finding]:
    """The version of Keras, and its backend."""
    tensorflow_version, version = discover.tensorflow_version(), discover.keras_version()
    if tensorflow_version is None:
        return
    if version is None:
        yield note(
            "Keras", "none: the collectives and the tape work, fit does not", "pip install 'keras>=3.4,<4'"
        )
        return
    from tfddl import _compat

    try:
        package = _compat.keras()
    except ImportError as error:
        yield fault("Keras", str(error), _cure_of_keras(str(error)))
        return
    except Exception as error:
        yield fault(
            "Keras",
            f"{version} is installed, and cannot be imported. {type(error).__name__}: {_first_line(error)}",
            f"pip install --force-reinstall keras=={version}",
        )
        return
    untested = support.untested("0.0", package.__version__)
    text = f"{package.__version__} ({package.__name__})"
    yield note("Keras", f"{text}, {untested}") if untested else ok("Keras", text)


def library() -> Iterator[Finding]:
    """The native library: found, compiled, loaded."""
    try:
        found = locate.find_library()
    except (support.UnsupportedError, discover.DiscoveryError):
        return  # other probes say why
    if found is None:
        text = "not compiled yet for this TensorFlow and MPI; the first use does it in a minute or two"
        yield note("native library", text, "tfddl build")
        return
    try:
        from tfddl.runtime import library as loaded

        loaded.native()
    except Exception as error:
        text = f"{found} cannot be loaded. {type(error).__name__}: {_first_line(error)}"
        noexec = is_noexec(found.parent)
        yield fault("native library", text, _OTHER_DISK if noexec else f"rm {found}, then tfddl build")
        return
    yield ok("native library", str(found))


def xla() -> Iterator[Finding]:
    """The kernels for jit_compile=True."""
    try:
        if not switched_on("TFDDL_XLA"):
            yield note("XLA kernels", "turned off by TFDDL_XLA=0", "unset TFDDL_XLA")
            return
    except ValueError as error:
        yield fault("XLA kernels", str(error), "unset TFDDL_XLA")
        return
    try:
        found, failure = locate.find_xla_library(), locate.xla_failure()
    except support.UnsupportedError:
        return
    if found is None:
        yield note(
            "XLA kernels", failure or "not compiled yet; the first jit_compile=True does it", "tfddl build"
        )
    else:
        yield ok("XLA kernels", str(found))


def compiler() -> Iterator[Finding]:
    """The programs that compile the library."""
    needed = _compiled() is None
    try:
        found = find_compiler()
    except CompileError as error:
        yield (fault if needed else note)("C++ compiler", str(error), "unset CXX")
        return
    for program, path, package in (
        ("C++ compiler", found, "apt install g++"),
        ("make", shutil.which("make"), "apt install make"),
        ("cmake", find_cmake(), "pip install cmake"),
    ):
        version = _version(path) if path else ""
        lacking = f"{path} does not run" if path else "none"
        if version:
            yield ok(program, version)
        elif needed:
            yield fault(program, f"{lacking}, and the native library is not compiled yet", package)
        else:
            yield note(program, f"{lacking}; the library is compiled already")


def cache() -> Iterator[Finding]:
    """The directory for compiled libraries."""
    found = _compiled()
    try:
        directory = cache_directory()
    except CompileError as error:
        yield (note if found else fault)("cache", str(error), _CACHE)
        return
    existing = next(path for path in (directory, *directory.parents) if os.path.exists(path))
    free = shutil.disk_usage(existing).free // _MB
    if is_noexec(existing) and (found is None or found.parent == directory):
        text = f"the file system of {directory} is mounted noexec, so no library in it can be loaded"
        yield fault("cache", text, _OTHER_DISK)
    elif not os.access(existing, os.W_OK | os.X_OK):
        if found:
            yield note("cache", f"{directory} cannot be written; it holds a library already")
        else:
            yield fault("cache", f"{directory} cannot be written", _CACHE)
    elif found is None and _is_locked():
        yield fault("cache", f"{directory} holds files of another user, which cannot be written", _CACHE)
    elif found is None and free < LEAST_MB:
        text = f"{directory} has {free} MB free, and the libraries need {LEAST_MB}"
        yield fault("cache", text, _OTHER_DISK)
    else:
        yield ok("cache", str(directory))


def _compiled() -> Path | None:
    """The native library, if it is there."""
    try:
        return locate.find_library()
    except (support.UnsupportedError, discover.DiscoveryError):
        return None


def _is_locked() -> bool:
    """Whether another user has begun to compile the library, and this user may not write that user's lock."""
    with contextlib.suppress(support.UnsupportedError, discover.DiscoveryError):
        lock = locate.lock_in_cache()
        return lock.exists() and not os.access(lock, os.W_OK)
    return False


def _cure_of_keras(text: str) -> str:
    if "KERAS_BACKEND" in text:
        return "export KERAS_BACKEND=tensorflow"
    if "tf_keras" in text:
        return text[text.index("pip install") :]
    return "pip install 'keras>=3.4,<4'"


def _version(program: str) -> str:
    """The first line that a program says of itself; empty if it does not run."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    said = (answer.stdout or answer.stderr).strip().splitlines()
    return f"{said[0]} ({program})" if said and answer.returncode == 0 else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
