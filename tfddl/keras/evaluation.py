"""evaluate: the metrics of the whole job, also if some ranks have no rows."""

import types
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.callbacks.metric_average import MetricAverageCallback
from tfddl.keras.metric_states import Layout, snapshot
from tfddl.ops.exchange import all_numbers
from tfddl.ops.objects import broadcast_object
from tfddl.runtime.process_sets import ProcessSet, global_process_set

_NAME = "evaluate"


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    callbacks: Any = None,
    return_dict: bool = False,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Any:
    """Evaluates each rank's shard of the data, and returns the metrics of the whole job on all ranks.

    They equal those that `model.evaluate` in one process computes from all the data, to the precision of float32;
    `MetricAverageCallback` says which metrics are exact and which are means over the ranks that have rows. All ranks call
    it. The shards may be uneven, and some of them empty: arrays without rows; a dataset, generator or `PyDataset` without
    batches.

    Args:
        model: A compiled `keras.Model`.
        x: As in `model.evaluate`: this rank's shard.
        y: As in `model.evaluate`.
        callbacks: As in `model.evaluate`; they see this rank's own numbers.
        return_dict: Whether to return a dictionary.
        process_set: The ranks that share the data ("all ranks" above). Defaults to all.
        **options: The other arguments of `model.evaluate`.

    Returns:
        The loss, a list of loss and metrics, or a dictionary, as `model.evaluate`.

    Raises:
        ValueError: On every rank, if the ranks have different metrics, or no rank has any rows.

    Example:
        On 2 ranks:

        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> model.compile(loss="mse")
        >>> hvd.evaluate(model, np.full([4, 1], hvd.rank()), np.zeros([4, 1]), verbose=0)  # 0 and 1
        0.5
    """
    mine = MetricAverageCallback(process_set)
    mine.owner = _NAME
    callbacks = [] if callbacks is None else tf.nest.flatten(callbacks)
    x, empty = _look_into(x)
    logs: dict[str, Any] = {}
    if empty:
        model.reset_metrics()
    else:
        logs = model.evaluate(x, y, callbacks=[*callbacks, mine], return_dict=True, **options)
    result, means = _merged(mine, model, logs, return_dict)
    mine.compare(means)
    return result


def _merged(
    mine: MetricAverageCallback, model: Any, logs: dict[str, Any], return_dict: bool
) -> tuple[Any, list[str]]:
    """Merges the metrics of all ranks. A rank without rows adds zeros.

    Returns:
        The result of `evaluate`, and the names of the logs that are plain means over ranks.
    """
    process_set = mine.process_set
    (has_rows,) = all_numbers(bool(logs), name=f"{_NAME}.present", process_set=process_set)
    present = [rank for rank, has in has_rows.items() if has]
    if not present:
        raise ValueError(
            "hvd.evaluate computes metrics of the rows that all ranks have together: give at least one rank some rows. "
            "Received: no rows on any rank"
        )
    parts = {"": snapshot(model)} if logs else {}
    layout = Layout.of(logs, parts)
    if len(present) < len(has_rows):
        layout = broadcast_object(layout, present[0], name=f"{_NAME}.layout", process_set=process_set)
    means = []
    if logs:
        means = mine.merge(logs, parts, len(present))
    else:
        layout.add_zeros(_NAME, process_set)
    # Without a batch Keras may know neither all metrics nor their order.
    result = logs if return_dict or not logs else _compat.results_of_evaluate(model, logs)
    if len(present) == len(has_rows):
        return result, means
    return broadcast_object((result, means), present[0], name=f"{_NAME}.result", process_set=process_set)


def _look_into(x: Any) -> tuple[Any, bool]:
    """The data, and whether it is known to have no rows."""
    if isinstance(x, types.GeneratorType):
        for batch in x:
            return _again(batch, x), False
        return x, True
    if isinstance(x, tf.data.Dataset):
        return x, int(x.cardinality()) == 0
    if isinstance(x, _compat.py_dataset()):
        return x, _compat.num_batches(x) == 0
    return x, any(tuple(getattr(leaf, "shape", ()))[:1] == (0,) for leaf in tf.nest.flatten(x))


def _again(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others
