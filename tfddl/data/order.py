"""Checks that all ranks see the elements of a tf.data.Dataset in one order; else shards would overlap and miss elements."""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfddl.data.graphs import CHOOSERS, Graph, Seeds, seeds_inside, split
from tfddl.keras.consistency.rows_check import check_samples, pipeline, samples_in
from tfddl.ops.exchange import check_same as check_same_lines
from tfddl.runtime.process_sets import ProcessSet, global_process_set

_ADVICE = (
    "Shard first and shuffle afterwards, each rank in an order of its own: shard(dataset).shuffle(n), also for "
    "keras.utils.image_dataset_from_directory(..., batch_size=None, shuffle=False) and its like. Or give "
    "all ranks the same seed, shuffle(n, seed=...), before tf.random.set_seed or keras.utils.set_random_seed is "
    "called with a seed that differs from rank to rank: it changes the order of a seeded shuffle too."
)

# Larger datasets are not serialized: that takes seconds, and twice their memory.
_LARGE = 100 * 2**20


def check_deterministic(dataset: tf.data.Dataset) -> None:
    """Checks the order of this rank's dataset.

    Raises:
        ValueError: The dataset was shuffled without a seed, may be out of order, or is too large to see its order.
    """
    steps = list(pipeline(dataset))
    unordered = [dataset] if dataset.options().deterministic is False else filter(_unordered, steps)
    if (step := next(iter(unordered), None)) is not None:
        raise ValueError(
            "Each rank may get the elements in another order, and shards would overlap: shard before the steps "
            "that have deterministic=False, perhaps in a function of flat_map or interleave. "
            f"Received: {step!r}"
        )
    if (step := next((step for step, seeds in _seeds(steps) if seeds == (0, 0)), None)) is not None:
        raise ValueError(
            "The dataset is shuffled without a seed, perhaps in a function of flat_map or interleave, or random "
            "numbers choose, repeat or move its elements (tf.data.Dataset.list_files shuffles too), so that the "
            "ranks' shards would overlap. "
            f"{_ADVICE} Received: {step!r}"
        )


def check_same(dataset: tf.data.Dataset, count: int, process_set: ProcessSet = global_process_set) -> None:
    """Compares the cardinality, the seeds and some rows in memory of the dataset over all ranks. All ranks call it.

    Args:
        dataset: This rank's whole dataset.
        count: Its cardinality.
        process_set: The ranks that share the dataset.

    Raises:
        ValueError: On every rank, if the ranks shuffle with different seeds, or have different lengths or rows.
    """
    try:
        seeds = [
            f"{number}. {type(step).__name__.strip('_')} with seeds {seeds}"
            for number, (step, seeds) in enumerate(_seeds(pipeline(dataset)), 1)
        ]
    except ValueError as error:  # if it is the same on all ranks, `check_deterministic` raises it
        seeds = [str(error)]
    check_same_lines(
        [f"cardinality {count}", *seeds],
        "hvd.data.shard needs the same dataset, in the same order, on all ranks: the same number of elements, and the same "
        "seeds of each shuffle and of random numbers that choose, repeat or move elements. "
        f"{_ADVICE}",
        "data.shard",
        process_set,
    )
    check_samples(samples_in(dataset), "data.shard.rows", process_set)


def _seeds(steps: Iterable[tf.data.Dataset]) -> list[tuple[tf.data.Dataset, Seeds]]:
    """Each shuffling step with its seeds, and those whose random numbers choose, repeat or move elements.

    Two numbers each: the graph's seed and the op's; both are 0 without a seed.
    """
    found: list[tuple[tf.data.Dataset, Seeds]] = []
    for step in steps:
        if hasattr(step, "_seed2"):
            found.append((step, (int(step._seed), int(step._seed2))))
        found += [(step, seeds) for graph in _graphs(step) for seeds in seeds_inside(graph)]
    return found


def _graphs(step: tf.data.Dataset) -> Iterator[Graph]:
    """The graphs of those functions of a step that determine the order of elements.

    These functions return datasets, or choose. Other functions, such as an augmentation, do not move elements.
    """
    if type(step).__name__ == "_VariantDataset":
        yield from _hidden_graphs(step)
    choosers = [getattr(step, f"_{name}", None) for name in CHOOSERS]
    for function in _functions(step):
        results = tf.nest.flatten(function.output_structure)
        chooses = function in choosers
        if chooses or any(isinstance(each, tf.data.DatasetSpec) for each in results):
            yield from split(function.function.graph.as_graph_def(), chooses)


def _functions(step: tf.data.Dataset) -> list[Any]:
    """The functions of a step. `Dataset.load` does not name its own."""
    named: list[Any] = step._functions()
    return [step._reader_func] if type(step).__name__ == "_LoadDataset" else named


def _hidden_graphs(step: tf.data.Dataset) -> Iterator[Graph]:
    """The graphs of a step that does not name the datasets it is made from, such as the selector of choose_from_datasets.

    Raises:
        ValueError: The dataset cannot be serialized, or only with much time and memory.
    """
    try:
        if _bytes(step) > _LARGE:
            raise tf.errors.ResourceExhaustedError(None, None, f"more than {_LARGE} bytes")
        text = step._as_serialized_graph(
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE
        ).numpy()
    except tf.errors.OpError as error:  # also arrays of more than 2 GiB that _bytes has not found
        raise ValueError(
            "hvd.data.shard cannot see whether all ranks have the elements in one order, since arrays in the dataset are "
            "too large: shard before interleave and choose_from_datasets. "
            f"Received: {step!r}, {error.message[:200]}"
        ) from None
    yield from split(tf.compat.v1.GraphDef.FromString(text), chooses=False)


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


def _unordered(step: tf.data.Dataset) -> bool:
    """Whether the step, or a step in one of its functions, has deterministic=False."""
    graphs = list(_graphs(step))
    if type(step).__name__ == "_ParallelInterleaveDataset":  # only its node has the option
        graphs += [next(_hidden_graphs(step))]
    return getattr(step, "_deterministic", "default") == "false" or any(
        node.attr["deterministic"].s == b"false" for graph in graphs for node in graph.nodes.values()
    )
