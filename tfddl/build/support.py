"""The versions that tfddl supports, and the errors and warnings about other versions."""

from __future__ import annotations

import os
import platform
import re
import sys

PYTHON = ((3, 11), (3, 13))
MACHINES = ("x86_64", "aarch64")
TENSORFLOW = ((2, 15), (2, 21))
"""Oldest and newest tested version. A newer version works with a warning. The same holds for KERAS (Keras 3)."""
KERAS = ((3, 4), (3, 15))
XLA_MAX_ISA = (2, 19)
"""Oldest TensorFlow whose XLA knows `--xla_cpu_max_isa`. An older one ends the process for an unknown flag."""


class UnsupportedError(ImportError):
    """tfddl does not support this Python, platform, TensorFlow, Keras or MPI."""


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
        raise UnsupportedError(
            f"tfddl cannot read a version that is not numbers: install a released version. Received: {version!r}"
        )
    return int(match[1]), int(match[2])


def check_platform() -> None:
    """Checks Python and platform.

    Raises:
        UnsupportedError: not CPython 3.11-3.13, or not Linux with glibc on x86_64 or aarch64.
    """
    implementation = platform.python_implementation()
    if implementation != "CPython" or not PYTHON[0] <= sys.version_info[:2] <= PYTHON[1]:
        raise UnsupportedError(
            f"tfddl needs CPython {_span(PYTHON)}: make an environment with one of these. "
            f"Received: {implementation} {platform.python_version()}"
        )
    system, machine = platform.system(), platform.machine()
    libc = platform.libc_ver()[0]
    if (system, libc) != ("Linux", "glibc") or machine not in MACHINES:
        raise UnsupportedError(
            f"tfddl runs on Linux with glibc on {' and '.join(MACHINES)} only: use such a host, or a container with it "
            "(docs/launch.md). "
            f"Received: {system} on {machine}, C library {libc or 'unknown'!r}"
        )


def check_tensorflow(version: str | None) -> str:
    """Checks that TensorFlow is installed, and not too old.

    Args:
        version: string, or None if no TensorFlow is installed.

    Returns:
        `version`.

    Raises:
        UnsupportedError: TensorFlow is missing or too old.
    """
    low, high = TENSORFLOW
    wanted = f"'tensorflow-cpu>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}'"
    if version is None:
        raise UnsupportedError(
            f"tfddl needs TensorFlow, which is not installed here: pip install {wanted}, or for GPUs "
            f"{wanted.replace('-cpu', '[and-cuda]')}."
        )
    if major_minor(version) < low:
        raise UnsupportedError(
            f"tfddl needs TensorFlow {_span(TENSORFLOW)}: pip install {wanted}. "
            f"Received: TensorFlow {version}"
        )
    return version


def check_keras(version: str | None, tensorflow: str) -> None:
    """Checks that Keras 3 is not too old. Keras 2, of TensorFlow 2.15 or as tf_keras, passes.

    Args:
        version: string, or None if no Keras is installed (the ops work without it).
        tensorflow: string, the version of TensorFlow, which tells whether Keras 2 is used.

    Raises:
        UnsupportedError: Keras 3 is older than 3.4.
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
    """The warning about a TensorFlow or Keras that is newer than the tested versions.

    Args:
        tensorflow: string, the version of TensorFlow.
        keras: string, the version of Keras, or None if there is none.

    Returns:
        String, or None if both versions are tested.
    """
    newer = [
        f"{name} {version} (tested up to {newest[0]}.{newest[1]})"
        for name, version, newest in (("TensorFlow", tensorflow, TENSORFLOW[1]), ("Keras", keras, KERAS[1]))
        if version is not None and major_minor(version) > newest
    ]
    return f"not tested with {' and '.join(newer)}" if newer else None


def _span(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(f"{major}.{minor}" for major, minor in versions)
