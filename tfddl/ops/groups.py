"""Groups: several tensors that travel as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Run = Callable[[list[Any], str, str], Sequence[Any]]
"""Takes the members of one kind, what to append to the group's name, and what else ranks must agree on."""


def in_groups(values: Sequence[Any], prepare: Callable[[Any], Any], run: Run) -> list[Any]:
    """Hands the members of a group on, those of one dtype together, since only equal dtypes can travel as one.

    Args:
        values: The members; None stays None in its place, which has to be the same on all ranks.
        prepare: Turns a member into a tensor or a `tf.IndexedSlices`, each of which travels alone.
        run: Called once for each kind of member, in an order that is the same on all ranks.

    Returns:
        The results of `run`, in the places of the members.
    """
    results: list[Any] = [None] * len(values)
    prepared = {index: prepare(value) for index, value in enumerate(values) if value is not None}
    present = list(prepared)
    context = "" if len(present) == len(values) else f"members {present} of {len(values)}"
    kinds: dict[str, list[int]] = {}
    for index, tensor in prepared.items():
        kind = f"slices.{index}" if isinstance(tensor, tf.IndexedSlices) else tensor.dtype.name
        kinds.setdefault(kind, []).append(index)
    for kind in sorted(kinds):
        alone = len(kinds) == 1 and not kind.startswith("slices.")
        members = kinds[kind]
        outputs = run([prepared[index] for index in members], "" if alone else f".{kind}", context)
        for index, output in zip(members, outputs, strict=True):
            results[index] = output
    return results
