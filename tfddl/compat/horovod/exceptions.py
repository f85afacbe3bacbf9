"""Horovod's exceptions, and the errors of TensorFlow that its operations raise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one for which Horovod was compiled."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} is {version}, and was {installed_version} when Horovod was installed")
        self.name, self.version, self.installed_version = name, version, installed_version


class WrongArgument(tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError, ValueError, TypeError):
    """tfddl refuses an argument, in Python, before anything is sent.

    In Horovod the operation, or Python, refuses it with one of these errors, so a program may catch any of the four.
    """

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


def with_errors_of_the_operation(function: _Function) -> _Function:
    """Makes a collective raise the errors of TensorFlow for arguments that tfddl refuses in Python.

    A program may read the `__defaults__` of the collective, and change them.
    """
    inner: Any = function

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if outer.__defaults__ is not inner.__defaults__:
            inner.__defaults__ = outer.__defaults__
        try:
            return function(*arguments, **options)
        except tf.errors.OpError:
            raise
        except (TypeError, ValueError) as error:
            raise WrongArgument(str(error)) from error

    outer: Any = call
    # Python itself uses the defaults for named parameters alone, and `call` has none.
    outer.__defaults__ = inner.__defaults__
    return cast(_Function, call)
