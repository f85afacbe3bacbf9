"""Functions compiled by XLA, and their collectives as the flight log has them."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tensorflow as tf

from tfddl import runtime
from tfddl.runtime import xla


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """The function, compiled by XLA as a whole."""
    return tf.function(function, jit_compile=True, **options)


def started_since(count: int) -> list[str]:
    """The names of the collectives that this rank has started, in order, without the first `count`."""
    return [event["name"] for event in runtime.flight_log() if event["event"] == "start"][count:]


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """Fills a list with the names of the collectives that the block starts."""
    before = len(started_since(0))
    names: list[str] = []
    yield names
    names.extend(started_since(before))


def counts(names: list[str]) -> Counter[str]:
    """How often each collective was started."""
    return Counter(names)


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Makes tfddl behave as if the XLA kernels could not be compiled."""
    with mock.patch.object(xla, "why_not", return_value="they could not be compiled or loaded"):
        yield
