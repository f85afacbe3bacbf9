"""Runs the mpirun of a job: once, or with --elastic again after a loss."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from tfddl._environment import switched_on
from tfddl.launch import open_files
from tfddl.launch.channel import Listener
from tfddl.launch.elastic.cooldown import HostCooldown
from tfddl.launch.elastic.discovery import Poll, Script
from tfddl.launch.elastic.folder import commits_folder, forget
from tfddl.launch.elastic.hand_over import HandOver
from tfddl.launch.elastic.pool import HostPool
from tfddl.launch.elastic.restart import Limits, Placement
from tfddl.launch.elastic.session import Session
from tfddl.launch.elastic.survival import Survival
from tfddl.launch.hosts import Host, all_local
from tfddl.launch.job import Job
from tfddl.launch.mpirun import (
    OPEN_MPI,
    Mpirun,
    UserOptions,
    can_survive,
    command_line,
    forwarded_variables,
    scheduled,
)
from tfddl.launch.options import Options
from tfddl.launch.outcome import Verdict
from tfddl.launch.rank_shim import COMMITS_VARIABLE, STATE_VARIABLE, SURVIVE_VARIABLE, command_variables
from tfddl.launch.scratch import Scratch, scratch, tcp_settings
from tfddl.launch.streams.output import Output
from tfddl.launch.streams.rank_files import RankFiles
from tfddl.launch.supervision.children import Children, run_at_once

_RUN_ON_S = 20.0


@dataclass(frozen=True)
class Starts:
    """The starts of one job, and the settings that they share.

    Attributes:
        mpirun: The mpirun.
        program: The command of a rank.
        named: Variables that the user passes on.
        given: The user's options for mpirun.
        options: Those of tfddlrun.
    """

    mpirun: Mpirun
    program: Sequence[str]
    named: Sequence[str]
    given: UserOptions
    options: Options

    def line(self, place: Placement, *, with_program: bool) -> list[str]:
        """The mpirun line. A job's has no program, which comes by `rank_shim.command_variables`."""
        return command_line(
            self.mpirun,
            place.processes,
            place.hosts,
            self.program if with_program else (),
            self.given,
            forward=forwarded_variables(os.environ, self.named) if is_remote(place) else [],
            survives=self._survives,
        )

    @property
    def _survives(self) -> bool:
        """Whether ranks go on in their processes when others have died: without them, and on the hosts of the start."""
        keeps_going = self.options.elastic and not self.options.replace and self.options.discovery is None
        try:
            return keeps_going and can_survive(self.mpirun) and switched_on(SURVIVE_VARIABLE)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def run(self, place: Placement, files: RankFiles | None, advise: Callable[[Verdict], str]) -> Verdict:
        """Runs the job to its end, and prints the last words.

        Args:
            place: Where it starts.
            files: For the output of each rank, if the user wants them.
            advise: Makes the line after the error of a rank; empty for none.

        Returns:
            How it ended.
        """
        if not self.options.elastic:
            for name in (COMMITS_VARIABLE, STATE_VARIABLE, SURVIVE_VARIABLE):
                os.environ.pop(name, None)  # of an elastic job that has started this one
            verdict, printer = self._once(place, files)
            _say(printer, verdict.words, advise(verdict))
            return verdict
        state = self.options.state_dir
        with (
            commits_folder() as folder,
            _set({COMMITS_VARIABLE: str(folder)} | ({STATE_VARIABLE: str(state)} if state else {})),
            _set({SURVIVE_VARIABLE: str(int(self._survives))}),
        ):
            verdict = self._elastic(place, files, advise, folder)
            if state and verdict.code == 0:
                forget(state)
            return verdict

    def _elastic(
        self, place: Placement, files: RankFiles | None, advise: Callable[[Verdict], str], folder: Path
    ) -> Verdict:
        options, children = self.options, Children()
        limits = Limits(options.min_np or 1, options.reset_limit, options.replace, options.max_np)
        remove = ["rm", "-rf", str(folder)]

        def prepare(host: Host) -> bool:
            if all_local([host]):
                return True
            line = self._line_on(host, remove if pool.has_old_commits(host.name) else ["true"])
            with contextlib.suppress(OSError):
                return children.run(line, _RUN_ON_S)[0] == 0
            return False

        def once(
            place: Placement, hand_over: HandOver, survival: Survival
        ) -> tuple[Verdict, Callable[..., None]]:
            if files is not None:
                try:
                    open_files.make_room(place.processes, True)
                    files.add(place.processes)
                except ValueError as error:
                    pool.say(str(error))
                except OSError as error:  # a full disk must not end a training of days
                    pool.say(
                        f"cannot write the output of all ranks to files: make room there. Received: {error}"
                    )
            verdict, printer = self._once(place, files, hand_over, survival if self._survives else None)
            return verdict, partial(_say, printer)

        cooldown = HostCooldown(*(options.cooldown or ()))
        pool = HostPool(
            limits, cooldown, prepare, options.discovery is not None, options.state_dir is not None
        )
        with contextlib.closing(pool):
            with contextlib.ExitStack() as stack:
                if options.discovery is not None:
                    script = Script(options.discovery, options.slots, children=children)
                    poll = Poll(script, pool.found, pool.say, children)
                    stack.enter_context(contextlib.closing(poll))
                    poll.start()
                verdict = Session(once, advise, limits, pool, options.elastic_timeout).run(place)
            # One mpirun for each host, since a host may be gone.
            others = [host for host in pool.used if not all_local([host])]
            run_at_once([self._line_on(host, remove) for host in others], _RUN_ON_S)
        return verdict

    def _line_on(self, host: Host, command: list[str]) -> list[str]:
        """The mpirun line that runs a command once on a host."""
        return command_line(self.mpirun, 1, [Host(host.name)], command, self.given, supervised=False)

    def _once(
        self,
        place: Placement,
        files: RankFiles | None,
        hand_over: HandOver | None = None,
        survival: Survival | None = None,
    ) -> tuple[Verdict, Output]:
        options, processes, remote = self.options, place.processes, is_remote(place)
        made: Scratch = contextlib.nullcontext(({}, []))
        network: dict[str, str] = {}
        if self.mpirun.vendor == OPEN_MPI:
            network = tcp_settings(os.environ, self.mpirun.path)
            made = made if remote else scratch(os.environ, self.mpirun.path)
        stamp = _now if options.timestamps else None
        prefixed = processes > 1 or options.timestamps or options.elastic
        columns, rows = shutil.get_terminal_size()
        prefix_width = len(f"[{processes - 1}] ") + (len(f"{_now()} ") if stamp else 0) if prefixed else 0
        terminals = os.isatty(1), os.isatty(2)
        # Without buffers: Python would write what is left in them at exit, and fail again where the disk is full.
        streams = (io.FileIO(descriptor, "wb", closefd=False) for descriptor in (1, 2))
        printer = Output(*streams, prefixed=prefixed, columns=columns, stamp=stamp)
        program = command_variables(self.program)
        with made as (settings, directories), _set({**settings, **network, **program}):
            listener = Listener(
                processes, remote, directories, terminals, (max(20, columns - prefix_width), rows)
            )
            job = Job(
                self.line(place, with_program=False),
                processes,
                listener,
                printer,
                verbose=options.verbose,
                remote=remote,
                start_timeout=options.start_timeout,
                files=files,
                hand_over=hand_over,
                survival=survival,
                program=self.program,
            )
            verdict = job.run()
        printer.finish()
        return verdict, printer


def is_remote(place: Placement) -> bool:
    """Whether ranks may run on other hosts."""
    return not all_local(place.hosts) if place.hosts else scheduled(os.environ)


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for a start, and takes them back: the next start has others."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name)
        os.environ.update(before)


def _say(printer: Output, *texts: str) -> None:
    for text in filter(None, texts):
        # The job has ended, and keeps its exit code.
        with contextlib.suppress(BrokenPipeError):
            printer.message(text)


def _now() -> str:
    return datetime.datetime.now().isoformat(" ", "milliseconds")
