"""What tfddl supports, and the one sentence that says so to everybody else."""

from __future__ import annotations

import os
import platform
import re
import sys

PYTHON = ((3, 11), (3, 13))
TENSORFLOW = ((2, 15), (2, 21))
"""Oldest and newest that the tests run on; a newer one works with a warning. So with Keras 3."""
KERAS = ((3, 4), (3, 15))


class UnsupportedError(ImportError):
    """This Python, platform, TensorFlow, Keras or MPI is not one that tfddl supports."""


def major_minor(version: str) -> tuple[int, int]:
    """Reads the first two numbers of a version.

    Args:
        version: string, such as `"2.21.0"` or `"2.22.0-rc1"`.

    Returns:
        Tuple `(major, minor)` of ints.

    Raises:
        UnsupportedError: `version` does not start with two numbers.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise UnsupportedError(f"tfddl cannot read a version that is not numbers. Received: {version!r}")
    return int(match[1]), int(match[2])


def check_platform() -> None:
    """Refuses a Python or a platform that tfddl does not support.

    Raises:
        UnsupportedError: not CPython 3.11-3.13, or not Linux with glibc on x86_64.
    """
    implementation = platform.python_implementation()
    if implementation != "CPython" or not PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]:
        raise UnsupportedError(
            f"tfddl needs CPython {_span(PYTHON)}. Received: {implementation} {platform.python_version()}"
        )
    system, machine = platform.system(), platform.machine()
    libc = platform.libc_ver()[0]
    if (system, machine, libc) != ("Linux", "x86_64", "glibc"):
        raise UnsupportedError(
            "tfddl runs on Linux with glibc on x86_64 only. "
            f"Received: {system} on {machine}, C library {libc or 'unknown'!r}"
        )


def check_tensorflow(version: str | None) -> str:
    """Refuses a TensorFlow that is too old for tfddl.

    Args:
        version: string, or None where no TensorFlow is installed.

    Returns:
        `version`.

    Raises:
        UnsupportedError: there is none, or it is older than the supported versions.
    """
    low, high = TENSORFLOW
    wanted = f"'tensorflow-cpu>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}'"
    if version is None:
        raise UnsupportedError(
            "tfddl needs TensorFlow, which is not installed here: pip install 'tfddl[cpu]' (or 'tfddl[gpu]')."
        )
    if major_minor(version) < low:
        raise UnsupportedError(
            f"tfddl needs TensorFlow {_span(TENSORFLOW)}: pip install {wanted}. "
            f"Received: TensorFlow {version}"
        )
    return version


def check_keras(version: str | None, tensorflow: str) -> None:
    """Refuses a Keras 3 that is too old for tfddl.

    Args:
        version: string, or None where no Keras is installed (the ops work without it).
        tensorflow: string, TensorFlow's version, on which Keras 2 depends.

    Raises:
        UnsupportedError: Keras is older than 3.4, and not the Keras 2 of TensorFlow 2.15 or replaced by tf_keras.
    """
    if version is not None and not uses_keras_2(tensorflow) and major_minor(version) < KERAS[0]:
        minimum = ".".join(map(str, KERAS[0]))
        raise UnsupportedError(
            f"tfddl needs Keras {minimum} or newer: pip install 'keras>={minimum}'. Received: Keras {version}"
        )


def uses_keras_2(tensorflow: str) -> bool:
    """Whether `tf.keras` is Keras 2: before TensorFlow 2.16, and with `TF_USE_LEGACY_KERAS=1` since."""
    return major_minor(tensorflow) < (2, 16) or os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def untested(tensorflow: str, keras: str | None) -> str | None:
    """What to tell the user of a TensorFlow or a Keras that is newer than any that the tests run on.

    Args:
        tensorflow: string, its version.
        keras: string, likewise, or None where there is none.

    Returns:
        String, or None where there is nothing to tell.
    """
    newer = [
        f"{name} {version} (tested up to {newest[0]}.{newest[1]})"
        for name, version, newest in (("TensorFlow", tensorflow, TENSORFLOW[1]), ("Keras", keras, KERAS[1]))
        if version is not None and major_minor(version) > newest
    ]
    return f"not tested with {' and '.join(newer)}" if newer else None


def _span(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(f"{major}.{minor}" for major, minor in versions)
