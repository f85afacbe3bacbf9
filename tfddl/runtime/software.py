"""Compares the software of the ranks: ranks with different versions would hang, or compute something else."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from tfddl.build import discover
from tfddl.runtime import agreement, library


def check_equal(world: Any) -> None:
    """Checks that all ranks run the same software. All ranks call it.

    Args:
        world: mpi4py communicator of all ranks.

    Raises:
        ValueError: On all ranks, if the versions or the sources of tfddl, its native library, TensorFlow or Keras differ.
            The message shows the versions that differ, by rank.
    """
    versions = dict(enumerate(world.allgather(_versions())))
    agreement.check_equal(
        agreement.differences(versions),
        "All ranks have to run the same software: install the same versions on all hosts.",
    )


def _versions() -> list[str]:
    import tfddl

    return [
        f"tfddl {tfddl.__version__}",
        f"Python sources {_hash_of_sources()}",
        f"native library {library.native().tfddl_build_info().decode()}",
        f"TensorFlow {discover.tensorflow_version()}",
        f"Keras {discover.keras_version()}",
    ]


@functools.cache
def _hash_of_sources() -> str:
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
