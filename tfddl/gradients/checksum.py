"""Checksums of weights that have to be equal on all ranks, and the list of names in a warning."""

import zlib
from collections.abc import Sequence

import numpy as np

_SHOWN = 3


def checksum(values: np.ndarray) -> int:
    """A number that is the same for the same bits."""
    return zlib.crc32(np.ascontiguousarray(values).tobytes())


def listed(names: Sequence[str]) -> str:
    """The first few of the names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
