"""Warnings to the user, from one rank."""

import functools
import logging

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
