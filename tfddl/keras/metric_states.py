"""Metrics of the whole job: adds up the states of metrics over all ranks and computes the results from the sums.

A Keras metric adds to its variables with each batch: total and count of a mean, the confusion matrices of an AUC. So the
sums over ranks are the values that the variables of one process have after all the data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Sum
from tfddl.ops.exchange import check_same
from tfddl.runtime.process_sets import ProcessSet

_CLOSE = 1e-4  # relative: float32 rounds differently in another program


@dataclasses.dataclass
class Snapshot:
    """The states of a model's metrics at one moment.

    Attributes:
        model: The model.
        listed: Its `metrics` then: a callback that compiles the model again gives it others.
        metrics: The metrics whose variables are sums.
        values: The values of the variables of `metrics`.
        results: By name, the results that depend on `metrics` alone.
    """

    model: Any
    listed: list[Any]
    metrics: list[Any]
    values: list[np.ndarray]
    results: dict[str, np.ndarray]

    @property
    def variables(self) -> list[Any]:
        """The variables of all `metrics`."""
        return [variable for metric in self.metrics for variable in metric.variables]

    def describe(self) -> list[str]:
        """Each metric and the shapes of its variables."""
        return [
            f"{metric.name} {[tuple(variable.shape) for variable in metric.variables]}"
            for metric in self.metrics
        ]

    def results_of(self, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The results that the variables would give with these values. Leaves the variables as they are."""
        before = _values(self.variables)
        try:
            _assign(self.variables, values)
            results = _results(self.model, self.listed)
            return {key: value for key, value in results.items() if key in self.results}
        finally:
            _assign(self.variables, before)


def snapshot(model: Any) -> Snapshot:
    """Copies the present states of the model's metrics."""
    listed = list(model.metrics)
    leaves = list(_leaves(listed))
    metrics = [metric for metric in leaves if is_additive(metric)]
    others = [metric for metric in leaves if metric not in metrics]
    values = _values([variable for metric in metrics for variable in metric.variables])
    results = {
        key: value
        for key, value in _results(model, listed).items()
        if not any(_may_come_from(key, metric) for metric in others)
    }
    return Snapshot(model, listed, metrics, values, results)


def is_additive(metric: Any) -> bool:
    """Whether the states of a metric on several shards of the data add up to its state on all the data.

    This holds for Keras' metrics, for subclasses of them without an `update_state` of their own, and for metrics that are
    made of these alone. Any other metric declares it by an attribute `additive = True`.
    """
    declared = getattr(metric, "additive", None)
    if declared is not None:
        return bool(declared)
    owner = next(kind for kind in type(metric).__mro__ if "update_state" in vars(kind))
    inside = _compat.metrics_that_hold(metric)
    return _compat.comes_with_keras(owner) or (bool(inside) and all(map(is_additive, inside)))


def undeclared(model: Any) -> list[str]:
    """The names of the model's metrics whose states may or may not add up: their class does not say."""
    leaves = _leaves(model.metrics)
    return [each.name for each in leaves if getattr(each, "additive", None) is None and not is_additive(each)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The names and shapes on which ranks have to agree before they add up numbers.

    Attributes:
        logs: The names of the numeric logs; of an array also its shape.
        states: The metrics and the shapes of their variables.
        length: The number of values that each rank sends.
    """

    logs: list[str]
    states: list[str]
    length: int

    @classmethod
    def of(cls, logs: Mapping[str, Any], snapshots: Mapping[str, Snapshot]) -> Layout:
        """The layout of this rank's logs and metrics."""
        numbers = _numeric(logs)
        shown = [f"{key} {value.shape}" if value.ndim else key for key, value in numbers.items()]
        states = [f"{prefix}{line}" for prefix, one in snapshots.items() for line in one.describe()]
        length = sum(value.size + 1 for value in numbers.values())
        length += sum(value.size for one in snapshots.values() for value in one.values)
        return cls(shown, states, length)

    def check(self, name: str, process_set: ProcessSet) -> None:
        """Raises a ValueError on every rank if the ranks have different layouts."""
        check_same(
            [*self.logs, *(f"metric {state}" for state in self.states)],
            "MetricAverageCallback needs the same metrics on all ranks: compile the same ones, give every rank validation "
            "data or none, and give callbacks that add to logs to all ranks.",
            f"{name}.keys",
            process_set,
        )

    def add_zeros(self, name: str, process_set: ProcessSet) -> None:
        """Takes part in the `merge` of the other ranks without numbers of its own."""
        self.check(name, process_set)
        if self.logs:
            _sums([np.zeros(self.length)], f"{name}.values", process_set)


def merge(
    logs: dict[str, Any],
    snapshots: Mapping[str, Snapshot],
    name: str,
    process_set: ProcessSet,
    ranks: int | None = None,
    decided_by_rank_0: bool = False,
) -> list[str]:
    """Replaces this rank's numbers by the whole job's, with two small collectives.

    A log that equals the result of a metric's state on every rank becomes the result of the added-up states; another log
    becomes the mean over ranks.

    Args:
        logs: Changed in place. Values that are not numeric stay.
        snapshots: By the prefix of their logs: `""` or `"val_"`.
        name: Names the collectives.
        process_set: The ranks that take part ("every rank" below).
        ranks: The number of ranks with numbers; the others call `Layout.add_zeros`. Defaults to all.
        decided_by_rank_0: Whether rank 0 alone tells which logs are results of states. Defaults to False.

    Returns:
        The names of the logs that are means.

    Raises:
        ValueError: On every rank, if the ranks have different logs or metrics.
    """
    Layout.of(logs, snapshots).check(name, process_set)
    numbers = _numeric(logs)
    if not numbers:
        return []
    keys, mine = list(numbers), [value.astype("float64") for value in numbers.values()]
    own = {prefix + key: value for prefix, one in snapshots.items() for key, value in one.results.items()}
    decides = not decided_by_rank_0 or process_set.rank() == 0
    from_state = [
        np.array(decides and key in own and _equal(own[key], value), "float64")
        for key, value in zip(keys, mine, strict=True)
    ]
    states = [value.astype("float64") for one in snapshots.values() for value in one.values]
    totals = _sums([*mine, *from_state, *states], f"{name}.values", process_set)
    count = len(keys)
    exact = _results_by_log(snapshots, totals[2 * count :])
    size = ranks or process_set.size() or 1
    needed = 1 if decided_by_rank_0 else size
    means = [key for key, agreeing in zip(keys, totals[count : 2 * count], strict=True) if agreeing < needed]
    for key, total in zip(keys, totals[:count], strict=True):
        value = total / size if key in means else exact[key]
        logs[key] = float(value) if value.ndim == 0 else value
    return means


def _results_by_log(snapshots: Mapping[str, Snapshot], states: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The results of added-up states, by the name of the log."""
    found, rest = {}, iter(states)
    for prefix, one in snapshots.items():
        results = one.results_of([next(rest) for _ in one.values])
        found.update({prefix + key: value for key, value in results.items()})
    return found


def _numeric(logs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The logs that are numbers, in an order that all ranks share."""
    arrays = {key: _array(logs[key]) for key in sorted(logs)}
    return {
        key: value
        for key, value in arrays.items()
        if value.dtype.kind in "iuf" or value.dtype.name == "bfloat16"
    }


def _array(value: Any) -> np.ndarray:
    return np.asarray(
        value.numpy() if tf.is_tensor(value) else value
    )  # NumPy takes no scalar tensor in bfloat16


def _sums(arrays: Sequence[np.ndarray], name: str, process_set: ProcessSet) -> list[np.ndarray]:
    """The sums over ranks of float64 arrays, as one tensor."""
    flat = tf.constant(np.concatenate([array.ravel() for array in arrays]), tf.float64)
    total = allreduce(flat, op=Sum, name=name, process_set=process_set).numpy()
    ends = np.cumsum([array.size for array in arrays])[:-1]
    return [part.reshape(array.shape) for part, array in zip(np.split(total, ends), arrays, strict=True)]


def _leaves(metrics: Sequence[Any]) -> Iterator[Any]:
    """The metrics inside of the containers that `compile` makes."""
    for metric in metrics:
        inner = _compat.metrics_inside(metric)
        if inner is None:
            yield metric
        else:
            yield from _leaves(inner)


def _results(model: Any, listed: Sequence[Any]) -> dict[str, np.ndarray]:
    """The results of the listed metrics, by the model's own method if they are still the model's."""
    if list(map(id, model.metrics)) == list(map(id, listed)):
        results = model.get_metrics_result()
    else:
        results = {}
        for metric in listed:
            result = metric.result()
            results |= result if isinstance(result, Mapping) else {metric.name: result}
    return {key: _array(value).astype("float64") for key, value in _flat(results)}


def _flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The logs as Keras flattens them if the result of a metric is a dictionary."""
    for key, value in logs.items():
        yield from _flat(value) if isinstance(value, Mapping) else [(key, value)]


def _may_come_from(key: str, metric: Any) -> bool:
    """Whether a result may be of this metric: Keras adds the output's name in front of the metric's and a number behind."""
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
