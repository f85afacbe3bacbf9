"""Starts mpirun, follows all ranks to their ends, and leaves nothing running.

One loop on one thread waits for the connections of the rank shims, for mpirun, and for signals. If a rank fails, or
tfddlrun receives a signal, tfddlrun asks every shim to end its rank, and later kills the ranks that still run. The signals
SIGUSR1 and SIGUSR2 are passed on to the ranks.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO

from tfddl.launch import open_files, rank_shim, signals
from tfddl.launch.channel import Ended, GoesOn, Hello, Leaves, Link, Listener, Output, Waits
from tfddl.launch.elastic.hand_over import HandOver
from tfddl.launch.elastic.losses import Losses
from tfddl.launch.elastic.restart import lost_ranks, processes
from tfddl.launch.elastic.survival import Survival
from tfddl.launch.outcome import Rank, Record, Verdict, interrupted, judge
from tfddl.launch.streams.output import Output as Printer
from tfddl.launch.streams.rank_files import RankFiles
from tfddl.launch.streams.slow_reader import SlowReader
from tfddl.launch.supervision.ending import Ending
from tfddl.launch.supervision.links import Links
from tfddl.launch.supervision.loop import Loop

# Ctrl-C in a terminal also reaches a program that calls tfddl.run(), which sends the signal once more.
_ONE_SIGNAL_S = 0.5
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
        self._loop = Loop()
        self._links = Links(listener, processes, self._loop, self._on_messages, self._on_closed)
        self._reader = SlowReader(self._on_signals)
        self._ranks: dict[int, Rank] = {}
        self._ended: list[Rank] = []
        self._lost: list[Rank] = []
        self._waiting: list[Rank] = []
        self._mpirun_said = bytearray()
        self._signalled_at = -_ONE_SIGNAL_S
        self._stopped_by: Verdict | None = None

    def run(self) -> Verdict:
        """Runs the job. Returns how it ended."""
        self._loop.watch(signals.watch(), self._on_signals)
        self._start_mpirun()
        self._printer.may_write = self._reader.may_write
        self._tell(shlex.join([*self._line, *self._program]))
        self._loop.watch(self._listener, self._on_connection)
        if self._hand_over is not None:
            self._loop.watch(self._hand_over, self._on_hosts)
        if self._start_timeout is not None:
            self._loop.after(self._start_timeout, self._on_start_timeout)
        while self._mpirun.poll() is None or self._links.shims:
            self._loop.turn(wait=True)
            if self._mpirun.poll() is not None and self._links.shims:
                self._ending.begin()  # without mpirun no rank can go on, nor would its failure be noticed
        while self._loop.turn(wait=False):  # reads the last messages
            pass
        self._reader.begin_last_words()
        self._ending.abandon()
        self._listener.close()
        status = self._ending.mpirun_status()
        said = self._mpirun_said.decode(errors="replace")
        record = Record(self._processes, self._ended, self._lost, self._waiting, status, said, self._remote)
        record.survived = self._losses.survived()
        self._close_all()
        verdict = self._stopped_by or judge(record)
        if self._reader.interrupted:
            verdict.lost, verdict.handed_over = (), False
        return verdict

    def _close_all(self) -> None:
        self._loop.close()
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
            self._loop.watch(pipe.fileno(), partial(self._on_mpirun_output, name, pipe.fileno()))
        self._ending = Ending(self._mpirun, self._links, self._ranks, self._loop)
        self._losses = Losses(self._survival, self._ranks, self._processes, self._ending, self._loop)

    def _on_signals(self) -> None:
        passed_on = {number: command for command, number in rank_shim.PASSED_ON.items()}
        numbers = signals.take()
        if signal.SIGTSTP in numbers:
            self._links.command(rank_shim.SUSPEND)
            self._loop.postpone(signals.suspend())
            self._links.command(rank_shim.RESUME)
        for number in numbers:
            if number in passed_on:
                self._links.command(passed_on[signal.Signals(number)])
                continue
            if number not in signals.ENDS or time.monotonic() < self._signalled_at + _ONE_SIGNAL_S:
                continue
            self._reader.interrupted = True
            if self._ending.begun:
                self._reader.give_up()
                self._ending.kill()
            else:
                self._signalled_at = time.monotonic()
                self._stopped_by = interrupted(number)
                self._ending.begin()
        if self._reader.over:
            signals.put_back(numbers)

    def _on_mpirun_output(self, stream: str, pipe: int) -> None:
        data = os.read(pipe, 65536)
        if not data:
            self._loop.forget(pipe)
        if stream == "stdout" and not (self._ended or self._ending.begun):
            # Processes that a rank spawned through MPI write here. Once ranks end, MPICH reports their ends here.
            self._print(lambda: self._printer.raw(stream, data))
            return
        self._mpirun_said += data
        del self._mpirun_said[:-_MPIRUN_SAID_BYTES]
        if self._verbose:
            self._print(lambda: self._printer.raw("stderr", data))

    def _on_connection(self) -> None:
        try:
            self._links.accept()
        except OSError as error:
            self._loop.forget(self._listener)
            if not self._ending.begun:
                words = open_files.no_room(error, self._processes, self._files is not None)
                self._stopped_by = Verdict(1, f"tfddlrun: {words}")
                self._ending.begin()

    def _on_messages(self, link: Link) -> None:
        messages = link.receive()
        if messages is None:
            self._links.close(link)
            return
        for message in messages:
            match message:
                case Hello(number, host):
                    self._links.greeted(link)
                    self._ranks[number] = Rank(number, host)
                    self._tell(f"rank {number} runs on {host}")
                    if self._ending.begun:
                        link.command(rank_shim.TERMINATE)
                    elif self._ended:
                        link.command(rank_shim.LOOK)
                    else:
                        self._on_hosts()
                case Output(stream, data):
                    self._on_output(self._ranks[link.rank], stream, data)
                case Waits():
                    self._waiting.append(self._ranks[link.rank])
                    self._ending.begin()
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
        survived = self._losses.survived()
        left = [rank for rank in self._ranks.values() if rank not in survived]
        all_run = len(self._ranks) >= self._processes and all(rank.status is None for rank in left)
        if self._hand_over.is_due(left if all_run and not self._ending.begun else []):
            self._links.command(rank_shim.HAND_OVER)
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
        if rank.failed and not self._losses.may_go_on_without(rank):
            self._ending.begin()
            return
        self._losses.count_those_that_left()
        if not self._ending.begun:  # others may wait for it in hvd.init(), and mpirun would not notice that
            self._links.command(rank_shim.LOOK)

    def _on_going_on(self, rank: Rank, ranks: int) -> None:
        rank.goes_on_with = ranks
        self._losses.count_those_that_left()
        survived = self._losses.survived()
        if survived and not self._ending.begun:
            line = f"tfddlrun: {lost_ranks(survived, self._ranks.values())}; the job goes on with {processes(ranks)}"
            self._print(lambda: self._printer.message(line))
            self._on_hosts()  # one of them may have said that its host leaves

    def _on_closed(self, link: Link) -> None:
        rank = self._ranks.get(link.rank)
        if rank is not None and rank.status is None:
            self._lost.append(rank)
            self._ending.begin()
        all_ended = len(self._ended) >= self._processes
        if not self._links.shims and (self._ending.begun or all_ended):
            self._ending.end_mpirun(success=all_ended and not any(rank.status for rank in self._ended))

    def _on_start_timeout(self) -> None:
        missing = [number for number in range(self._processes) if number not in self._ranks]
        if not missing or self._ending.begun:
            return
        said = self._mpirun_said.decode(errors="replace").strip()
        words = (
            f"tfddlrun: {len(missing)} of {self._processes} ranks, first rank {missing[0]}, had not started after "
            f"{self._start_timeout:g} s: look whether their hosts answer to ssh, or give --start-timeout more seconds"
        )
        self._stopped_by = Verdict(1, f"{words}; mpirun said:\n{said}" if said else words)
        self._ending.begin()

    def _tell(self, sentence: str) -> None:
        if self._verbose:
            self._print(lambda: self._printer.message(f"tfddlrun: {sentence}"))

    def _print(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BrokenPipeError:  # as in `tfddlrun ... | head`: the reader has ended, so the job ends too
            if not self._ending.begun:
                self._stopped_by = Verdict(128 + signal.SIGPIPE)
                self._ending.begin()
