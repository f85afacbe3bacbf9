"""The contents of a checkpoint: variables that are equal on all ranks, slices of variables, and variables of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import reduced_marks
from tfddl.gradients.residuals import for_any_ranks
from tfddl.keras.consistency import model_contents, setup_check
from tfddl.keras.consistency.weights_check import differing_weights
from tfddl.keras.sharded.parts import Parts
from tfddl.ops.compression import StatefulCompressor
from tfddl.ops.exchange import differing_lists
from tfddl.ops.variables import Whole, whole_of
from tfddl.runtime import basics
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import global_process_set

_RESIDUALS = "residuals"
Kind = Literal["equal", "slice", "own"]


@dataclass(frozen=True)
class Entry:
    """One variable of a checkpoint.

    Attributes:
        key: Its name in the files.
        variable: The variable.
        kind: "equal" on all ranks, a "slice" of a variable, or "own", which is another variable on each rank.
        whole: The whole of which the variable holds a slice.
    """

    key: str
    variable: Any
    kind: Kind
    whole: Whole | None = None

    def value(self) -> np.ndarray:
        """A copy of the variable's value."""
        return np.array(tf.convert_to_tensor(self.variable))

    def restore(self, parts: Parts, rank: int) -> None:
        """Takes the value out of a checkpoint.

        Args:
            parts: The checkpoint, of any number of ranks.
            rank: This rank. A value that was each rank's own it takes from the rank with its number, modulo the number of
                ranks then.

        Raises:
            ValueError: The checkpoint lacks the variable, or has it in another shape.
        """
        if self.whole is not None:
            shape, values = self.whole.shape, parts.of_all(self.key)
            value = np.concatenate([np.ravel(each) for each in values]) if values else None
            fits = value is not None and value.size == np.prod(shape)
        else:
            mine = parts.of_rank(self.key, rank % parts.ranks)
            shape, values = tuple(self.variable.shape), parts.of_all(self.key) if mine is None else [mine]
            value = values[0] if values else None
            fits = value is not None and value.shape == shape
        if value is None or not fits:
            raise ValueError(
                "It is of another model or optimizer: use those that it was saved with. Received: "
                f"{_compat.path(self.variable)} of shape {shape}, in the checkpoint {[each.shape for each in values]}"
            )
        if value.dtype.kind == "V":  # NumPy reads bfloat16 as bytes
            value = value.view(tf.as_dtype(self.variable.dtype).as_numpy_dtype)
        (self.whole or self.variable).assign(value)


def entries_of(
    model: Any,
    optimizer: Any,
    trains_alone: bool,
    trained: Mapping[str, Sequence[int]] | None,
) -> list[Entry]:
    """The variables of a model and of its optimizers, each once; builds the optimizers.

    Args:
        model: The model, built.
        optimizer: One that is not part of the model, or None.
        trains_alone: Whether each rank trains alone for some steps, so that all variables differ by rank.
        trained: See `trained_by`. None stands for all trainable variables for each optimizer.

    Raises:
        ValueError: A MultiOptimizer has a sharded member.
    """
    optimizers = _optimizers(model, optimizer)
    model_contents.sharded_among(optimizers)
    local = {_id(model.variables[slot]) for slot in setup_check.local_slots(model, model.variables)}
    local |= {_id(each) for each in model.variables if _is_own(each)}
    # Only the optimizer knows the slots of a local variable.
    slots_differ = trains_alone or bool(local)
    found: dict[int, Entry] = {}
    for number, variable in enumerate(model.variables):
        own = trains_alone or _id(variable) in local or _compat.is_seed_state(variable)
        found.setdefault(_id(variable), Entry(f"model.{number}", variable, "own" if own else "equal"))
    for index, each in enumerate(optimizers):
        positions = (trained or {}).get(str(index), [])
        fits = positions and max(positions) < len(model.variables)  # else of another model: `restore` raises
        part = [model.variables[at] for at in positions] if fits else model.trainable_variables
        _compat.build_optimizer(each, part)
        for number, variable in enumerate(model_contents.state_of(each, model.variables)):
            whole = whole_of(variable)
            if whole is not None and whole.ranks == basics.size():
                kind: Kind = "slice"
            else:
                # Slices among some of the ranks, as in a cluster with local steps, fit the same arrangement only.
                alone = slots_differ or _is_own(variable) or model_contents.is_accumulator(variable)
                kind = "own" if whole or alone else "equal"
                whole = None
            entry = Entry(f"optimizer.{index}.{number}", variable, kind, whole)
            found.setdefault(_id(variable), entry)
    return list(found.values())


def trained_by(model: Any, optimizer: Any) -> dict[str, list[int]]:
    """The variables of each optimizer that trains a part of the model, such as one network of a GAN.

    Args:
        model: The model.
        optimizer: One that is not part of the model, or None.

    Returns:
        By the number of the optimizer, the positions among `model.variables`.
    """
    positions = {_id(variable): position for position, variable in enumerate(model.variables)}
    everything = [positions[_id(variable)] for variable in model.trainable_variables]
    found = {}
    for index, each in enumerate(_optimizers(model, optimizer)):
        its_own = list(map(_id, _compat.trained_variables(_compat.innermost(each))))
        known = [positions[one] for one in its_own if one in positions]
        if len(known) == len(its_own) > 0 and known != everything:
            found[str(index)] = known
    return found


def made_of(model: Any, optimizer: Any) -> dict[str, Any]:
    """The number of the weights of a model, and the classes of its optimizers: shapes alone may fit by chance.

    Args:
        model: The model.
        optimizer: One that is not part of the model, or None.
    """
    classes = [type(_compat.innermost(each)).__name__ for each in _optimizers(model, optimizer)]
    return {"weights": len(getattr(model, "weights", model.variables)), "optimizers": classes}


def check_made_of(then: dict[str, Any] | None, model: Any, optimizer: Any) -> None:
    """Compares a model and its optimizers with those of a checkpoint. A model for predictions needs no optimizer.

    Args:
        then: What `made_of` returned for the checkpoint; None if it has none.
        model: The model.
        optimizer: One that is not part of the model, or None.

    Raises:
        ValueError: They differ.
    """
    now = made_of(model, optimizer)
    if then is not None and then["optimizers"] and not now["optimizers"]:
        warn(
            "The optimizer of the checkpoint is not restored: to go on with the training, compile the model, or pass "
            f"optimizer=, before restore(). Received: {', '.join(then['optimizers'])}"
        )
        now["optimizers"] = then["optimizers"]
    if then is not None and then != now:
        raise ValueError(
            f"It is of another model or optimizer: use those that it was saved with. Received: {now}, in the checkpoint "
            f"{then}"
        )


def _optimizers(model: Any, optimizer: Any) -> list[Any]:
    found = [*model_contents.optimizers_of(model), *([] if optimizer is None else [optimizer])]
    return list({id(each): each for each in found}.values())


def residuals(compressions: Sequence[StatefulCompressor]) -> Iterator[Entry]:
    """Entries for what compressions keep from step to step, each rank its own."""
    for number, compression in enumerate(compressions):
        for name, variable in compression.named_variables().items():
            yield Entry(f"{_RESIDUALS}.{number}.{name}", variable, "own")


def resume_residuals(compressions: Sequence[StatefulCompressor], parts: Parts, rank: int) -> None:
    """Gives compressions what they had kept: each rank its own, or on another number of ranks the mean of all."""
    for number, compression in enumerate(compressions):
        prefix = f"{_RESIDUALS}.{number}."
        values = parts.with_prefix(prefix, rank % parts.ranks)
        same = parts.ranks == basics.size()
        compression.resume(values if same else _mean_residuals(values, parts, prefix))


def _mean_residuals(values: dict[str, np.ndarray], parts: Parts, prefix: str) -> dict[str, np.ndarray]:
    return for_any_ranks(
        values,
        lambda name: np.mean(parts.of_all(prefix + name), axis=0),
        lambda name: np.concatenate(parts.of_all(prefix + name)),
    )


def those_that_differ(entries: Sequence[Entry], model: Any) -> list[Entry]:
    """The entries of this rank, in kinds on which all ranks agree. All ranks call it.

    If one rank marks a variable as its own, every rank saves its own value: a rank outside a tape's process set marks it
    alone. Moving statistics that differ by rank are saved in the same way.
    """
    mine = [each.key for each in entries if each.kind == "own"]
    by_rank = differing_lists(mine, "ShardedCheckpoint.own") or {}
    anywhere = {key for keys in by_rank.values() for key in keys}
    entries = [_owned(each) if each.key in anywhere else each for each in entries]
    trained = {_id(variable) for variable in model.trainable_variables}
    untrained = {_id(variable) for variable in model.variables} - trained
    looked_at = [
        each.variable for each in entries if each.kind == "equal" and _id(each.variable) in untrained
    ]
    found = differing_weights(looked_at, "ShardedCheckpoint.statistics", global_process_set)
    own = {_id(variable) for variable, _ in found}
    return [_owned(each) if _id(each.variable) in own else each for each in entries]


def _owned(entry: Entry) -> Entry:
    return Entry(entry.key, entry.variable, "own")


def _is_own(variable: Any) -> bool:
    """Whether a tape has left the variable's gradient to each rank, or a broadcast its value."""
    return reduced_marks.is_own(_compat.tf_variable(variable))


def listed(name: str, variables: Sequence[Any]) -> Iterator[Entry]:
    """Entries for other variables, equal on all ranks and in an order that all ranks share."""
    for number, variable in enumerate(variables):
        yield Entry(f"{name}.{number}", variable, "equal")


def written_by(entries: Sequence[Entry], rank: int, ranks: int) -> Iterator[Entry]:
    """The entries that a rank writes: its own, its slices, and about one N-th of the bytes that are equal on all."""
    loads = [0] * ranks
    for entry in entries:
        writer = rank
        if entry.kind == "equal":
            writer = loads.index(min(loads))
            loads[writer] += int(np.prod(entry.variable.shape)) + 1
        if writer == rank:
            yield entry


def _id(variable: Any) -> int:
    return model_contents.variable_id(variable)
