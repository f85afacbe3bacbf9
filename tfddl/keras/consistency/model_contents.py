"""The optimizers and variables that a model holds."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.distributed.sharded_optimizer import is_sharded
from tfddl.keras.distributed.status import all_settings
from tfddl.keras.keras2 import optimizer_state
from tfddl.ops.compression import StatefulCompressor
from tfddl.ops.variables import whole_of


def optimizers_of(model: Any) -> Iterator[Any]:
    """`model.optimizer`, and other optimizers that the model or a model inside of it holds, as a GAN's does."""
    return (optimizer for _, optimizer in named_optimizers(model))


def named_optimizers(model: Any) -> Iterator[tuple[str, Any]]:
    """The optimizers of the model, each with the attribute that holds it: `optimizer`, `optimizers[1]`.

    A `train_step` of the user's own may use the optimizers of the models inside, `get_layer('generator').optimizer`.
    """
    candidates = _held_by(model)
    if not _compat.trains_with_stock_step(model):
        for inner in getattr(model, "_flatten_layers", tuple)():
            if inner is not model and isinstance(inner, _compat.keras().Model):
                candidates += [(f"get_layer({inner.name!r}).{name}", held) for name, held in _held_by(inner)]
    seen = set()
    for name, candidate in candidates:
        if candidate is not None and id(candidate) not in seen and _compat.is_keras_optimizer(candidate):
            seen.add(id(candidate))
            yield name, candidate


def _held_by(holder: Any) -> list[tuple[str, Any]]:
    """The attributes of a model and the items of its containers, by name."""
    candidates = [("optimizer", getattr(holder, "optimizer", None))]
    for name, value in sorted(vars(holder).items(), key=_is_roundabout):
        if isinstance(value, dict):
            candidates += [(f"{name}[{key!r}]", held) for key, held in value.items()]
        elif isinstance(value, (list, tuple)):
            candidates += [(f"{name}[{index}]", held) for index, held in enumerate(value)]
        else:
            candidates.append((name, value))
    return candidates


def _is_roundabout(attribute: tuple[str, Any]) -> tuple[bool, bool]:
    """Sorts Keras' own attributes and containers last: they hold the same optimizers a second time."""
    name, value = attribute
    return isinstance(value, (dict, list, tuple)), name.startswith("_")


def sharded_optimizers(model: Any) -> list[Any]:
    """The optimizers of the model whose state is, or will be, divided among several ranks: see `sharded_among`."""
    return sharded_among(optimizers_of(model))


def sharded_among(optimizers: Iterable[Any]) -> list[Any]:
    """The optimizers whose state is, or will be, divided among several ranks, without the LossScaleOptimizer around them.

    Raises:
        ValueError: One is a member of a MultiOptimizer.
    """
    found = list(map(_compat.innermost, optimizers))
    for each in found:
        if any(map(is_sharded, _compat.members_of(each))):
            raise ValueError(
                "A MultiOptimizer holds the state of its members whole: use hvd.DistributedOptimizer on the MultiOptimizer. "
                f"Received: a ShardedOptimizer as a member of {each!r}"
            )
    return list(filter(is_sharded, found))


def finalize_layers(model: Any) -> None:
    """Lets Normalization layers compute with the values that their variables were given, as Keras' load_weights does."""
    for layer in getattr(model, "_flatten_layers", tuple)():
        if isinstance(layer, _compat.keras().layers.Normalization):
            layer.finalize_state()


def ends_with_averages(model: Any) -> bool:
    """Whether `fit` ends with the moving averages of the weights, which Keras gives the model before `on_train_end`."""
    optimizer = _compat.innermost(getattr(model, "optimizer", None))
    return any(getattr(each, "use_ema", False) for each in _compat.members_of(optimizer) or [optimizer])


def can_train_on(model: Any) -> bool:
    """Whether the weights that are trained are finite, and the state of the optimizers holds no NaN."""
    slots = [slot for each in optimizers_of(model) for slot in state_of(each, model.variables)]
    finite = (tf.reduce_all(tf.math.is_finite(each)) for each in _floating(model.trainable_variables))
    return all(finite) and not any(tf.reduce_any(tf.math.is_nan(each)) for each in _floating(slots))


def _floating(variables: Iterable[Any]) -> Iterator[tf.Tensor]:
    return (value for value in map(tf.convert_to_tensor, variables) if value.dtype.is_floating)


def build_optimizer(model: Any) -> None:
    """Makes the missing variables of `model.optimizer`, if the model is built."""
    optimizer = getattr(model, "optimizer", None)
    if _compat.is_keras_optimizer(optimizer) and model.built and model.trainable_variables:
        _compat.build_optimizer(optimizer, model.trainable_variables)


def build_members(model: Any) -> None:
    """Builds a MultiOptimizer of Keras to which a function was given: it has no members before, distributed or not."""
    if has_unknown_members(getattr(model, "optimizer", None)) and _compat.trains_with_stock_step(model):
        build_optimizer(model)


def has_unknown_members(optimizer: Any) -> bool:
    """Whether the optimizer is a MultiOptimizer of Keras that has not yet asked its function for members."""
    inner = _compat.innermost(optimizer)
    return _compat.has_inner_optimizers(inner) and not inner._inner_optimizers


def is_built_by_step(model: Any) -> bool:
    """Whether the first step has to make the variables of `model.optimizer`.

    A `train_step` of the user's own may train a `tf.Variable` that the model holds: Keras 3 does not track it.
    """
    optimizer = getattr(model, "optimizer", None)
    if (
        _compat.is_keras_2()
        or _compat.trains_with_stock_step(model)
        or not _compat.is_keras_optimizer(optimizer)
    ):
        return False
    if _compat.is_built(optimizer) or is_sharded(_compat.innermost(optimizer)):
        return False
    return any(isinstance(value, tf.Variable) and value.trainable for value in vars(model).values())


def all_variables(model: Any) -> list[Any]:
    """The variables of the model and of its optimizers, each once, without those that hold a slice of their rank.

    Before the first step there may be none yet, or some. A `train_step` may train some that the model does not track.
    """
    if not _compat.tells_weights(model):
        return []
    variables = list(model.variables)
    for optimizer in optimizers_of(model):
        variables.extend(_compat.trained_variables(_compat.innermost(optimizer)))
        state = state_of(optimizer, model.variables)
        variables.extend(variable for variable in state if whole_of(variable) is None)
    return list({variable_id(variable): variable for variable in variables}.values())


def untracked_variables(model: Any) -> list[tf.Variable]:
    """The variables that the model's optimizers train and the model does not track: a `tf.Variable` in Keras 3."""
    known = set(map(variable_id, model.variables))
    optimizers = map(_compat.innermost, optimizers_of(model))
    trained = (each for optimizer in optimizers for each in _compat.trained_variables(optimizer))
    return [each for each in trained if isinstance(each, tf.Variable) and variable_id(each) not in known]


def state_of(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """The variables of an optimizer that is built.

    Args:
        optimizer: The optimizer.
        variables: Those that it trains, in an order that all ranks share.
    """
    return (
        optimizer_state.variables(optimizer, variables) if _compat.is_keras_2() else list(optimizer.variables)
    )


def is_accumulator(variable: Any) -> bool:
    """Whether a variable of Keras 3 holds sums of gradients that no rank has sent yet."""
    return _compat.path(variable).endswith("gradient_accumulator")


def compressions_of(optimizers: Iterable[Any], given: Any) -> list[StatefulCompressor]:
    """The compressions that keep errors: those of the optimizers, and one more."""
    used = [settings.options.compression for each in optimizers for settings in all_settings(each)]
    found = [*used, given]
    return list({id(each): each for each in found if isinstance(each, StatefulCompressor)}.values())


def variable_id(variable: Any) -> int:
    """Tells variables apart; a Keras variable and the tf.Variable inside have the same one."""
    return id(_compat.tf_variable(variable))
