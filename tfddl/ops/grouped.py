"""Grouped collectives: several tensors that travel as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Run = Callable[[list[Any], str, str], Sequence[Any]]
"""Takes members of one dtype, a suffix for the group's name, and a context (see `native._attributes`)."""


def in_groups(values: Sequence[Any], prepare: Callable[[Any], Any], run: Run) -> list[Any]:
    """Runs a collective on the members of a group, once for each dtype: only tensors of one dtype can travel as one.

    Args:
        values: The members. None stays None; all ranks must have None at the same indices.
        prepare: Turns a member into a tensor, or into a `tf.IndexedSlices`, which travels alone.
        run: The collective. All ranks run it in the same order.

    Returns:
        The results of `run`, in the order of the members.
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
        # The first kind has the group's own name on all ranks. So ranks with other kinds meet there, and get an error.
        outputs = run([prepared[index] for index in members], f".{kind}" if number else "", context)
        for index, output in zip(members, outputs, strict=True):
            results[index] = output
    return results


def _describe(kinds: dict[str, list[int]], size: int) -> str:
    """The field of the signature with the members of each kind; empty if all are of one kind and none is None."""
    if len(kinds) > 1:
        return "group=" + ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds)) + f" of {size}"
    (members,) = kinds.values()
    return "" if len(members) == size else f"group=members {members} of {size}"
