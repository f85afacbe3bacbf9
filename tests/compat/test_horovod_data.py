"""Loaders of `horovod.data`."""

import importlib.util
import threading

import pytest

from tests.harness.job import REPOSITORY

TIMEOUT = 20
# Without its package, which changes Keras in the whole process.
SPEC = importlib.util.spec_from_file_location("loaders", REPOSITORY / "tfddl/compat/horovod/data.py")
loaders = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(loaders)


class Numbers(loaders.BaseDataLoader):
    """The numbers from 0 to 99."""

    def __len__(self):
        return 100

    def _iterate(self):
        yield from range(100)


class Ahead(loaders.AsyncDataLoaderMixin, Numbers):
    """The same, read ahead."""


def within_time(function):
    """The result of a function that may wait without end."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive(), "The loop waits without end."
    assert results, "The function has raised an exception, which a warning shows."
    return results[0]


def all_of(loader):
    """The batches of a loop, after which all threads end."""

    def read():
        batches = list(loader)
        loader.close_async_loader()
        return batches

    return within_time(read)


@pytest.mark.parametrize("size", [0, 4, 200])
def test_two_loops_over_one_loader(size):
    loader = Ahead(async_loader_queue_size=size)
    assert within_time(lambda: list(zip(loader, loader, strict=True))) == [(i, i) for i in range(100)]
    assert within_time(lambda: sum(1 for _ in loader for _ in loader)) == 100 * 100
    assert all_of(loader) == list(range(100))


@pytest.mark.parametrize("size", [4, 200])
def test_close_in_the_middle_of_a_loop(size):
    threads = threading.active_count()
    loader = Ahead(async_loader_queue_size=size)
    first, second = iter(loader), iter(loader)
    assert next(first) == next(second) == 0
    within_time(loader.close_async_loader)
    assert threading.active_count() == threads
    assert within_time(lambda: list(first) + list(second)) == []
    assert all_of(loader) == list(range(100))


def test_a_loop_that_breaks_off_ends_its_thread():
    loader = Ahead(async_loader_queue_size=4)
    for _ in range(5):
        for batch in loader:
            if batch == 3:
                break
    assert len(loader._readers) == 1, "Each loop removes the ended ones before it."
    reader = loader._readers[0]
    reader._thread.join(TIMEOUT)
    assert not reader._thread.is_alive()
