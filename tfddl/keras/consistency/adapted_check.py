"""Checks that the preprocessing layers of a model were adapted to the same data on all ranks.

The broadcast does not make them equal: vocabularies and bins are no variables, and Normalization computes with constants
that it has made of its variables. With vocabularies of their own, ranks would train different rows of an embedding for
one word.
"""

import hashlib
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from tfddl.ops.exchange import differing_lists
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics
from tfddl.runtime.agreement import in_words
from tfddl.runtime.process_sets import ProcessSet

_TOLERANCE = 1e-4  # hosts with other processors round otherwise


class _Adapted(NamedTuple):
    layer: str
    words: str  # a digest of the vocabulary
    numbers: np.ndarray  # float64 [2, n]: the numbers, and the scale of each

    def line(self) -> str:
        return f"{self.words} {hashlib.sha256(self.numbers.tobytes()).hexdigest()}"

    def is_like(self, other: "_Adapted") -> bool:
        if self.words != other.words or self.numbers.shape != other.numbers.shape:
            return False
        numbers, scale = other.numbers
        return bool((np.abs(self.numbers[0] - numbers) <= _TOLERANCE * (np.abs(numbers) + scale)).all())


def check_adapted(model: Any, name: str, process_set: ProcessSet) -> None:
    """Compares what the layers of a model have learned in `adapt`. All ranks call it.

    Args:
        model: The compiled model.
        name: Names the collectives.
        process_set: The ranks that train.

    Raises:
        ValueError: On every rank, if a layer differs; the message has its name and the ranks.
    """
    mine = list(_adapted_layers(model))
    if (
        differing_lists([f"{number}. {each.line()}" for number, each in enumerate(mine)], name, process_set)
        is None
    ):
        return
    found = allgather_object((basics.rank(), mine), name=f"{name}.layers", process_set=process_set)
    ranks = [rank for rank, _ in found]
    for first, *others in zip_longest(*(layers for _, layers in found)):
        different = [
            rank
            for rank, other in zip(ranks[1:], others, strict=True)
            if first is None or other is None or not other.is_like(first)
        ]
        if different:
            layer = next(each.layer for each in (first, *others) if each is not None)
            raise ValueError(
                "A preprocessing layer was adapted to different data, so the ranks would train different models: call "
                "adapt() before hvd.data.shard, on the same data on all ranks; or on rank 0 alone, and give what it has "
                "learned to the layers of all ranks, such as "
                "layer.set_vocabulary(hvd.broadcast_object(layer.get_vocabulary(), 0)). "
                f"Received: the layer {layer} of {in_words(different)} differs from that of rank {ranks[0]}"
            )


def _adapted_layers(model: Any) -> Iterator[_Adapted]:
    """What the model's layers with a method `adapt` have learned, also nested ones."""
    layers = [layer for layer in model._flatten_layers() if callable(getattr(layer, "adapt", None))]
    inner = {id(getattr(layer, "_lookup_layer", None)) for layer in layers}  # of TextVectorization
    for layer in layers:
        if id(layer) not in inner:
            words = layer.get_vocabulary() if callable(getattr(layer, "get_vocabulary", None)) else []
            digest = hashlib.sha256("\n".join(map(str, words)).encode()).hexdigest()
            yield _Adapted(f"{layer.name!r} ({type(layer).__name__})", digest, _numbers(layer))


def _numbers(layer: Any) -> np.ndarray:
    pairs = []
    boundaries = getattr(layer, "bin_boundaries", None)
    if boundaries is not None and len(boundaries):
        pairs.append((boundaries, np.full(len(boundaries), np.ptp(boundaries))))
    weights = getattr(getattr(layer, "_lookup_layer", layer), "idf_weights_const", None)
    if weights is not None:
        pairs.append((weights, np.zeros(len(weights))))
    mean: Any = getattr(layer, "mean", None)
    variance: Any = getattr(layer, "variance", None)
    if hasattr(mean, "numpy") and hasattr(variance, "numpy"):  # the layer is built
        deviation = np.sqrt(np.ravel(variance))
        pairs += [(np.ravel(mean), deviation), (deviation, deviation)]
    return np.concatenate([np.zeros([2, 0]), *(np.asarray(pair, "float64") for pair in pairs)], axis=1)
