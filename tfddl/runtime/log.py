"""Warnings to the user, from one rank."""

import functools
import logging
import sys
import warnings

from tfddl.runtime import basics
from tfddl.runtime.process_sets import ProcessSet, global_process_set, members

_logger = logging.getLogger("tfddl")


def warn(message: str, process_set: ProcessSet = global_process_set) -> None:
    """Logs a warning that concerns all ranks of a set, on its first rank."""
    if not basics.is_initialized() or basics.rank() == members(process_set)[0]:
        _logger.warning(message)


def warn_on_each_host(message: str) -> None:
    """Logs a warning about the installation of a host, on the first rank of each host."""
    if not basics.is_initialized() or basics.local_rank() == 0:
        _logger.warning(message)


@functools.cache
def warn_once(message: str, process_set: ProcessSet = global_process_set) -> None:
    """Logs a warning on the first rank of a set, the first time only."""
    warn(message, process_set)


def warn_deprecated(message: str) -> None:
    """Gives a `DeprecationWarning` for the line of the program that called tfddl, on rank 0."""
    if basics.is_initialized() and basics.rank() != 0:
        return
    level, frame = 2, sys._getframe(1)
    libraries = ("tfddl", "tensorflow", "keras")
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in libraries:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)
