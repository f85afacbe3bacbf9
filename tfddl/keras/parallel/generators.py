"""Generators: rank 0 reads its own, and all ranks get its batches.

tf.data calls a generator ahead of the training, by a number of batches that differs by rank. So that all ranks run the
same collectives, each step of the training fetches one batch, in a thread that tf.data does not wait in.
"""

import functools
import inspect
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import GeneratorType
from typing import Any
from weakref import WeakSet

from tfddl import _compat
from tfddl.keras.consistency.callback_list import Callback, callbacks_of
from tfddl.keras.parallel import seeds
from tfddl.ops.objects import broadcast_object
from tfddl.runtime import basics

# Batches, and None or an exception behind the last one.
_Fetched = queue.SimpleQueue[tuple[Any, Exception | None]]


class SharedGenerator(Callback):
    """The batches of rank 0's generator, on all ranks, and the callback of `fit` that fetches them.

    Args:
        generator: The program's generator, which only rank 0 reads.
        name: Names the collective.
        steps_per_execution: int, batches for each call of the train or the test function.
    """

    def __init__(self, generator: Iterator[Any], name: str, steps_per_execution: int) -> None:
        super().__init__()
        self._generator, self._name, self._steps = generator, name, steps_per_execution
        self._is_over = False
        self._fetched: _Fetched = queue.SimpleQueue()

    def batches(self) -> Iterator[Any]:
        """The generator to give to Keras.

        Raises:
            RuntimeError: On every rank but 0, when rank 0's generator raises; on rank 0 its own exception.
        """
        # Keras looks at the first batches to learn their structure, before the first step.
        self._allow(_compat.batches_before_training())
        yield from _batches_of(self._fetched)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the generator, after the batches that all ranks fetch; it has drawn random numbers on rank 0 alone."""
        done = threading.Event()
        _tasks().put(done.set)
        done.wait()
        seeds.take_states_of_rank_0()
        self.close()

    def close(self) -> None:
        """Ends the generator at once: at the end of `fit` TensorFlow waits for the thread that reads it."""
        self._fetched.put((None, None))

    def _allow_step(self, *_: Any, **__: Any) -> None:
        """Fetches the batches of the next step."""
        self._allow(self._steps)

    def _allow(self, batches: int) -> None:
        for _ in range(batches):
            _tasks().put(functools.partial(self._fetch, self._fetched))

    def _fetch(self, fetched: _Fetched) -> None:
        """Fetches the next batch, None behind the last one. All ranks call it equally often."""
        if self._is_over:
            fetched.put((None, None))
            return
        batch, error, text = None, None, None
        try:
            if basics.rank() == 0:
                batch, error = self._next()
                text = None if error is None else f"{type(error).__name__}: {error}"
            batch, text = broadcast_object((batch, text), name=self._name)
            if text and error is None:
                error = RuntimeError(
                    f"The generator of rank 0 raised: see rank 0's traceback. Received: {text}"
                )
        except Exception as failure:  # the job has failed, or the batch cannot be pickled
            error = failure
        self._is_over = batch is None or error is not None
        fetched.put((batch, error))

    def _next(self) -> tuple[Any, Exception | None]:
        try:
            return next(self._generator, None), None
        except Exception as error:
            return None, error
        except BaseException as error:  # sys.exit() would end this thread alone
            return None, RuntimeError(
                f"The generator ended the program: let it return instead. Received: {error!r}"
            )


class TrainingGenerator(SharedGenerator):
    """The batches that `fit` trains on."""

    on_train_batch_begin = SharedGenerator._allow_step


class EvaluationGenerator(SharedGenerator):
    """The batches of `evaluate` or `predict`."""

    on_test_batch_begin = on_predict_batch_begin = SharedGenerator._allow_step
    on_test_end = on_predict_end = SharedGenerator.on_train_end


class ValidationGenerator(SharedGenerator):
    """The batches of the validations of `fit`.

    Keras begins each validation with the batches at which it has looked, and loses those that tf.data has read ahead at its
    end. Here tf.data reads no batch ahead, so that none is lost.
    """

    def __init__(self, generator: Iterator[Any], name: str, steps_per_execution: int) -> None:
        super().__init__(generator, name, steps_per_execution)
        self._first: list[Any] = []
        self._known = 0  # how many of these are left for this validation

    def batches(self) -> Iterator[Any]:
        """The generator to give to Keras, which ends behind the batches at which Keras looks."""
        for batch in itertools.islice(super().batches(), _compat.batches_before_training()):
            self._first.append(batch)
            yield batch

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins a validation."""
        self._fetched, self._known = queue.SimpleQueue(), len(self._first)
        _compat.validate_with(self.model, functools.partial(self._of_one_validation, self._fetched))

    def on_test_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Fetches the batches of the next step."""
        known = min(self._known, self._steps)
        self._known -= known
        self._allow(self._steps - known)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the thread that reads ahead, for which TensorFlow waits."""
        self.close()

    def _of_one_validation(self, fetched: _Fetched) -> Iterator[Any]:
        yield from self._first
        yield from _batches_of(fetched)


def _batches_of(fetched: _Fetched) -> Iterator[Any]:
    while True:
        batch, error = fetched.get()
        if error is not None:
            raise error
        if batch is None:
            return
        yield batch


@functools.cache
def _tasks() -> queue.SimpleQueue[Callable[[], None]]:
    """The tasks of one thread, in order, so that the batches of one `fit` come before those of the next."""
    tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            tasks.get()()

    threading.Thread(target=work, name="tfddl-generator", daemon=True).start()
    return tasks


# The generators that `fit` has read: on rank 0 they have advanced, on the others they have not.
_ADVANCED: WeakSet[Iterator[Any]] = WeakSet()


def share(call: inspect.BoundArguments) -> list[SharedGenerator]:
    """Has rank 0 read the generators among the arguments of `fit`."""
    shared: list[SharedGenerator] = []
    for argument, kind in (("x", TrainingGenerator), ("validation_data", ValidationGenerator)):
        data = call.arguments.get(argument)
        if isinstance(data, GeneratorType):
            _ADVANCED.add(data)
            shared.append(_share(call, argument, kind))
    return shared


@contextmanager
def advanced_shared(call: inspect.BoundArguments) -> Iterator[None]:
    """Has rank 0 read the generator among the arguments of `evaluate` or `predict`, if `fit` has read it before."""
    data = call.arguments.get("x")
    if not isinstance(data, GeneratorType) or data not in _ADVANCED:
        yield
        return
    shared = _share(call, "x", EvaluationGenerator)
    call.arguments["callbacks"] = [shared, *callbacks_of(call.arguments)]
    try:
        yield
    finally:
        shared.close()


def _share(call: inspect.BoundArguments, argument: str, kind: type[SharedGenerator]) -> SharedGenerator:
    """Gives a method of a model the batches of rank 0's generator."""
    steps = _compat.steps_per_execution(call.arguments["self"])
    shared = kind(call.arguments[argument], f"DataParallel.{kind.__name__}", steps)
    call.arguments[argument] = shared.batches()
    return shared
