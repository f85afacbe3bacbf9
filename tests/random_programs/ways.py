"""The ways to make the calls of one turn of a program, named in programs.py.

Each takes tfddl, the program, and its process sets, and gives a function of the indices of the calls to make and of their
inputs, which returns their results in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from tests.ops.support import at_once
from tests.random_programs.calls import Arrays
from tests.random_programs.programs import Program

Turn = Callable[[list[int], list[Arrays]], list[Any]]


def eagerly(hvd: Any, program: Program, sets: list[Any]) -> Turn:
    """Makes the calls one after the other, without names."""

    def turn(indices, inputs):
        return [
            outcome(hvd, program, sets, index, given, None)
            for index, given in zip(indices, inputs, strict=True)
        ]

    return turn


def in_threads(hvd: Any, program: Program, sets: list[Any]) -> Turn:
    """Makes all calls at once, each in a thread of its own; the threads start in the rank's order."""

    def turn(indices, inputs):
        results: dict[int, Any] = {}

        def work(index, given):
            results[index] = outcome(hvd, program, sets, index, given, f"program.{index}")

        at_once(*map(partial, [work] * len(indices), indices, inputs))
        return [results[index] for index in indices]

    return turn


def outcome(hvd: Any, program: Program, sets: list[Any], index: int, given: Arrays, name: str | None) -> Any:
    """The results of a call, or its error."""
    try:
        return made(hvd, program, sets, index, list(map(tf.constant, given)), name)
    except tf.errors.FailedPreconditionError as error:
        return error


def in_a_function(hvd: Any, program: Program, sets: list[Any]) -> Turn:
    """Makes the calls in one tf.function, as independent ops that are built in the rank's order."""

    @tf.function
    def step(indices, inputs):
        return [
            made(hvd, program, sets, index, given, f"program.{index}")
            for index, given in zip(indices, inputs, strict=True)
        ]

    return lambda indices, inputs: step(tuple(indices), [list(map(tf.constant, given)) for given in inputs])


def in_a_function_without_names(hvd: Any, program: Program, sets: list[Any]) -> Turn:
    """Like `in_a_function`, with names that follow from the function."""

    @tf.function
    def program_step(indices, inputs):
        return [
            made(hvd, program, sets, index, given, None) for index, given in zip(indices, inputs, strict=True)
        ]

    return lambda indices, inputs: program_step(
        tuple(indices), [list(map(tf.constant, given)) for given in inputs]
    )


def in_a_session(hvd: Any, program: Program, sets: list[Any]) -> Turn:
    """Like `in_a_function`, in a graph of TF1."""
    graph, placeholders, fetches = tf.Graph(), {}, {}
    with graph.as_default():
        for index in program.orders[hvd.rank()]:
            if not sets[program.group_indices[index]].included():
                continue
            example = program.calls[index].bring(0, 1, 0)
            placeholders[index] = [tf.compat.v1.placeholder(x.dtype, [None] * x.ndim) for x in example]
            fetches[index] = made(hvd, program, sets, index, placeholders[index], f"program.{index}")
    session = tf.compat.v1.Session(graph=graph)

    def turn(indices, inputs):
        feed = {
            placeholder: x
            for index, given in zip(indices, inputs, strict=True)
            for placeholder, x in zip(placeholders[index], given, strict=True)
        }
        # A session refuses to run an empty graph; a rank outside of all sets has one.
        return session.run([fetches[index] for index in indices], feed) if indices else []

    return turn


def made(
    hvd: Any, program: Program, sets: list[Any], index: int, inputs: list[tf.Tensor], name: str | None
) -> list[tf.Tensor]:
    return program.calls[index].make(hvd, sets[program.group_indices[index]], inputs, name)
