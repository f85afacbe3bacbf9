"""Compares what the ranks run: different versions would hang, or compute something else, without a word."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from tfddl.build import discover
from tfddl.runtime import library


def check_equal(world: Any) -> None:
    """Raises on all ranks when they do not all run the same software.

    Args:
        world: mpi4py communicator of all ranks.

    Raises:
        ValueError: The versions or the sources of tfddl, its native library, TensorFlow or Keras differ. The
            message lists what differs, by rank.
    """
    ranks = world.allgather(_mine())
    differing = [name for name in ranks[0] if any(rank[name] != ranks[0][name] for rank in ranks)]
    if not differing:
        return
    groups: dict[str, list[str]] = {}
    for number, rank in enumerate(ranks):
        groups.setdefault(", ".join(f"{name} {rank[name]}" for name in differing), []).append(str(number))
    received = "; ".join(
        f"{'rank' if len(members) == 1 else 'ranks'} {', '.join(members)}: {software}"
        for software, members in groups.items()
    )
    raise ValueError(
        f"All ranks have to run the same software; install it alike on all hosts. Received: {received}"
    )


def _mine() -> dict[str, str]:
    import tfddl

    return {
        "tfddl": tfddl.__version__,
        "Python sources": _hash_of_sources(),
        "native library": library.native().tfddl_build_info().decode(),
        "TensorFlow": str(discover.tensorflow_version()),
        "Keras": str(discover.keras_version()),
    }


@functools.cache
def _hash_of_sources() -> str:
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
