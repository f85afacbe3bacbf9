"""Short commands that tfddlrun runs beside a job, or `tfddl doctor` to look at this host, and can end at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

from tfddl.launch import signals

_LOOK_S = 0.1
_AT_ONCE = 32


class Children:
    """Runs commands, each in a session of its own. Several threads may share it.

    Args:
        grace: Seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, grace: float = 2.0) -> None:
        self._grace = grace
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(
        self, command: str | list[str], limit: float, environment: Mapping[str, str] | None = None
    ) -> tuple[int | None, str, str]:
        """Runs a command to its end.

        Args:
            command: A list of words, or a text for a shell.
            limit: Seconds that it may take.
            environment: Its variables. Defaults to those of this process.

        Returns:
            Its exit code, or None if it has been ended, and what it has written to stdout and stderr.

        Raises:
            OSError: There is no such command.
        """
        # Not pipes, which a process that the command has left behind would hold open.
        with _file() as said, _file() as errors:
            code = self._run(command, limit, said, errors, environment)
            for file in (said, errors):
                file.seek(0)
            return code, said.read(), errors.read()

    def _run(
        self,
        command: str | list[str],
        limit: float,
        said: TextIO,
        errors: TextIO,
        environment: Mapping[str, str] | None,
    ) -> int | None:
        with self._lock:
            if self._ended:
                return None
            process = subprocess.Popen(
                command,
                shell=isinstance(command, str),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            # While Ctrl-Z stops tfddlrun, the limit goes on, and the command too.
            if process.poll() is None:
                _end(self._grace, process)
                return None
        except KeyboardInterrupt:
            _end(self._grace, process)
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        return None if self._ended else process.returncode

    def end(self) -> None:
        """Ends all commands that run, and runs no more."""
        with self._lock:
            self._ended = True
            running = list(self._running)
        _end(self._grace, *running)


def run_at_once(commands: Sequence[list[str]], limit: float) -> None:
    """Runs commands after the job, at the same time. A signal to tfddlrun ends them.

    Args:
        commands: The commands. One that fails does not matter.
        limit: Seconds that each may take.
    """
    children = Children()
    # Signals that have come before were for the job.
    signals.take()
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(commands)))) as executor:
        runs = [executor.submit(children.run, command, limit) for command in commands]
        while not all(run.done() for run in runs) and not signals.wait_for_signal(_LOOK_S):
            pass
        children.end()


def _file() -> TextIO:
    """A file in memory."""
    return open(os.memfd_create("tfddlrun"), "w+", errors="replace")


def _end(grace: float, *processes: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + grace
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
