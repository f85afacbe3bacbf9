"""Checks that all ranks see the elements of a tf.data.Dataset in one order; else shards would overlap and miss elements."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf

from tfddl.data.graphs import CHOOSERS, Nodes, Seeds, seeds_in, split
from tfddl.keras.consistency.rows_check import check_samples, pipeline, samples_in
from tfddl.ops.exchange import check_same
from tfddl.runtime.process_sets import ProcessSet

_ADVICE = (
    "Shard first and shuffle afterwards, each rank in an order of its own: shard(dataset).shuffle(n), also for "
    "keras.utils.image_dataset_from_directory(..., batch_size=None, shuffle=False) and its like. Or give "
    "all ranks the same seed, shuffle(n, seed=...), before tf.random.set_seed or keras.utils.set_random_seed is "
    "called with a seed that differs from rank to rank: it changes the order of a seeded shuffle too."
)

# Larger datasets are not serialized: that takes seconds, and twice their memory.
_LARGE = 100 * 2**20


class _Step(NamedTuple):
    """A step of a pipeline.

    Attributes:
        dataset: The step.
        graphs: The nodes of its functions that determine the order of elements.
        seeds: Those of shuffles and random numbers: the graph's seed and the op's, which are both 0 without a seed.
    """

    dataset: tf.data.Dataset
    graphs: list[Nodes]
    seeds: list[Seeds]

    def is_unordered(self) -> bool:
        """Whether the step, or a step in one of its functions, has deterministic=False."""
        graphs = list(self.graphs)
        if type(self.dataset).__name__ == "_ParallelInterleaveDataset":  # only its node has the option
            graphs.append(next(split(_serialized(self.dataset))))
        return getattr(self.dataset, "_deterministic", "default") == "false" or any(
            node.attr["deterministic"].s == b"false" for nodes in graphs for node in nodes.values()
        )


def check(dataset: tf.data.Dataset, count: int, process_set: ProcessSet | None) -> None:
    """Checks the order of this rank's dataset, after a comparison of its cardinality, seeds and some rows over the ranks.

    Args:
        dataset: This rank's whole dataset.
        count: Its cardinality.
        process_set: The ranks that share the dataset, all of which call the function. None compares nothing.

    Raises:
        ValueError: On every rank, if the ranks shuffle with different seeds, or have different lengths or rows. On this
            rank, if the dataset was shuffled without a seed, may be out of order, or is too large to see its order.
    """
    unseen = None
    try:
        steps = list(map(_step, pipeline(dataset)))
    except ValueError as error:
        steps, unseen = [], error
    if process_set is not None:
        lines = [f"cardinality {count}", *(unseen.args if unseen else _numbered(steps))]
        _compare(dataset, lines, process_set)
    if unseen is not None:
        raise unseen
    _check_deterministic(dataset, steps)


def _step(dataset: tf.data.Dataset) -> _Step:
    graphs = list(_graphs(dataset))
    own = [(int(dataset._seed), int(dataset._seed2))] if hasattr(dataset, "_seed2") else []
    return _Step(dataset, graphs, own + [seeds for nodes in graphs for seeds in seeds_in(nodes)])


def _numbered(steps: Iterable[_Step]) -> list[str]:
    found = [(type(step.dataset).__name__.strip("_"), seeds) for step in steps for seeds in step.seeds]
    return [f"{number}. {name} with seeds {seeds}" for number, (name, seeds) in enumerate(found, 1)]


def _compare(dataset: tf.data.Dataset, lines: list[str], process_set: ProcessSet) -> None:
    check_same(
        lines,
        "hvd.data.shard needs the same dataset, in the same order, on all ranks: the same number of elements, and the same "
        f"seeds of each shuffle and of random numbers that choose elements. {_ADVICE}",
        "data.shard",
        process_set,
    )
    check_samples(samples_in(dataset), "data.shard.rows", process_set)


def _check_deterministic(dataset: tf.data.Dataset, steps: list[_Step]) -> None:
    if dataset.options().deterministic is False:
        _refuse_unordered(dataset)
    for step in steps:
        if step.is_unordered():
            _refuse_unordered(step.dataset)
    for step in steps:
        if (0, 0) in step.seeds:
            raise ValueError(
                "The dataset is shuffled without a seed, or a function that returns datasets or chooses elements, as of "
                "flat_map, interleave and filter, draws random numbers without a seed (tf.data.Dataset.list_files "
                "shuffles too), so that the ranks' shards would overlap. "
                f"{_ADVICE} Received: {step.dataset!r}"
            )


def _refuse_unordered(dataset: tf.data.Dataset) -> NoReturn:
    raise ValueError(
        "Each rank may get the elements in another order, and shards would overlap: shard before the steps "
        "that have deterministic=False, perhaps in a function of flat_map or interleave. "
        f"Received: {dataset!r}"
    )


def _graphs(step: tf.data.Dataset) -> Iterator[Nodes]:
    """The graphs of those functions of a step that determine the order of elements.

    These functions return datasets, or choose. Other functions, such as an augmentation, do not move elements.
    """
    if (
        type(step).__name__ == "_VariantDataset"
    ):  # names no datasets that it is made from, as of choose_from_datasets
        yield from split(_serialized(step))
    choosers = [getattr(step, f"_{name}", None) for name in CHOOSERS]
    for function in _functions(step):
        results = tf.nest.flatten(function.output_structure)
        if function in choosers or any(isinstance(each, tf.data.DatasetSpec) for each in results):
            yield from split(function.function.graph.as_graph_def())


def _functions(step: tf.data.Dataset) -> list[Any]:
    """The functions of a step. `Dataset.load` does not name its own."""
    named: list[Any] = step._functions()
    return [step._reader_func] if type(step).__name__ == "_LoadDataset" else named


def _serialized(step: tf.data.Dataset) -> Any:
    """The graph of a step and of all before it.

    Raises:
        ValueError: The dataset cannot be serialized, or only with much time and memory.
    """
    reason = f"more than {_LARGE} bytes"
    if _bytes(step) <= _LARGE:
        ignore = tf.data.experimental.ExternalStatePolicy.IGNORE
        try:
            graph = step._as_serialized_graph(external_state_policy=ignore)
            return tf.compat.v1.GraphDef.FromString(graph.numpy())
        except tf.errors.OpError as error:  # arrays of more than 2 GiB that _bytes has not found
            reason = error.message[:200]
    raise ValueError(
        "hvd.data.shard cannot see whether all ranks have the elements in one order, since arrays in the dataset are "
        f"too large: shard before interleave and choose_from_datasets. Received: {step!r}, {reason}"
    )


def _bytes(dataset: tf.data.Dataset) -> int:
    """How large the tensors are that the dataset is made from."""
    tensors = [
        tensor
        for step in pipeline(dataset)
        for group in (
            getattr(step, "_tensors", ()),
            *(function.function.captured_inputs for function in _functions(step)),
        )
        for tensor in group
    ]
    return sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)
