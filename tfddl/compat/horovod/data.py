"""`horovod.data`: loaders of batches, of which one reads ahead in a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

_END = object()


class BaseDataLoader:
    """The base of a loader of batches. A subclass has `__len__` and `_iterate`."""

    def __len__(self) -> int:
        """The number of batches."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yields the batches."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Changes a batch before it is yielded."""
        return batch


class AsyncDataLoaderMixin:
    """Reads batches ahead in a thread: `class Loader(AsyncDataLoaderMixin, MyLoader)`.

    Args:
        async_loader_queue_size: How many batches wait at most; 0 for no thread.
        debug_data_loader: Changes nothing.
        *args: Arguments of the loader.
        **kwargs: Arguments of the loader.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self._readers: list[_Reader] = []
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        loader: Any = self
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        for ended in [each for each in self._readers if each.ended]:
            self._close(ended)
        reader = _Reader(loader._iterate(), self.async_loader_queue_size)
        self._readers.append(reader)
        try:
            for batch in reader:
                yield loader._process_batch(batch)
        finally:
            reader.end()

    def close_async_loader(self) -> None:
        """Ends all threads and the loops that read from them, also in the middle of the data."""
        while self._readers:
            self._close(self._readers[0])

    def _close(self, reader: _Reader) -> None:
        self._readers.remove(reader)
        reader.close()


class _Reader:
    """A thread that reads an iterator into a queue."""

    def __init__(self, batches: Iterator[Any], size: int) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(size)
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(batches,), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while (batch := self._queue.get()) is not _END:
            yield batch
        if self._error is not None:
            raise self._error

    @property
    def ended(self) -> bool:
        """Whether the loop over the batches has ended."""
        return self._closed.is_set()

    def end(self) -> None:
        """Tells the thread to end, without waiting: an interpreter that exits has stopped its threads already."""
        self._closed.set()

    def close(self) -> None:
        """Ends the thread, and a loop over the batches."""
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(_END)

    def _read(self, batches: Iterator[Any]) -> None:
        try:
            for batch in batches:
                self._put(batch)
                if self._closed.is_set():
                    return
        except BaseException as error:  # the reading thread raises it
            self._error = error
        self._put(_END)

    def _put(self, item: Any) -> None:
        while not self._closed.is_set():
            try:
                return self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
