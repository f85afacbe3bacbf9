"""The worker processes of one adapter, started by tfddlrun. The driver, `tfddl bench`, sends them requests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tfddl.bench.adapters import Adapter
from tfddl.bench.case import Case
from tfddl.bench.worker import SOCKET
from tfddl.launch.hosts import Host

START_LIMIT_S = 180.0
ANSWER_LIMIT_S = 300.0
_END_LIMIT_S = 20.0
_LINES_SHOWN = 15
_PR_SET_PDEATHSIG = 1

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""CPUs only, and one thread for each process."""

_CROWDED = {"OMPI_MCA_mpi_yield_when_idle": "1"}
"""With more ranks than cores: a rank that waits in Open MPI leaves its core to the others."""


class WorkerError(RuntimeError):
    """Workers failed. The message quotes their output."""


class WorkerGroup:
    """All workers of an adapter, asleep between requests.

    Args:
        adapter: An `Adapter`.
        ranks: Number of workers.
        hosts: The hosts of the workers, as in `tfddlrun -H`, all in a lab on this machine. None: this host.

    Raises:
        WorkerError: The workers do not start.
    """

    def __init__(self, adapter: Adapter, ranks: int, hosts: Sequence[Host] = ()):
        self.adapter = adapter
        self._stack = contextlib.ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tfddl-bench-")))
        self._ranks: list[Connection] = []
        self._processes: list[int] = []
        try:
            self._start(ranks, hosts)
        except BaseException:
            self.close()
            raise

    def prepare(self, case: Case) -> bool:
        """Makes the inputs of a case on all ranks. Returns False if the adapter lacks the operation or dtype."""
        return all(self._ask(case))

    def release(self) -> None:
        """Frees the data of the prepared case."""
        self._ask(None)

    def block(self, calls: int) -> tuple[float, int]:
        """Runs a block of the prepared case. Returns seconds a call on the slowest rank, and wrong elements on all ranks."""
        answers = self._ask(calls)
        return max(seconds for seconds, _ in answers), sum(wrong for _, wrong in answers)

    def close(self) -> None:
        """Ends all ranks."""
        self._signal(signal.SIGCONT)
        for rank in self._ranks:
            rank.close()
        self._stack.close()

    def _start(self, ranks: int, hosts: Sequence[Host]) -> None:
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        try:
            listener.bind(str(self._directory / SOCKET))
        except OSError as error:
            raise WorkerError(
                f"{self.adapter.title}: no socket in {self._directory}: set TMPDIR to a directory with a short name. "
                f"Received: {error}"
            ) from None
        listener.listen(ranks)
        log = self._stack.enter_context((self._directory / "output").open("wb"))
        line = [sys.executable, "-m", "tfddl.launch.run", "-np", str(ranks)]
        if hosts:
            line += ["-H", ",".join(f"{host.name}:{host.slots}" for host in hosts)]
        names = [host.name for host in hosts for _ in range(host.slots)] or ["localhost"] * ranks
        addresses = [f"{name}:{port}" for name, port in zip(names, free_ports(ranks), strict=True)]
        line += [sys.executable, "-m", "tfddl.bench.worker", self.adapter.module, str(self._directory)]
        self._process = subprocess.Popen(
            [*line, *addresses],
            stdin=subprocess.DEVNULL,
            process_group=0,  # a Ctrl-C is for the driver alone, which ends the workers
            stdout=log,
            stderr=log,
            env=os.environ | _ENVIRONMENT | (_CROWDED if ranks > len(os.sched_getaffinity(0)) else {}),
            preexec_fn=end_with_driver,
        )
        self._stack.callback(_end, self._process)
        deadline = time.monotonic() + START_LIMIT_S
        said = sorted(self._accept(listener, deadline) for _ in range(ranks))
        self._ranks = [connection for _, _, connection in said]
        self._processes = [process for _, process, _ in said]
        self._answers(deadline)
        self._signal(signal.SIGSTOP)

    def _accept(self, listener: socket.socket, deadline: float) -> tuple[int, int, Connection]:
        while not select.select([listener], [], [], 0.5)[0]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._error("its processes did not start; see its output below")
        connection = Connection(listener.accept()[0].detach())
        return *connection.recv(), connection

    def _ask(self, request: object) -> list[Any]:
        self._signal(signal.SIGCONT)
        try:
            for rank in self._ranks:
                rank.send(request)
        except OSError as error:
            raise self._error(f"a rank is gone ({error}); see its output below") from None
        answers = self._answers(time.monotonic() + ANSWER_LIMIT_S)
        self._signal(signal.SIGSTOP)
        return answers

    def _signal(self, number: signal.Signals) -> None:
        """Stops the workers of a restless adapter, or lets them go on."""
        for process in self._processes if self.adapter.restless else ():
            with contextlib.suppress(ProcessLookupError):  # the next request notices its end
                os.kill(process, number)

    def _answers(self, deadline: float) -> list[Any]:
        """One answer of each rank, read in order of arrival, so that the first rank to die is reported."""
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._ranks):
            waiting = [rank for rank in self._ranks if rank not in answers]
            ready = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = [self._ranks.index(rank) for rank in waiting]
                raise self._error(
                    f"no answer in time from rank {', '.join(map(str, missing))}; see its output below"
                )
            for rank in ready:
                assert isinstance(rank, Connection)
                answers[rank] = self._answer(rank)
        return [answers[rank] for rank in self._ranks]

    def _answer(self, rank: Connection) -> Any:
        try:
            answer = rank.recv()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_LIMIT_S)  # for tfddlrun's last message
            raise self._error(f"rank {self._ranks.index(rank)} died") from None
        if isinstance(answer, str):
            raise self._error(f"rank {self._ranks.index(rank)}: {answer}")
        return answer

    def _error(self, reason: str) -> WorkerError:
        lines = (self._directory / "output").read_text(errors="replace").splitlines()
        return WorkerError("\n".join([f"{self.adapter.title}: {reason}", *lines[-_LINES_SHOWN:]]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits for tfddlrun, whose workers have lost the driver."""
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def end_with_driver(number: signal.Signals = signal.SIGTERM) -> None:
    """Makes a process that begins get a signal when the driver ends.

    Workers by themselves notice the end of a killed driver only if they are not stopped.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def free_ports(count: int) -> list[int]:
    """Free ports of this host."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
