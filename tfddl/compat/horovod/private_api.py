"""The private API of Horovod's optimizers on which some programs depend: the module of the class, and private methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients.reduction import reduce_missing
from tfddl.keras.distributed.distribute import distribute
from tfddl.keras.distributed.dynamic_subclass import base_class, is_subclassed, set_class
from tfddl.keras.distributed.settings import settings_of
from tfddl.keras.distributed.status import passes_done

MODULE = "horovod._keras"
"""The module of the classes of Horovod's optimizers. Some programs tell by its name that an optimizer is distributed."""


def add_private_api(optimizer: Any) -> Any:
    """Gives a distributed optimizer of Keras the module and the methods of one of Horovod's, and returns it."""
    inner = _compat.innermost(optimizer)
    if is_subclassed(inner) and not issubclass(type(inner), PrivateApi):
        ours, public = type(inner), _public_class(inner)
        names = {"__module__": MODULE, "__qualname__": ours.__qualname__, "_horovod_class": public}
        names["from_config"] = staticmethod(public.from_config)  # type: ignore[attr-defined]
        if hasattr(ours, "apply"):
            names["apply"] = _apply
        set_class(inner, type(ours.__name__, (PrivateApi, ours), names))
    return optimizer


def restore_private_api(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Makes the copy of a pickled or copied optimizer."""
    return add_private_api(function(*arguments))


class PrivateApi:
    """In front of the class of a distributed optimizer."""

    _horovod_class: type

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The user's class, with Horovod's module."""
        return self._horovod_class

    def __reduce__(self) -> Any:
        """Pickles as tfddl does; the copy gets the methods again."""
        base: Any = super()
        return restore_private_api, tuple(base.__reduce__()[:2])

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copies as tfddl does; the copy gets the methods again."""
        base: Any = super()
        if hasattr(base, "__deepcopy__"):
            return add_private_api(base.__deepcopy__(memo))
        return restore_private_api(*base.__reduce__()[:2])

    @property
    def _agg_helper(self) -> AggregationHelper | None:
        passes = settings_of(self).backward_passes_per_step
        return AggregationHelper(self) if passes > 1 else None

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """The gradients of a loss, combined over all ranks; with their variables.

        Args:
            loss: A function, or a tensor that `tape` has recorded.
            var_list: Variables, or a function that returns them.
            grad_loss: The cotangent of the loss.
            tape: A `tf.GradientTape`. Defaults to a new one.
        """
        if tape is None:
            tape = tf.GradientTape()
        base: Any = super()
        if hasattr(base, "_compute_gradients"):  # Keras 2, or a method of the user's class
            pairs = list(base._compute_gradients(loss, var_list, grad_loss, tape=tape))
        elif hasattr(base, "compute_gradients"):
            pairs = list(base.compute_gradients(loss, var_list, tape=tape))
        else:
            if callable(loss):
                with tape:
                    loss = loss()
            variables = list(var_list() if callable(var_list) else var_list)
            gradients = tape.gradient(loss, [_compat.tf_variable(each) for each in variables], grad_loss)
            pairs = list(zip(gradients, variables, strict=True))
        reduced = self._allreduce([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return [(gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)]

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """See `_compute_gradients`."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def get_gradients(self, loss: Any, params: Sequence[Any]) -> list[Any]:
        """The gradients of a tensor in a graph of TF1, combined over all ranks."""
        base: Any = super()
        gradients = base.get_gradients if hasattr(base, "get_gradients") else tf.gradients
        return self._allreduce(gradients(loss, params), params)

    def _allreduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Combines gradients, unless `apply_gradients` does it after some passes."""
        passes = settings_of(self).backward_passes_per_step
        return list(grads) if passes > 1 else self._allreduce_grads(grads, variables)

    def _allreduce_grads(
        self, grads: Sequence[Any], variables: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list[Any]:
        """Combines gradients. `use_generic_names` changes nothing."""
        settings = settings_of(self)
        return reduce_missing(
            grads, variables, owner=settings.owner, options=settings.options, local=settings.local
        )


def _apply(optimizer: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
    """`apply` of Keras 3. Some programs give an optimizer a method `_allreduce` of their own, which Horovod would call."""
    if {"_allreduce", "_allreduce_grads"} & vars(optimizer).keys():
        known = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        trainable_variables = list(known)
        grads = optimizer._allreduce(list(grads), trainable_variables)
    base: Any = super(PrivateApi, optimizer)
    return base.apply(grads, trainable_variables)


class AggregationHelper:
    """The state of `backward_passes_per_step`."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def counter(self) -> tf.Tensor:
        """How many passes have been added up since the last update: a scalar of int32."""
        return tf.constant(passes_done(self._optimizer), tf.int32)


class _PublicClassMeta(type):
    """The class of the classes that `optimizer.__class__` returns.

    They are equal to the user's class, so that Keras finds the name under which that class is registered, and writes
    this name to a file.
    """

    _horovod_base: type

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls._horovod_base

    def __hash__(cls) -> int:
        return hash(cls._horovod_base)


def _public_class(optimizer: Any) -> type:
    base: Any = base_class(optimizer)
    settings = settings_of(optimizer)

    def from_config(config: dict[str, Any], **options: Any) -> Any:
        return add_private_api(distribute(base.from_config(config, **options), settings.fresh()))

    # Keras 2 finds the public name of a class in attributes of the class itself.
    names = {name: value for name, value in vars(base).items() if name.startswith(("_keras_api", "_tf_api"))}
    names |= {"__module__": MODULE, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    names |= {"from_config": staticmethod(from_config), "_horovod_base": base}
    meta: Callable[..., type] = _PublicClassMeta
    if not issubclass(_PublicClassMeta, type(base)):
        meta = type("_PublicClassMeta", (_PublicClassMeta, type(base)), {})
    return meta(base.__name__, (base,), names)
