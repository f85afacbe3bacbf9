"""Generators: rank 0 reads its own, and all ranks get its batches.

tf.data calls a generator ahead of the training, by a number of batches that differs by rank. So that all ranks run the
same collectives, each step of the training allows one batch more.
"""

import threading
from collections.abc import Iterator
from typing import Any

from tfddl import _compat
from tfddl.keras.consistency.callback_list import Callback
from tfddl.ops.objects import broadcast_object
from tfddl.runtime import basics


class SharedGenerator(Callback):
    """The batches of rank 0's generator, on all ranks, and the callback that allows them.

    Args:
        generator: The program's generator, which only rank 0 reads.
        name: Names the collective.
        steps_per_execution: int, batches for each call of the train function.
    """

    def __init__(self, generator: Iterator[Any], name: str, steps_per_execution: int) -> None:
        super().__init__()
        self._generator, self._name, self._steps = generator, name, steps_per_execution
        # Keras looks at the first batches to learn their structure.
        self._allowed = threading.Semaphore(_compat.batches_before_training())
        self._ended = False

    def batches(self) -> Iterator[Any]:
        """The generator to train on."""
        while True:
            self._allowed.acquire()
            if self._ended:
                return
            found = (next(self._generator, None),) if basics.rank() == 0 else None
            (batch,) = broadcast_object(found, 0, name=self._name)
            if batch is None:
                return
            yield batch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Allows the batches of the next step."""
        self._allowed.release(self._steps)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the generator: at the end of `fit` TensorFlow waits for the thread that reads it."""
        self.close()

    def close(self) -> None:
        """Ends the generator."""
        self._ended = True
        self._allowed.release()
