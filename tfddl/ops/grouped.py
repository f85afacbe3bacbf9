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
    kinds: dict[str, list[int]] = {}
    for index, tensor in prepared.items():
        kind = f"slices.{index}" if isinstance(tensor, tf.IndexedSlices) else tensor.dtype.name
        kinds.setdefault(kind, []).append(index)
    context = _describe(kinds, len(values))
    for number, kind in enumerate(sorted(kinds)):
        members = kinds[kind]
        # The first kind has the group's own name on all ranks, so that they notice where their kinds differ.
        outputs = run([prepared[index] for index in members], f".{kind}" if number else "", context)
        for index, output in zip(members, outputs, strict=True):
            results[index] = output
    return results


def _describe(kinds: dict[str, list[int]], size: int) -> str:
    """Which members are of which kind; nothing where all are of one and none is missing."""
    if len(kinds) > 1:
        return ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds)) + f" of {size}"
    (members,) = kinds.values()
    return "" if len(members) == size else f"members {members} of {size}"
