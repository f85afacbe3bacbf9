"""Starts mpirun, follows all ranks to their ends, and leaves nothing running.

One loop on one thread waits for the connections of the rank shims, for mpirun, and for signals. If a rank fails, or
tfddlrun receives a signal, tfddlrun asks every shim to end its rank, and later kills the ranks that still run. The signals
SIGUSR1 and SIGUSR2 are passed on to the ranks.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, BinaryIO

from tfddl.launch import open_files, rank_shim, signals
from tfddl.launch.channel import Ended, GoesOn, Hello, Leaves, Link, Listener, Output, Waits
from tfddl.launch.elastic.hand_over import HandOver
from tfddl.launch.elastic.restart import lost_ranks, processes
from tfddl.launch.elastic.survival import LIMIT_S as SURVIVAL_LIMIT_S
from tfddl.launch.elastic.survival import Survival
from tfddl.launch.outcome import Rank, Record, Verdict, interrupted, judge
from tfddl.launch.streams.output import Output as Printer
from tfddl.launch.streams.rank_files import RankFiles

# A shim needs GRACE_S to end its rank, then LEFTOVER_S twice. After this time the shim itself or its host is gone.
_KILL_AFTER_S = rank_shim.GRACE_S + 1
_ABANDON_AFTER_S = rank_shim.GRACE_S + 2 * rank_shim.LEFTOVER_S + 3
_MPIRUN_LINGERS_S = 3.0
# Nobody waits for the exit of mpirun after a success, but a loaded machine may need long for it.
_MPIRUN_LINGERS_AFTER_SUCCESS_S = 60.0
_HELLO_WITHIN_S = 30.0
# Ctrl-C in a terminal also reaches a program that calls tfddl.run(), which sends the signal once more.
_ONE_SIGNAL_S = 0.5
# After a signal, for a reader of the output that reads nothing, and in all for a slow reader: then the rest is dropped.
_UNREAD_S = 1.0
_READ_SLOWLY_S = 5.0
_LONGEST_TURN_S = 86400.0  # a selector takes no time beyond 24 days
_STRANGERS = 16  # connections without a hello, besides one for each rank
_MPIRUN_SAID_BYTES = 1 << 16


class Job:
    """One run of a command on several ranks.

    Args:
        line: list of strings, the mpirun line.
        processes: int, number of ranks.
        listener: a `Listener`, to which the shims connect.
        printer: an `Output`.
        verbose: whether to print the output of mpirun, and the starts and ends of ranks.
        remote: whether ranks may run on other hosts.
        start_timeout: seconds that all ranks have to start in. None: no limit.
        files: `RankFiles`, if ranks get files of their own.
        hand_over: a `HandOver`, if the job goes over to other hosts when they change.
        survival: a `Survival`, if the ranks may go on in their processes when others have died.
        program: list of strings, the command of a rank, which `verbose` prints behind the line.
    """

    def __init__(
        self,
        line: list[str],
        processes: int,
        listener: Listener,
        printer: Printer,
        *,
        verbose: bool,
        remote: bool,
        start_timeout: float | None = None,
        files: RankFiles | None = None,
        hand_over: HandOver | None = None,
        survival: Survival | None = None,
        program: Sequence[str] = (),
    ):
        self._line = line
        self._processes = processes
        self._listener = listener
        self._printer = printer
        self._verbose = verbose
        self._remote = remote
        self._start_timeout = start_timeout
        self._files = files
        self._hand_over = hand_over
        self._survival = survival
        self._program = program
        self._selector = selectors.DefaultSelector()
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._links: set[Link] = set()  # to the shims
        self._strangers: dict[Link, None] = {}  # connections without a hello yet, the oldest first
        self._ranks: dict[int, Rank] = {}
        self._ended: list[Rank] = []
        self._lost: list[Rank] = []
        self._waiting: list[Rank] = []
        self._mpirun_said = bytearray()
        self._mpirun_signalled = False
        self._stopping = False
        self._interrupted = False  # by a signal to tfddlrun
        self._unread: set[BinaryIO] = set()  # files whose reader has stopped after the signal
        self._patience_s = _READ_SLOWLY_S  # what is left of it
        self._over = False  # signals are for the next start
        self._signalled_at = -_ONE_SIGNAL_S
        self._order = itertools.count()
        self._stopped_by: Verdict | None = None

    def run(self) -> Verdict:
        """Runs the job. Returns how it ended."""
        self._selector.register(signals.watch(), selectors.EVENT_READ, self._on_signals)
        self._start_mpirun()
        self._printer.may_write = self._may_write
        self._tell(shlex.join([*self._line, *self._program]))
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connection)
        if self._hand_over is not None:
            self._selector.register(self._hand_over, selectors.EVENT_READ, self._on_hosts)
        if self._start_timeout is not None:
            self._after(self._start_timeout, self._on_start_timeout)
        while self._mpirun.poll() is None or self._links:
            self._turn(self._time_to_next_plan())
            if self._mpirun.poll() is not None and self._links:
                self._stop()  # without mpirun no rank can go on, nor would its failure be noticed
        while self._turn(0.0):  # reads the last messages
            pass
        self._over = True
        self._patience_s = _READ_SLOWLY_S  # for the last words
        self._abandon()
        self._listener.close()
        status: int | None = self._mpirun.wait()
        if self._mpirun_signalled:
            status = None
        said = self._mpirun_said.decode(errors="replace")
        record = Record(self._processes, self._ended, self._lost, self._waiting, status, said, self._remote)
        record.survived = self._survived()
        self._close_all()
        verdict = self._stopped_by or judge(record)
        if self._interrupted:
            verdict.lost, verdict.handed_over = (), False
        return verdict

    def _close_all(self) -> None:
        self._selector.close()
        for pipe in (self._mpirun.stdout, self._mpirun.stderr):
            if pipe is not None:
                pipe.close()

    def _start_mpirun(self) -> None:
        # mpirun gets a session of its own, so that Ctrl-C reaches only tfddlrun, which then ends the ranks in order.
        self._mpirun = subprocess.Popen(
            self._line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | self._listener.environment(),
            start_new_session=True,
        )
        for name in ("stdout", "stderr"):
            pipe: IO[bytes] = getattr(self._mpirun, name)
            handler = partial(self._on_mpirun_output, name, pipe.fileno())
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, handler)

    def _turn(self, timeout: float | None) -> bool:
        """Waits for the next events and handles them. Returns whether there were any."""
        events = self._selector.select(timeout)
        for key, _ in events:
            key.data()
        while self._plan and self._plan[0][0] <= time.monotonic():
            heapq.heappop(self._plan)[2]()
        return bool(events)

    def _time_to_next_plan(self) -> float | None:
        return min(max(0.0, self._plan[0][0] - time.monotonic()), _LONGEST_TURN_S) if self._plan else None

    def _on_signals(self) -> None:
        passed_on = {number: command for command, number in rank_shim.PASSED_ON.items()}
        numbers = signals.take()
        for number in numbers:
            if number in passed_on:
                self._command(passed_on[signal.Signals(number)])
                continue
            if number not in signals.ENDS or time.monotonic() < self._signalled_at + _ONE_SIGNAL_S:
                continue
            self._interrupted = True
            if self._stopping:
                self._patience_s = 0.0
                self._kill()
            else:
                self._signalled_at = time.monotonic()
                self._stopped_by = interrupted(number)
                self._stop()
        if self._over:
            signals.put_back(numbers)

    def _may_write(self, file: BinaryIO) -> bool:
        """Waits until a file of the printer takes bytes; not long after a signal, since nobody may read it, or slowly.

        Returns:
            Whether it takes bytes.
        """
        while not self._interrupted:
            if not signals.come_before(file):
                return True
            self._on_signals()
        began = time.monotonic()
        while not self._over and signals.come_before(file, self._limit(file)):
            self._on_signals()
        limit = self._limit(file)
        may = signals.takes_bytes(file, limit if self._over else 0.0)
        if not may and limit == _UNREAD_S:
            self._unread.add(file)
        self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began))
        return may

    def _limit(self, file: BinaryIO) -> float:
        return 0.0 if file in self._unread else min(_UNREAD_S, self._patience_s)

    def _on_mpirun_output(self, stream: str, pipe: int) -> None:
        data = os.read(pipe, 65536)
        if not data:
            self._selector.unregister(pipe)
        if stream == "stdout" and not (self._ended or self._stopping):
            # Processes that a rank spawned through MPI write here. Once ranks end, MPICH reports their ends here.
            self._print(lambda: self._printer.raw(stream, data))
            return
        self._mpirun_said += data
        del self._mpirun_said[:-_MPIRUN_SAID_BYTES]
        if self._verbose:
            self._print(lambda: self._printer.raw("stderr", data))

    def _on_connection(self) -> None:
        try:
            link = self._listener.accept()
        except OSError as error:
            self._selector.unregister(self._listener)
            if not self._stopping:
                words = open_files.no_room(error, self._processes, self._files is not None)
                self._stopped_by = Verdict(1, f"tfddlrun: {words}")
                self._stop()
            return
        if link is None:
            return
        self._selector.register(link, selectors.EVENT_READ, lambda: self._on_messages(link))
        self._strangers[link] = None
        if len(self._strangers) > self._processes + _STRANGERS:
            self._close(next(iter(self._strangers)))
        self._after(_HELLO_WITHIN_S, lambda: self._close(link) if link in self._strangers else None)

    def _on_messages(self, link: Link) -> None:
        messages = link.receive()
        if messages is None:
            self._close(link)
            return
        for message in messages:
            match message:
                case Hello(number, host):
                    del self._strangers[link]
                    self._links.add(link)
                    self._ranks[number] = Rank(number, host)
                    self._tell(f"rank {number} runs on {host}")
                    if self._stopping:
                        link.command(rank_shim.TERMINATE)
                    elif self._ended:
                        link.command(rank_shim.LOOK)
                    else:
                        self._on_hosts()
                case Output(stream, data):
                    self._on_output(self._ranks[link.rank], stream, data)
                case Waits():
                    self._waiting.append(self._ranks[link.rank])
                    self._stop()
                case Leaves() if self._hand_over is not None:
                    self._hand_over.leaves(self._ranks[link.rank])
                case GoesOn(ranks):
                    self._on_going_on(self._ranks[link.rank], ranks)
                case Ended(status, stopped, frozen, handed_over, out_of_memory):
                    self._ranks[link.rank].frozen = frozen
                    self._ranks[link.rank].handed_over = handed_over
                    self._ranks[link.rank].out_of_memory = out_of_memory
                    self._on_ended(self._ranks[link.rank], status, stopped)

    def _on_hosts(self) -> None:
        """Tells the ranks once if the job is to go over to other hosts."""
        if self._hand_over is None:
            return
        survived = self._survived()
        left = [rank for rank in self._ranks.values() if rank not in survived]
        all_run = len(self._ranks) >= self._processes and all(rank.status is None for rank in left)
        if self._hand_over.is_due(left if all_run and not self._stopping else []):
            self._command(rank_shim.HAND_OVER)
        for line in self._hand_over.lines():
            self._print(lambda line=line: self._printer.message(f"tfddlrun: {line}"))  # type: ignore[misc]

    def _on_output(self, rank: Rank, stream: str, data: bytes) -> None:
        if stream == "stderr":
            rank.add_errors(data)
        problem = self._files.write(rank.number, stream, data) if self._files else ""
        if problem:
            self._print(lambda: self._printer.message(f"tfddlrun: {problem}"))
        self._print(lambda: self._printer.write(rank.number, stream, data))

    def _on_ended(self, rank: Rank, status: int, stopped: bool) -> None:
        rank.status, rank.stopped = status, stopped
        self._ended.append(rank)
        self._tell(
            f"rank {rank.number} ended with status {status}{' after it was told to' if stopped else ''}"
        )
        if rank.failed and not self._may_go_on_without(rank):
            self._stop()
            return
        self._count_those_that_left()
        if not self._stopping:  # others may wait for it in hvd.init(), and mpirun would not notice that
            self._command(rank_shim.LOOK)

    def _may_go_on_without(self, rank: Rank) -> bool:
        if self._survival is None or self._stopping or not rank.died or len(self._ranks) < self._processes:
            return False
        if not self._survival.allows(rank, self._ranks.values()):
            return False
        self._after(SURVIVAL_LIMIT_S, partial(self._on_survival_limit, self._survival.losses))
        return True

    def _count_those_that_left(self) -> None:
        if self._survival is None or self._stopping:
            return
        for rank in self._survival.left_early(self._ranks.values()):
            if not self._survival.allows(rank, self._ranks.values()):
                self._stop()

    def _on_survival_limit(self, losses: int) -> None:
        if self._survival and self._survival.losses == losses and not self._survived():
            self._stop()

    def _survived(self) -> tuple[Rank, ...]:
        return self._survival.survived(self._ranks.values()) if self._survival else ()

    def _on_going_on(self, rank: Rank, ranks: int) -> None:
        rank.goes_on_with = ranks
        self._count_those_that_left()
        survived = self._survived()
        if survived and not self._stopping:
            line = f"tfddlrun: {lost_ranks(survived, self._ranks.values())}; the job goes on with {processes(ranks)}"
            self._print(lambda: self._printer.message(line))
            self._on_hosts()  # one of them may have said that its host leaves

    def _close(self, link: Link) -> None:
        if link not in self._links and link not in self._strangers:
            return  # closed in this turn already
        self._selector.unregister(link)
        self._links.discard(link)
        self._strangers.pop(link, None)
        link.close()
        rank = self._ranks.get(link.rank)
        if rank is not None and rank.status is None:
            self._lost.append(rank)
            self._stop()
        if not self._links and (self._stopping or len(self._ended) >= self._processes):
            good = len(self._ended) >= self._processes and not any(rank.status for rank in self._ended)
            self._end_mpirun(_MPIRUN_LINGERS_AFTER_SUCCESS_S if good else _MPIRUN_LINGERS_S)

    def _on_start_timeout(self) -> None:
        missing = [number for number in range(self._processes) if number not in self._ranks]
        if not missing or self._stopping:
            return
        said = self._mpirun_said.decode(errors="replace").strip()
        words = (
            f"tfddlrun: {len(missing)} of {self._processes} ranks, first rank {missing[0]}, had not started after "
            f"{self._start_timeout:g} s: look whether their hosts answer to ssh, or give --start-timeout more seconds"
        )
        self._stopped_by = Verdict(1, f"{words}; mpirun said:\n{said}" if said else words)
        self._stop()

    def _stop(self) -> None:
        """Asks every shim to end its rank, then kills the ranks that still run."""
        if self._stopping:
            return
        self._stopping = True
        self._command(rank_shim.TERMINATE)
        self._after(_KILL_AFTER_S, self._kill)
        self._after(_ABANDON_AFTER_S, self._abandon)
        if not self._links:
            self._end_mpirun(0)

    def _kill(self) -> None:
        self._command(rank_shim.KILL)

    def _command(self, command: bytes) -> None:
        for link in self._links:
            link.command(command)

    def _abandon(self) -> None:
        """Closes the connections to shims that do not answer: their hosts are gone."""
        for link in [*self._links, *self._strangers]:
            if link.rank in self._ranks:
                self._ranks[link.rank].abandoned = True
            self._close(link)

    def _end_mpirun(self, delay: float) -> None:
        """Ends mpirun after `delay` seconds. Normally it ends by itself when its ranks are gone."""
        self._after(delay, lambda: self._signal_mpirun(signal.SIGTERM))
        self._after(delay + _MPIRUN_LINGERS_S, lambda: self._signal_mpirun(signal.SIGKILL))

    def _signal_mpirun(self, number: int) -> None:
        if self._mpirun.poll() is not None:
            return
        self._mpirun_signalled = True
        if number == signal.SIGKILL:
            os.killpg(self._mpirun.pid, number)
        else:
            self._mpirun.send_signal(number)

    def _after(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (time.monotonic() + delay, next(self._order), action))

    def _tell(self, sentence: str) -> None:
        if self._verbose:
            self._print(lambda: self._printer.message(f"tfddlrun: {sentence}"))

    def _print(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BrokenPipeError:  # as in `tfddlrun ... | head`: the reader has ended, so the job ends too
            if not self._stopping:
                self._stopped_by = Verdict(128 + signal.SIGPIPE)
                self._stop()
