"""Random load beside a job: a process that computes and sleeps for random times."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_LOAD = """
import random, time
while True:
    end = time.monotonic() + random.random() * 0.2
    while time.monotonic() < end:
        pass
    time.sleep(random.random() * 0.1)
"""


@contextlib.contextmanager
def random_load() -> Iterator[None]:
    """Keeps one core busy, with pauses."""
    process = subprocess.Popen([sys.executable, "-c", _LOAD])
    try:
        yield
    finally:
        process.kill()
        process.wait()
