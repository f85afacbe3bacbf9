"""The worker processes of one adapter, started by tfddlrun. The driver, `tfddl bench`, sends them requests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tfddl.bench.adapters import Adapter, Process
from tfddl.bench.case import Case
from tfddl.bench.channel import Listener
from tfddl.bench.place import Place
from tfddl.launch.rank_shim import end_with_parent

START_LIMIT_S = 180.0
ANSWER_LIMIT_S = 300.0
_END_LIMIT_S = 20.0
_LINES_SHOWN = 15

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
        place: Where the workers run.

    Raises:
        WorkerError: The workers do not start.
    """

    def __init__(self, adapter: Adapter, place: Place):
        self.adapter = adapter
        self._stack = contextlib.ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tfddl-bench-")))
        self._ranks: list[Connection] = []
        self._keepers: list[Connection] = []
        try:
            self._start(place)
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
        self._stack.close()

    def _start(self, place: Place) -> None:
        listener = self._stack.enter_context(contextlib.closing(Listener(place.is_remote)))
        log = self._stack.enter_context((self._directory / "output").open("wb"))
        crowded = place.ranks_on_a_machine > len(os.sched_getaffinity(0))
        variables = listener.environment() | _ENVIRONMENT | (_CROWDED if crowded else {})
        worker = [sys.executable, "-m", "tfddl.bench.worker", self.adapter.module]
        self._process = subprocess.Popen(
            [*place.launcher(variables), *worker, *(["restless"] if self.adapter.restless else [])],
            stdin=subprocess.DEVNULL,
            process_group=0,  # a Ctrl-C is for the driver alone, which ends the workers
            stdout=log,
            stderr=log,
            env=os.environ | variables,
            preexec_fn=end_with_parent,  # stopped ranks would not notice the end of this process
        )
        self._stack.callback(_end, self._process)
        try:
            self._wait_for_start(listener, place)
        except BaseException:
            self._process.terminate()  # its workers do not notice the end of the driver before they have started
            raise

    def _wait_for_start(self, listener: Listener, place: Place) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        ports = self._meet(listener, place.ranks, deadline)
        addresses = place.addresses(ports)
        for rank, connection in enumerate(self._ranks):
            process = Process(rank, place.ranks, self._directory, addresses)
            connection.send((process, place.core(rank)))
        self._answers(deadline)
        self._signal(signal.SIGSTOP)

    def _meet(self, listener: Listener, ranks: int, deadline: float) -> list[int]:
        """Waits for all workers and their keepers. Returns a free port of each rank."""
        workers: dict[int, tuple[int, Connection]] = {}
        keepers: dict[int, Connection] = {}
        while len(workers) < ranks or len(keepers) < ranks * self.adapter.restless:
            found = listener.accept(0.5)
            if found is None:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self._error("its processes did not start; see its output below")
                continue
            (rank, port), connection = found
            self._stack.callback(connection.close)
            if port is None:
                keepers[rank] = connection
            else:
                workers[rank] = port, connection
        self._ranks = [workers[rank][1] for rank in range(ranks)]
        self._keepers = [keepers[rank] for rank in sorted(keepers)]
        return [workers[rank][0] for rank in range(ranks)]

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
        with contextlib.suppress(OSError, EOFError):  # the next request notices its end
            for keeper in self._keepers:
                keeper.send(number)
            for keeper in self._keepers:
                keeper.recv()

    def _answers(self, deadline: float) -> list[Any]:
        """One answer of each rank. All that have arrived are read before a death counts: an error may explain it."""
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._ranks):
            waiting = [rank for rank in self._ranks if rank not in answers]
            ready = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = [self._ranks.index(rank) for rank in waiting]
                raise self._error(
                    f"no answer in time from rank {', '.join(map(str, missing))}; see its output below"
                )
            dead = []
            for rank in ready:
                assert isinstance(rank, Connection)
                try:
                    answers[rank] = rank.recv()
                except (EOFError, OSError):
                    dead.append(rank)
                    continue
                if isinstance(answers[rank], str):
                    raise self._error(f"rank {self._ranks.index(rank)}: {answers[rank]}")
            if dead:
                # For the last message of tfddlrun, which names the first rank that ended.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_LIMIT_S)
                names = " and ".join(f"rank {number}" for number in sorted(map(self._ranks.index, dead)))
                raise self._error(f"{names} died")
        return [answers[rank] for rank in self._ranks]

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
