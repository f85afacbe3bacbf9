"""Generators: rank 0 reads its own, and all ranks get its batches.

tf.data calls a generator ahead of the training, by a number of batches that differs by rank. So that all ranks run the
same collectives, each step of the training fetches one batch, in a thread that tf.data does not wait in.
"""

import functools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency.callback_list import Callback
from tfddl.ops.objects import broadcast_object
from tfddl.runtime import basics


class SharedGenerator(Callback):
    """The batches of rank 0's generator, on all ranks, and the callback that fetches them.

    Args:
        generator: The program's generator, which only rank 0 reads.
        name: Names the collective.
        steps_per_execution: int, batches for each call of the train function.
    """

    def __init__(self, generator: Iterator[Any], name: str, steps_per_execution: int) -> None:
        super().__init__()
        self._generator, self._name, self._steps = generator, name, steps_per_execution
        self._is_over = False
        self._fetched: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def batches(self) -> Iterator[Any]:
        """The generator to train on.

        Raises:
            RuntimeError: On every rank but 0, when rank 0's generator raises; on rank 0 its own exception.
        """
        # Keras looks at the first batches to learn their structure, before the first step.
        self._allow(_compat.batches_before_training())
        while True:
            batch, error = self._fetched.get()
            if error is not None:
                raise error
            if batch is None:
                return
            yield batch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Fetches the batches of the next step."""
        self._allow(self._steps)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the generator, after the batches that all ranks fetch."""
        done = threading.Event()
        _tasks().put(done.set)
        done.wait()
        self.close()

    def close(self) -> None:
        """Ends the generator at once: at the end of `fit` TensorFlow waits for the thread that reads it."""
        self._fetched.put((None, None))

    def _allow(self, batches: int) -> None:
        for _ in range(batches):
            _tasks().put(self._fetch)

    def _fetch(self) -> None:
        """Fetches the next batch, None behind the last one. All ranks call it equally often."""
        if self._is_over:
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
        self._fetched.put((batch, error))

    def _next(self) -> tuple[Any, Exception | None]:
        try:
            return next(self._generator, None), None
        except Exception as error:
            return None, error
        except BaseException as error:  # sys.exit() would end this thread alone
            return None, RuntimeError(
                f"The generator ended the program: let it return instead. Received: {error!r}"
            )


@functools.cache
def _tasks() -> queue.SimpleQueue[Callable[[], None]]:
    """The tasks of one thread, in order, so that the batches of one `fit` come before those of the next."""
    tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            tasks.get()()

    threading.Thread(target=work, name="tfddl-generator", daemon=True).start()
    return tasks
