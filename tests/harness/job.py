"""One mpirun and everything below it: started together, ended together, nothing left."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

MARKER = "TFDDL_TEST_JOB"
"""Every process of a job inherits this variable: it finds them, also those that left their process group."""

LEFT_LIMIT = 30.0
"""Seconds that the processes of a job get to be gone once its command has ended."""

RANK_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
}

REPOSITORY = Path(__file__).resolve().parents[2]

SEARCH_PATH = f"{Path(__file__).resolve().parent / 'fast'}{os.pathsep}{REPOSITORY}"
"""Where the processes of jobs look for modules first: this checkout, and what makes them start fast."""


class Marked:
    """Processes that inherit a marker from the first one."""

    def __init__(self) -> None:
        self._marker = uuid.uuid4().hex
        self.environment = {MARKER: self._marker}

    def processes(self) -> dict[int, str]:
        """Every live process of this job: id and command line. Zombies do not count."""
        needle = f"{MARKER}={self._marker}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # It may end while we look, or be another user's.
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def leftovers(self, limit: float = LEFT_LIMIT) -> dict[int, str]:
        """The processes that are still there after `limit` seconds; the command has ended."""
        deadline = time.monotonic() + limit
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def kill_processes(self) -> None:
        """Kills all processes, also those that start meanwhile."""
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


class Job(Marked):
    """A command with a directory of its own and its output in a file there."""

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory(prefix="tfddl-test-", ignore_cleanup_errors=True)
        self.directory = Path(self._temporary.name)
        self.log = self.directory / "output.txt"
        shared = tempfile.gettempdir() if not os.access("/dev/shm", os.W_OK) else "/dev/shm"
        self._shared = tempfile.TemporaryDirectory(
            prefix="tfddl-test-", dir=shared, ignore_cleanup_errors=True
        )
        self.segments = Path(self._shared.name)
        self._records = tempfile.TemporaryDirectory(prefix="tfddl-test-", ignore_cleanup_errors=True)
        self.records = Path(self._records.name)

    def start(self, command: list[str], environment: Mapping[str, str | None] | None = None) -> None:
        """Starts the command.

        Args:
            command: The command line.
            environment: Variables added to this process's; a value of `None` removes one.
        """
        own = {  # Killed ranks cannot remove what MPI made: it goes where close() does.
            **self.environment,
            "TMPDIR": str(self.directory),
            "OMPI_MCA_btl_sm_backing_directory": str(self.segments),
            "TFDDL_DUMP_DIR": str(self.records),
        }
        variables = {**os.environ, **RANK_ENVIRONMENT, **own, **(environment or {})}
        search = [SEARCH_PATH, variables.get("PYTHONPATH") or ""]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, search))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in variables.items() if value is not None},
                start_new_session=True,
            )

    def output(self, start: int = 0) -> str:
        """What the job wrote from byte `start` on."""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def wait(self, limit: float) -> int | None:
        """The exit code of the command, or `None` when it still runs after `limit` seconds."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Ends the command, politely first so that mpirun cleans up, then all that is left of it."""
        if self.process.poll() is None:
            self.process.terminate()
            self.wait(2.0)
        self.kill_processes()
        self.process.wait()

    def close(self) -> None:
        """Kills what still runs and removes the job's files."""
        self.kill()
        self._temporary.cleanup()
        self._shared.cleanup()
        self._records.cleanup()
