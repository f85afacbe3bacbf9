"""Metrics of the whole job: their states are added up over all ranks, and the results computed from the sums.

A Keras metric adds to its variables with each batch: total and count of a mean, the confusion matrices of an AUC. The sums
over ranks are therefore the variables that one process has after all the data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.exchange import differing_lists
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Sum
from tfddl.runtime.process_sets import ProcessSet

_CLOSE = 1e-4  # relative: what float32 may make of the same state in another program


@dataclasses.dataclass
class Snapshot:
    """What a model's metrics hold at one moment.

    Attributes:
        model: The model.
        metrics: Those whose variables are sums.
        values: The values of their variables.
        results: By name, what follows from sums alone.
    """

    model: Any
    metrics: list[Any]
    values: list[np.ndarray]
    results: dict[str, np.ndarray]

    @property
    def variables(self) -> list[Any]:
        """Of all its metrics."""
        return [variable for metric in self.metrics for variable in metric.variables]

    def describe(self) -> list[str]:
        """What ranks have to agree on before they add up."""
        return [
            f"{metric.name} {[tuple(variable.shape) for variable in metric.variables]}"
            for metric in self.metrics
        ]

    def results_of(self, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The results if the variables had these values; they keep the ones that they have."""
        before = _values(self.variables)
        try:
            _assign(self.variables, values)
            return {key: value for key, value in _results(self.model).items() if key in self.results}
        finally:
            _assign(self.variables, before)


def snapshot(model: Any) -> Snapshot:
    """Keeps what the model's metrics hold now."""
    leaves = list(_leaves(model.metrics))
    metrics = [metric for metric in leaves if is_additive(metric)]
    others = [metric for metric in leaves if metric not in metrics]
    values = _values([variable for metric in metrics for variable in metric.variables])
    results = {
        key: value
        for key, value in _results(model).items()
        if not any(_may_come_from(key, metric) for metric in others)
    }
    return Snapshot(model, metrics, values, results)


def is_additive(metric: Any) -> bool:
    """Whether the states of a metric, each of its own part of the data, add up to that of all the data.

    Those of Keras' metrics do, also where a subclass adds no `update_state` of its own. Another metric says so by an
    attribute `additive = True`.
    """
    said = getattr(metric, "additive", None)
    if said is not None:
        return bool(said)
    owner = next(kind for kind in type(metric).__mro__ if "update_state" in vars(kind))
    return _compat.comes_with_keras(owner)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What ranks have to agree on before they add up numbers.

    Attributes:
        logs: Those with a number, and the shape of what is more than one.
        states: Of the metrics.
        length: How many numbers travel.
    """

    logs: list[str]
    states: list[str]
    length: int

    @classmethod
    def of(cls, logs: Mapping[str, Any], snapshots: Mapping[str, Snapshot]) -> Layout:
        """That of this rank's logs and metrics."""
        keys = _numeric(logs)
        shown = [f"{key} {np.shape(logs[key])}" if np.ndim(logs[key]) else key for key in keys]
        states = [f"{prefix}{line}" for prefix, one in snapshots.items() for line in one.describe()]
        length = sum(np.size(logs[key]) + 1 for key in keys)
        length += sum(value.size for one in snapshots.values() for value in one.values)
        return cls(shown, states, length)

    def check(self, name: str, process_set: ProcessSet) -> None:
        """Raises a ValueError on every rank if they have different ones."""
        lines = [*self.logs, *(f"\t{state}" for state in self.states)]
        different = differing_lists(lines, f"{name}.keys", process_set)
        if different is None:
            return
        found = {rank: [line for line in lines if line[:1] != "\t"] for rank, lines in different.items()}
        if len({tuple(lines) for lines in found.values()}) == 1:  # then it is the variables that differ
            found = {
                rank: [line[1:] for line in lines if line[:1] == "\t"] for rank, lines in different.items()
            }
        raise ValueError(
            "MetricAverageCallback needs the same metrics on all ranks: give every rank validation data, or none. "
            "Received: " + "; ".join(f"rank {rank}: {lines}" for rank, lines in found.items())
        )

    def add_nothing(self, name: str, process_set: ProcessSet) -> None:
        """Takes part in the others' `merge`, with zeros."""
        self.check(name, process_set)
        if self.logs:
            _sums([np.zeros(self.length)], f"{name}.values", process_set)


def merge(
    logs: dict[str, Any],
    snapshots: Mapping[str, Snapshot],
    name: str,
    process_set: ProcessSet,
    ranks: int | None = None,
) -> list[str]:
    """Puts the whole job's numbers in place of this rank's, in two small collectives.

    A log becomes what the added-up states give where it is what a metric's state has given on every rank; else the mean
    over ranks.

    Args:
        logs: Changed in place. What is not numeric stays.
        snapshots: By the prefix of their logs: `""` or `"val_"`.
        name: Names the collectives.
        process_set: Whose ranks take part; "every rank" means those.
        ranks: How many of them have numbers; the others call `Layout.add_nothing`. Defaults to all.

    Returns:
        The names of the logs that are means.

    Raises:
        ValueError: On every rank, if not all ranks have the same logs and metrics.
    """
    Layout.of(logs, snapshots).check(name, process_set)
    keys = _numeric(logs)
    if not keys:
        return []
    mine = [np.asarray(logs[key], "float64") for key in keys]
    own = {prefix + key: value for prefix, one in snapshots.items() for key, value in one.results.items()}
    agree = [
        np.array(key in own and _equal(own[key], value), "float64")
        for key, value in zip(keys, mine, strict=True)
    ]
    states = [value.astype("float64") for one in snapshots.values() for value in one.values]
    totals = _sums([*mine, *agree, *states], f"{name}.values", process_set)
    sums, agreeing, states = totals[: len(keys)], totals[len(keys) : 2 * len(keys)], totals[2 * len(keys) :]
    exact = {}
    for prefix, one in snapshots.items():
        results = one.results_of(states[: len(one.values)])
        exact.update({prefix + key: value for key, value in results.items()})
        states = states[len(one.values) :]
    size = ranks or process_set.size() or 1
    means = []
    for key, total, count in zip(keys, sums, agreeing, strict=True):
        if count < size:
            means.append(key)
        value = total / size if count < size else exact[key]
        logs[key] = float(value) if value.ndim == 0 else value
    return means


def _numeric(logs: Mapping[str, Any]) -> list[str]:
    return sorted(key for key, value in logs.items() if _is_numeric(value))


def _sums(arrays: Sequence[np.ndarray], name: str, process_set: ProcessSet) -> list[np.ndarray]:
    """The sums over ranks of float64 arrays, as one tensor."""
    flat = tf.constant(np.concatenate([array.ravel() for array in arrays]), tf.float64)
    total = allreduce(flat, op=Sum, name=name, process_set=process_set).numpy()
    ends = np.cumsum([array.size for array in arrays])[:-1]
    return [part.reshape(array.shape) for part, array in zip(np.split(total, ends), arrays, strict=True)]


def _leaves(metrics: Sequence[Any]) -> Iterator[Any]:
    """The metrics themselves, out of the containers that `compile` puts them in."""
    for metric in metrics:
        inner = _compat.metrics_inside(metric)
        if inner is None:
            yield metric
        else:
            yield from _leaves(inner)


def _results(model: Any) -> dict[str, np.ndarray]:
    return {key: np.asarray(value, "float64") for key, value in _flat(model.get_metrics_result())}


def _flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The logs as Keras flattens them, for a metric whose result is a dictionary."""
    for key, value in logs.items():
        yield from _flat(value) if isinstance(value, Mapping) else [(key, value)]


def _may_come_from(key: str, metric: Any) -> bool:
    """Whether a result may be this metric's: Keras puts the output's name before and a number behind its name."""
    result = metric.result()
    if isinstance(result, dict):
        return key in result
    return re.search(rf"(^|_){re.escape(metric.name)}(_\d+)?$", key) is not None


def _values(variables: Sequence[Any]) -> list[np.ndarray]:
    return [
        np.array(variable.numpy()) for variable in variables
    ]  # a copy: `numpy()` may show the variable's own memory


def _assign(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=_CLOSE, atol=1e-12, equal_nan=True)


def _is_numeric(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind in "iuf" or array.dtype.name == "bfloat16"
