"""Warnings to the user, from one rank."""

import functools
import logging
import sys
import warnings
from types import FrameType

from tfddl.runtime import basics
from tfddl.runtime.process_sets import ProcessSet, global_process_set, members

LIBRARIES = ("tfddl", "keras", "tensorflow")
"""Packages whose lines nobody is asked to change."""
_logger = logging.getLogger("tfddl")


def warn(message: str, process_set: ProcessSet = global_process_set) -> None:
    """Logs a warning that concerns all ranks of a set, on its first rank."""
    if not basics.is_initialized() or basics.rank() == members(process_set)[0]:
        _logger.warning(message)


def warn_on_each_host(message: str) -> None:
    """Logs a warning about the installation of a host, on the first rank of each host."""
    if not basics.is_initialized() or basics.local_rank() == 0:
        _logger.warning(message)


def warn_on_this_rank(message: str) -> None:
    """Logs a warning on whichever rank calls: the message names the rank."""
    _logger.warning(message)


@functools.cache
def warn_once(message: str, process_set: ProcessSet = global_process_set) -> None:
    """Logs a warning on the first rank of a set, the first time only."""
    warn(message, process_set)


def program_frame() -> tuple[FrameType, int]:
    """Finds the line of the program that is being run.

    Returns:
        The innermost frame outside of tfddl and the libraries below it, and its distance: 1 is the caller of this function.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES:
        level, frame = level + 1, frame.f_back
    return frame, level


def warn_deprecated(message: str) -> None:
    """Gives a `DeprecationWarning` for the line of the program that called tfddl, on rank 0."""
    if not basics.is_initialized() or basics.rank() == 0:
        warnings.warn(message, DeprecationWarning, stacklevel=program_frame()[1])
