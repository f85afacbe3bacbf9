"""Lets Keras 3 take the spellings of Keras 2 that most programs for Horovod have, each with a warning.

| spelling | instead of |
|---|---|
| `optimizer.variables()` | `optimizer.variables` |
| `SGD(lr=0.1)`, also beside `learning_rate=`: `lr` wins | `SGD(learning_rate=0.1)` |
| `optimizer.lr`, also to set it | `optimizer.learning_rate` |
| `model.compile(..., experimental_run_tf_function=False)` | `model.compile(...)` |
| `model.fit(..., workers=4)`, `max_queue_size=`, `use_multiprocessing=`, also of evaluate and predict | `model.fit(...)` |
| `model.fit_generator(...)`, `evaluate_generator`, `predict_generator` | `model.fit(...)` |
| `tf.keras.backend.set_value(variable, value)` | `variable.assign(value)` |
| `keras.optimizers.legacy.SGD` | `keras.optimizers.SGD` |
| `variable.ref()` | `variable.value.ref()` |
| `metric.reset_states()` | `metric.reset_state()` |
| `tf.keras.losses.mean_squared_error`, and other functions there and in `tf.keras.metrics` | \
`keras.losses.mean_squared_error` |

Only programs that import `horovod` through this package get them. `TFDDL_KERAS2_SPELLINGS=0` turns them off.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl._environment import switched_on
from tfddl.runtime.log import LIBRARIES, program_frame, warn_once

VARIABLE = "TFDDL_KERAS2_SPELLINGS"
_TF_KERAS = "keras._tf_keras.keras"  # the module behind tf.keras
# Method -> arguments after the generator that programs give by position to Keras 2's method for generators.
_BEFORE_CALLBACKS = {
    "fit": ("steps_per_epoch", "epochs", "verbose"),
    "evaluate": ("steps",),
    "predict": ("steps",),
}


def install_unless_off() -> None:
    """Installs the spellings, once, if Keras 3 is in use and the user has not turned them off."""
    if switched_on(VARIABLE) and not _compat.is_keras_2():
        try:
            keras = _compat.keras()
        except ImportError:
            return  # a program without Keras
        _install(keras)


@functools.cache
def _install(keras: ModuleType) -> None:
    optimizers = keras.optimizers
    for kind in dict.fromkeys(_optimizer_classes(optimizers)):
        _callable_variables(kind)
        _takes_lr(kind)
    optimizers.Optimizer.lr = property(_get_lr, _set_lr)
    _drops(keras.Model, "compile", "experimental_run_tf_function")
    for method, names in _BEFORE_CALLBACKS.items():
        _drops(keras.Model, method, "workers", "max_queue_size", "use_multiprocessing")
        setattr(keras.Model, f"{method}_generator", _with_generator(method, names))
    _sets_variables(importlib.import_module(f"{_TF_KERAS}.backend"), keras.Variable)
    keras.Variable.ref = _ref
    keras.metrics.Metric.reset_states = _reset_states
    for package in ("keras", _TF_KERAS):
        _take_from(optimizers, f"{package}.optimizers.legacy", "keras.optimizers.legacy", "keras.optimizers")
    for part in ("losses", "metrics"):
        _take_from(getattr(keras, part), f"{_TF_KERAS}.{part}", f"tf.keras.{part}", f"keras.{part}")


def _optimizer_classes(optimizers: ModuleType) -> Iterator[type]:
    """Keras' classes, each after its own base classes."""
    for kind in vars(optimizers).values():
        if inspect.isclass(kind) and issubclass(kind, optimizers.Optimizer):
            yield from reversed(kind.__mro__)


class CallableList(list[Any]):
    """The variables of an optimizer, also by a call."""

    def __call__(self) -> CallableList:
        """Returns the list itself."""
        _warn("optimizer.variables()", "optimizer.variables")
        return self


# Keras' trees are those of optree, or of dm-tree, which takes subclasses of list for lists.
with contextlib.suppress(ImportError):
    import optree

    optree.register_pytree_node(
        CallableList,
        lambda variables: (list(variables), None, None),
        lambda _, variables: CallableList(variables),
        namespace="keras",
    )


def _callable_variables(kind: type) -> None:
    plain = vars(kind).get("variables")
    if isinstance(plain, property) and plain.fget is not None:
        getter = plain.fget
        kind.variables = property(lambda self: CallableList(getter(self)))  # type: ignore[attr-defined]


def _takes_lr(kind: Any) -> None:
    plain = vars(kind).get("__init__")
    signature = inspect.signature(plain) if plain is not None else None
    if signature is None or "learning_rate" not in signature.parameters:
        return

    @functools.wraps(plain)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        if "lr" in options:
            _warn(f"{kind.__name__}(lr=...)", f"{kind.__name__}(learning_rate=...)")
            rate = options.pop("lr")
            given = signature.bind_partial(self, *arguments, **options)
            # In Keras 2 lr wins over learning_rate, and may be a tensor, such as optimizer.learning_rate * hvd.size().
            given.arguments["learning_rate"] = rate if callable(rate) else float(np.asarray(rate))
            arguments, options = given.args[1:], given.kwargs
        plain(self, *arguments, **options)

    init.__signature__ = signature  # type: ignore[attr-defined]
    kind.__init__ = init


def _has_own_lr(optimizer: Any) -> bool:
    """Whether the class is the user's, whose attribute `lr` may be anything."""
    kinds = (kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__)
    return next(name for name in kinds if name not in ("tfddl", "horovod")) != "keras"


def _get_lr(optimizer: Any) -> Any:
    if "lr" in vars(optimizer):
        return vars(optimizer)["lr"]
    if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in ("keras", "tensorflow"):
        raise AttributeError("lr")  # they look for an attribute before they set one
    _warn("optimizer.lr", "optimizer.learning_rate")
    return optimizer.learning_rate


def _set_lr(optimizer: Any, value: Any) -> None:
    if _has_own_lr(optimizer):
        vars(optimizer)["lr"] = value
        return
    _warn("optimizer.lr", "optimizer.learning_rate")
    optimizer.learning_rate = value


def _drops(model: Any, method: str, *names: str) -> None:
    """Lets a method take arguments that Keras 3 does not have and that change no result."""
    owner = next(kind for kind in model.__mro__ if method in vars(kind))
    plain = vars(owner)[method]

    @functools.wraps(plain)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        for name in names:
            if name in options:
                _warn(f"{method}(..., {name}=...)", f"{method}(...)")
                del options[name]
        return plain(self, *arguments, **options)

    setattr(owner, method, call)


def _with_generator(method: str, names: tuple[str, ...]) -> Callable[..., Any]:
    def call(self: Any, generator: Any, *arguments: Any, **options: Any) -> Any:
        _warn(f"model.{method}_generator(...)", f"model.{method}(...)")
        given = dict(zip(names, arguments, strict=False))
        return getattr(self, method)(generator, **given, **options)

    return call


def _sets_variables(backend: ModuleType, variable: Any) -> None:
    plain = backend.set_value

    @functools.wraps(plain)
    def set_value(x: Any, value: Any) -> None:
        if isinstance(x, variable):
            _warn("backend.set_value(variable, value)", "variable.assign(value)")
            x.assign(value)
        else:
            plain(x, value)

    backend.set_value = set_value  # type: ignore[attr-defined]


def _ref(variable: Any) -> Any:
    _warn("variable.ref()", "variable.value.ref()")
    return _compat.tf_variable(variable).ref()


def _reset_states(metric: Any) -> None:
    _warn("metric.reset_states()", "metric.reset_state()")
    metric.reset_state()


def _take_from(source: ModuleType, name: str, old: str, new: str) -> None:
    """Gives a module the names of another that it lacks, or that raise an error when they are called."""
    module = importlib.import_module(name)
    for each, value in list(vars(module).items()):
        if getattr(value, "__name__", "") == "LegacyOptimizerWarning":
            delattr(module, each)

    def of_module(each: str) -> Any:
        if each.startswith("_") or each in vars(module) or not hasattr(source, each):
            raise AttributeError(f"module {name!r} has no attribute {each!r}")
        _warn(f"{old}.{each}", f"{new}.{each}")
        return getattr(source, each)

    vars(module)["__getattr__"] = of_module


def _warn(old: str, new: str) -> None:
    warn_once(f"{_line()}: `{old}` is a spelling of Keras 2; in Keras 3 write `{new}`.")


def _line() -> str:
    """File and line of the program that is being run."""
    frame, _ = program_frame()
    if "__autograph_generated_file" in frame.f_code.co_filename:
        return _line_in_autograph()
    return f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"


def _line_in_autograph() -> str:
    """The same in a tf.function, where Python runs a file that AutoGraph has made; operations know the program's lines."""
    with tf.Graph().as_default():
        lines = [(line.filename, line.lineno) for line in tf.no_op().traceback]
    folders = [os.path.dirname(sys.modules[name].__file__ or "") + os.sep for name in LIBRARIES]
    own = [line for line in lines if not line[0].startswith(tuple(folders))]
    name, number = (own or lines)[-1]
    return f"{os.path.relpath(name)}:{number}"
