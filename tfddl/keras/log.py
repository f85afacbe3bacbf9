"""What the Keras side has to say to the user."""

import functools
import logging

from tfddl.runtime import basics

_logger = logging.getLogger("tfddl")


def warn(message: str) -> None:
    """Logs a warning, on one rank: it concerns all alike."""
    if not basics.is_initialized() or basics.rank() == 0:
        _logger.warning(message)


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning the first time only."""
    warn(message)
