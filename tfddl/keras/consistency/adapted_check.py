"""Checks that the preprocessing layers of a model were adapted to the same data on all ranks.

The broadcast does not make them equal: vocabularies and bins are no variables, and Normalization computes with constants
that it has made of its variables. With vocabularies of their own, ranks would train different rows of an embedding for
one word.
"""

import hashlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.keras.consistency import setup_check
from tfddl.ops.exchange import differing
from tfddl.runtime.agreement import in_words
from tfddl.runtime.process_sets import ProcessSet

_TOLERANCE = 1e-4  # hosts with other processors round otherwise
_REMEDIES = {
    "Normalization": "mean, variance = hvd.broadcast_object((layer.mean, layer.variance), root_rank=0); "
    "layer = keras.layers.Normalization(mean=np.squeeze(mean), variance=np.squeeze(variance))",
    "Discretization": "bins = hvd.broadcast_object(layer.bin_boundaries, root_rank=0); "
    "layer = keras.layers.Discretization(bin_boundaries=bins)",
}
_OF_LOOKUPS = "layer.set_vocabulary(hvd.broadcast_object(layer.get_vocabulary(), root_rank=0))"


class _Adapted(NamedTuple):
    layer: str
    remedy: str
    has_weights: bool  # which hold what it has learned
    words: str | None  # a digest of the vocabulary; None if this rank cannot read the layer
    numbers: np.ndarray  # float64 [2, n]: the numbers, and the scale of each

    def line(self) -> str:
        return f"{self.words} {hashlib.sha256(self.numbers.tobytes()).hexdigest()}"

    def is_like(self, other: "_Adapted") -> bool:
        if self.words is None or other.words is None:
            return True
        if self.words != other.words or self.numbers.shape != other.numbers.shape:
            return False
        numbers, scale = other.numbers
        return bool((np.abs(self.numbers[0] - numbers) <= _TOLERANCE * (np.abs(numbers) + scale)).all())


def check_adapted(model: Any, name: str, process_set: ProcessSet, keeps: Callable[[Any], bool]) -> None:
    """Compares what the layers of a model have learned in `adapt`. All ranks call it.

    A layer is not compared if its weights are local. If a rank has any local weights, lookups and other layers that
    learn no weights are not compared either: each rank may have a table and words of its own.

    Args:
        model: The compiled model.
        name: Names the collectives.
        process_set: The ranks that train.
        keeps: Whether a weight is this rank's own for another reason than the optimizer's.

    Raises:
        ValueError: On every rank, if a layer differs; the message has its name and the ranks.
    """
    if process_set.size() == 1:  # reading a large vocabulary takes a while
        return
    local = setup_check.local_references(model, keeps)
    mine = list(_adapted_layers(model, local))
    lines = [f"{number}. {each.line()}" for number, each in enumerate(mine)]
    own = bool(local) or setup_check.has_local(model)
    found = differing(lines, (own, mine), name, process_set)
    if found is None:
        return
    any_own = any(own for own, _ in found.values())
    ranks = list(found)
    compared = [[each for each in layers if each.has_weights or not any_own] for _, layers in found.values()]
    for first, *others in zip_longest(*compared):
        different = [
            rank
            for rank, other in zip(ranks[1:], others, strict=True)
            if first is None or other is None or not other.is_like(first)
        ]
        if different:
            layer = next(each for each in (first, *others) if each is not None)
            raise ValueError(
                "A preprocessing layer was adapted to different data, so the ranks would train different models: call "
                "adapt() before hvd.data.shard, on the same data on all ranks; or on rank 0 alone, and give what it has "
                f"learned to the layers of all ranks: {layer.remedy}. "
                f"Received: the layer {layer.layer} of {in_words(different)} differs from that of rank {ranks[0]}"
            )


def _adapted_layers(model: Any, local: set[Any]) -> Iterator[_Adapted]:
    """What Keras' preprocessing layers in the model have learned, also nested ones."""
    names = ("TextVectorization", "StringLookup", "IntegerLookup", "Discretization", "Normalization")
    kinds = tuple(getattr(_compat.keras().layers, name) for name in names)
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, kinds)]
    inner = {id(getattr(layer, "_lookup_layer", None)) for layer in layers}  # of TextVectorization
    for layer in layers:
        weights = list(filter(_compat.is_variable, layer.weights))  # in Keras 2 tables are among them
        if id(layer) not in inner and not any(_compat.reference(each) in local for each in weights):
            kind = next(name for name, each in zip(names, kinds, strict=True) if isinstance(layer, each))
            label = f"{layer.name!r} ({type(layer).__name__})"
            remedy = _REMEDIES.get(kind, _OF_LOOKUPS)
            yield _Adapted(label, remedy, kind == "Normalization" and bool(weights), *_read(layer))


def _read(layer: Any) -> tuple[str | None, np.ndarray]:
    """The digest and the numbers. An error of one rank would leave the others waiting, so there is none."""
    try:
        lookup = getattr(layer, "_lookup_layer", layer)
        return _digest(lookup) if hasattr(lookup, "lookup_table") else "", _numbers(layer, lookup)
    except Exception:  # of a subclass, or of Keras' with words in another encoding
        return None, np.zeros([2, 0])


def _digest(lookup: Any) -> str:
    """The digest of the bytes: `get_vocabulary` raises for words that are not UTF-8, and is slow for a million words."""
    settings = f"{lookup.mask_token} {lookup.oov_token} {lookup.num_oov_indices}"
    with tf.device("CPU:0"):
        if not int(lookup.lookup_table.size()):
            return settings
        keys, values = lookup.lookup_table.export()
        words, indices = (values, keys) if lookup.invert else (keys, values)
        ordered = tf.io.serialize_tensor(tf.gather(words, np.argsort(indices.numpy())))
    return f"{settings} {hashlib.sha256(ordered.numpy()).hexdigest()}"


def _numbers(layer: Any, lookup: Any) -> np.ndarray:
    pairs = []
    boundaries = getattr(layer, "bin_boundaries", None)
    if boundaries is not None and len(boundaries):
        pairs.append((boundaries, np.full(len(boundaries), np.ptp(boundaries))))
    weights = getattr(lookup, "idf_weights_const", None)
    if weights is not None:
        pairs.append((weights, np.zeros(len(weights))))
    mean: Any = getattr(layer, "mean", None)
    variance: Any = getattr(layer, "variance", None)
    learned = hasattr(mean, "numpy") and hasattr(variance, "numpy")  # the layer is built
    if learned and not _compat.is_variable(mean):  # the broadcast makes variables of a subclass equal
        deviation = np.sqrt(np.ravel(variance))
        pairs += [(np.ravel(mean), deviation), (deviation, deviation)]
    return np.concatenate([np.zeros([2, 0]), *(np.asarray(pair, "float64") for pair in pairs)], axis=1)
