"""Functions compiled by XLA, and their collectives as the flight record has them."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tensorflow as tf

from tests.harness.flight import operations
from tfddl.runtime import xla


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """The function, compiled by XLA as a whole."""
    return tf.function(function, jit_compile=True, **options)


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """Fills a list with the names of the collectives that the block starts, in their order."""
    begin_us = time.monotonic_ns() // 1000  # the clock of the flight record
    names: list[str] = []
    yield names
    started = [(each.started_us, each.name) for each in operations() if each.started_us is not None]
    names.extend(name for time_us, name in sorted(started) if time_us >= begin_us)


def counts(names: list[str]) -> Counter[str]:
    """How often each collective was started."""
    return Counter(names)


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Makes tfddl behave as if the XLA kernels could not be compiled."""
    with mock.patch.object(xla, "why_not", return_value="they could not be compiled or loaded"):
        yield
