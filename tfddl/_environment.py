"""Switches in the environment."""

import os


def switched_on(variable: str) -> bool:
    """Whether a variable, which is 0 or 1, is 1. One that is not set, or empty, is 1.

    Raises:
        ValueError: It has another value. custom_ops/base/environment.cc says the same of those that the engine reads.
    """
    text = os.environ.get(variable) or "1"
    if text not in ("0", "1"):
        raise ValueError(f"{variable} must be 0 or 1: set one of them. Received: {text!r}")
    return text == "1"
