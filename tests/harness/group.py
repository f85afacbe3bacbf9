"""A group of ranks that runs one case after another, and is killed and replaced when one goes wrong."""

import contextlib
import os
import signal
import socket
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests.harness.case import DIED, FAILED, HUNG, PASSED, SKIPPED, Case, Outcome, stack_file
from tests.harness.job import Job
from tests.harness.mpirun import mpirun_command
from tests.harness.start import python_command

START_LIMIT = 180.0
"""Seconds until all ranks have called: mpirun and MPI_Init, no TensorFlow yet."""

STOP_LIMIT = 240.0  # of which a busy machine takes nearly all
"""Seconds for a clean end: tfddl's and MPI's exit handlers run in it."""

GRACE = 10.0
"""Seconds that the others get once one rank has failed: they mostly wait for it and never end."""


STACK_LIMIT = 10.0
"""Seconds that a rank gets to write its stacks: faulthandler does, in C, from the signal handler."""


class RankGroup:
    """N rank processes under one mpirun.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._job: Job | None = None
        self._connections: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}

    def run(self, case: Case, limit: float) -> list[Outcome]:
        """Runs a case on every rank.

        The ranks are replaced before the next case unless all agree on how this one ended well: a rank that
        failed may have left the others in a collective that it never entered.

        Args:
            case: What to run.
            limit: Seconds until ranks that have not answered are called hung.

        Returns:
            One outcome for each rank, in rank order.
        """
        job = self._start()
        mark = job.log.stat().st_size
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # A rank that is gone is reported by _collect.
                connection.send(case)
        outcomes = self._collect(limit)
        kinds = {outcome.kind for outcome in outcomes}
        self.written = job.output(mark)
        if kinds not in ({PASSED}, {SKIPPED}):
            self.kill()
        return outcomes

    def _collect(self, limit: float) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        ranks = {connection: rank for rank, connection in self._connections.items()}
        start = time.monotonic()
        deadline = start + limit
        while ranks and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(ranks), left):
                rank = ranks.pop(connection)
                try:
                    outcomes[rank] = connection.recv()
                except (EOFError, OSError):
                    outcomes[rank] = Outcome(rank, DIED, "The process ended.", time.monotonic() - start)
                if outcomes[rank].kind in (FAILED, DIED):
                    deadline = min(deadline, time.monotonic() + GRACE)
        for rank, stacks in self._stacks(sorted(ranks.values())).items():
            outcomes[rank] = Outcome(rank, HUNG, stacks, time.monotonic() - start)
        return [outcomes[rank] for rank in sorted(outcomes)]

    def _stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where the Python threads of these ranks stand."""
        assert self._job is not None
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGUSR1)
        return {rank: _whole(stack_file(self._job.directory, rank)) or "no stack" for rank in ranks}

    def _start(self) -> Job:
        if self._job is not None:
            return self._job
        job = self._job = Job()
        address = str(job.directory / "socket")
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(address)
            listener.listen(self.size)
            worker = python_command(["-m", "tests.harness.worker", address, str(job.directory)])
            job.start(mpirun_command(self.size, worker))
            self._accept(job, listener)
        return job

    def _accept(self, job: Job, listener: socket.socket) -> None:
        deadline = time.monotonic() + START_LIMIT
        listener.settimeout(0.2)
        while len(self._connections) < self.size:
            with contextlib.suppress(TimeoutError):
                connection = Connection(listener.accept()[0].detach())
                rank, self._pids[rank] = connection.recv()
                self._connections[rank] = connection
            code = job.process.poll()
            if code is not None or time.monotonic() > deadline:
                why = f"not there after {START_LIMIT:.0f} s" if code is None else f"mpirun ended with {code}"
                output = job.output()
                self.kill()
                raise RuntimeError(f"{self.size} ranks did not start: {why}\n{output}")

    def stop(self) -> None:
        """Ends the ranks as a user's script ends, and raises when that does not go well."""
        if self._job is None:
            return
        job = self._job
        for connection in self._connections.values():
            connection.send(None)
        code = job.wait(STOP_LIMIT)
        stacks = self._stacks(sorted(self._pids)) if code is None else {}
        left = job.leftovers() if code is not None else {}
        output = job.output()
        self.kill()
        if code != 0 or left:
            how = "still there" if code is None else f"exit code {code}, left over: {left}"
            raise RuntimeError(f"{self.size} ranks did not end cleanly: {how}\n{stacks}\n{output[-4000:]}")

    def kill(self) -> None:
        """Ends the ranks at once; the next case starts new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._pids.clear()
        if self._job is not None:
            self._job.close()
            self._job = None


def _whole(path: Path) -> str:
    """The text of a file that is being written, once it has stopped growing."""
    deadline = time.monotonic() + STACK_LIMIT
    text, before = "", None
    while (not text or text != before) and time.monotonic() < deadline:
        time.sleep(0.3)
        text, before = path.read_text(), text
    return text


class GroupPool:
    """At most one living group: two groups would share the machine's few cores."""

    def __init__(self) -> None:
        self._group: RankGroup | None = None

    def get(self, size: int) -> RankGroup:
        """The group of this size; one of another size is ended first."""
        if self._group is None or self._group.size != size:
            self.close()
            self._group = RankGroup(size)
        return self._group

    def close(self) -> None:
        """Ends the living group."""
        group, self._group = self._group, None
        if group is not None:
            group.stop()
