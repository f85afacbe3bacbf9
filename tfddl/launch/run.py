"""The command `tfddlrun`: starts one training script as several processes."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from tfddl.launch import allocation, config_file, open_files, signals, variables
from tfddl.launch.elastic import check_options
from tfddl.launch.elastic.discovery import Script, wait_for_hosts
from tfddl.launch.elastic.folder import state_folder
from tfddl.launch.elastic.pool import filled
from tfddl.launch.elastic.restart import Placement
from tfddl.launch.hints import hint, hint_before, missing_script
from tfddl.launch.hosts import Host, parse_hosts, read_hostfile, slots_taken, with_room
from tfddl.launch.mpirun import MPICH, Mpirun, MpirunError, UserOptions, find_mpirun, ssh_variables
from tfddl.launch.options import HELP, Command, Options, with_options
from tfddl.launch.outcome import Verdict
from tfddl.launch.ranks import auto, horovod, program
from tfddl.launch.start import Starts, is_remote
from tfddl.launch.streams.output import open_standard_streams
from tfddl.launch.streams.rank_files import RankFiles

CONTEXT = {
    "allow_interspersed_args": False,
    "max_content_width": 120,
    "help_option_names": ["-h", "--help"],
}
"""How click reads the command lines of tfddlrun and horovodrun."""


@click.command(
    cls=Command,
    help=HELP,
    no_args_is_help=True,
    context_settings=CONTEXT,
    options_metavar="[OPTIONS]",
)
@with_options
def main(command: tuple[str, ...], **values: Any) -> None:
    """Entry point of `tfddlrun`."""
    start(command, Options(**values))


def start(command: tuple[str, ...], options: Options) -> None:
    """Runs a job, and exits with its code; with `--dry-run` only prints its line."""
    signals.interrupt()  # before the job, whose loop takes all signals
    open_standard_streams()
    _check_program(command)
    added = _variables(options)
    check_options.check(options)
    if options.auto:
        added |= _seed({**os.environ, **added})
        command = _auto(command)
    mpirun = _mpirun(options.interfaces)
    ssh = _ssh(options)
    added |= ssh_variables(mpirun, ssh)
    count, hosts = _place(options, command)
    if not (options.auto or options.horovod) and (doubt := hint_before(command, count)):
        click.echo(doubt, err=True)
    os.environ.update(added)
    job = _starts(options, mpirun, ssh, command)
    placement = Placement(count, hosts)
    if options.min_np is not None and options.min_np > count:
        raise click.UsageError(
            f"The job has fewer processes than --min-np asks for: lower it. Received: --min-np {options.min_np} for {count}"
        )
    if options.dry_run:
        given = [f"{name}={value}" for name, value in added.items()]
        click.echo(shlex.join([*(["env", *given] if given else []), *job.line(placement, with_program=True)]))
        return
    sys.exit(_run(job, placement, command))


def _variables(options: Options) -> dict[str, str]:
    """The environment variables that the options add."""
    of_options = variables.timeline(options.timeline, options.mark_cycles)
    of_options |= variables.spellings(options.horovod, options.no_keras2_spellings)
    added = options.file_variables | config_file.with_shell(of_options, click.get_current_context())
    return added | variables.interfaces(options.interfaces) | variables.given(options.variables)


def _starts(options: Options, mpirun: Mpirun, ssh: list[str], command: tuple[str, ...]) -> Starts:
    return Starts(
        mpirun=mpirun,
        program=(sys.executable, "-I", "-S", horovod.__file__, *command) if options.horovod else command,
        named=tuple(options.file_variables | variables.given(options.variables)),
        given=UserOptions(options.interfaces or "", ssh, _split(options.mpi_args)),
        options=options,
    )


def _run(job: Starts, placement: Placement, command: tuple[str, ...]) -> int:
    """Runs the job. Returns its exit code."""
    options, count = job.options, placement.processes
    # Ranks on other hosts, or with an option of mpirun for their folder, may find a script that is not here.
    elsewhere = is_remote(placement) or options.discovery or options.mpi_args
    if not elsewhere and (script := missing_script(command)):
        raise click.UsageError(
            f"The script of COMMAND does not exist: give the right path. Received: {script}, from the folder {os.getcwd()}"
        )
    try:
        open_files.make_room(count, options.output is not None)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    with _rank_files(options, count) as files, _state_folder(options.state_dir):
        return job.run(
            placement,
            files,
            lambda verdict: (
                _wrong_mpi_args(verdict, options) or hint(verdict.errors, count, command, options.horovod)
            ),
        ).code


def _wrong_mpi_args(verdict: Verdict, options: Options) -> str:
    words = [word for word in _split(options.mpi_args) if word.startswith("-")]
    if not verdict.mpirun_refused or not any(word in verdict.words for word in words):
        return ""
    return (
        "tfddlrun: look in mpirun's message for an option of --mpi-args, and correct that option. "
        f"Received: --mpi-args={options.mpi_args!r}"
    )


@contextlib.contextmanager
def _state_folder(path: Path | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if path is not None:
            try:
                no_lock = stack.enter_context(state_folder(path))
            except (OSError, ValueError) as error:
                raise click.UsageError(
                    f"--state-dir takes a folder of one job at a time: choose one that you may write to. {error}"
                ) from None
            if no_lock:
                click.echo(
                    f"tfddlrun: the file system of --state-dir has no locks: start no other job with {path}. "
                    f"Received: {no_lock}",
                    err=True,
                )
        yield


def _check_program(command: tuple[str, ...]) -> None:
    try:
        program.check(command)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _auto(command: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(auto.command_of(command))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _seed(environment: Mapping[str, str]) -> dict[str, str]:
    """The seed of all ranks: the user's, or a new one, which is printed."""
    name = auto.SEED
    given = environment.get(name)
    if given is not None and given.isdecimal():
        return {name: given}
    if given:
        raise click.UsageError(f"Set {name} to a whole number from 0. Received: {name}={given!r}")
    drawn = str(random.SystemRandom().getrandbits(31))
    click.echo(
        f"tfddlrun: the seed is {drawn}, unless the program sets one. To repeat this run, set {name}={drawn}",
        err=True,
    )
    return {name: drawn}


def _place(options: Options, command: tuple[str, ...]) -> tuple[int, list[Host]]:
    """The number of processes and their hosts. Without hosts mpirun asks a scheduler, or takes this host."""
    if options.discovery is not None:
        return _discover(options, options.discovery)
    hosts = hosts_of(options.hosts, options.hostfile)
    if not hosts:
        try:
            if options.processes is not None:
                return options.processes, with_room(
                    allocation.hosts_for_mpirun(os.environ), options.processes
                )
            choice = allocation.choose(os.environ)
        except allocation.NoChoiceError as error:
            late = next((word for word in command if word in ("-np", "-n", "--num-proc")), None)
            if late is None:
                raise click.UsageError(str(error)) from None
            raise click.UsageError(
                f"Options of tfddlrun come before COMMAND: move them. Received: {late} after {command[0]}. {error}"
            ) from None
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        click.echo(f"tfddlrun: {choice}", err=True)
        return choice.processes, choice.hosts
    try:
        return slots_taken(hosts, options.processes), hosts
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _discover(options: Options, command: str) -> tuple[int, list[Host]]:
    """The hosts that the script names, as soon as they have enough slots."""
    least = max(options.processes or 1, options.min_np or 1)
    try:
        found = wait_for_hosts(
            Script(command, options.slots),
            least,
            options.elastic_timeout,
            lambda line: click.echo(f"tfddlrun: {line}", err=True),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    place = filled(found, options.max_np)
    click.echo(f"tfddlrun: {allocation.Choice(place.hosts, '--host-discovery-script')}", err=True)
    return place.processes, place.hosts


def hosts_of(hosts: str | None, hostfile: Path | None) -> list[Host]:
    """The hosts of `-H` or of a host file; none if the user has given neither.

    Raises:
        click.UsageError: Both are given, or one cannot be read.
    """
    if hosts is not None and hostfile is not None:
        raise click.UsageError("Give the hosts by -H or by --hostfile, not by both.")
    try:
        if hostfile is not None:
            return read_hostfile(hostfile)
        return parse_hosts(hosts) if hosts is not None else []
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _mpirun(interfaces: str | None) -> Mpirun:
    try:
        mpirun = find_mpirun()
    except MpirunError as error:
        raise click.ClickException(str(error)) from None
    names = interfaces.split(",") if interfaces else []
    here = [name for _, name in socket.if_nameindex()]
    if not set(names) <= set(here):
        raise click.UsageError(
            f"--network-interfaces takes names of this host's interfaces: choose from {', '.join(here)}. "
            f"Received: {interfaces}"
        )
    if len(names) > 1 and mpirun.vendor == MPICH:
        raise click.UsageError(
            f"MPICH takes one interface in --network-interfaces: choose one. Received: {interfaces}"
        )
    return mpirun


def _ssh(options: Options) -> list[str]:
    ssh = ["-p", str(options.ssh_port)] if options.ssh_port else []
    if options.ssh_identity is None:
        return ssh
    path = str(options.ssh_identity.absolute())
    if " " in path:
        raise click.UsageError(
            "mpirun splits the options of ssh at spaces: move the key to a path without spaces, or name it in ~/.ssh/config "
            f"as IdentityFile. Received: -i {path!r}"
        )
    return [*ssh, "-i", path]


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise click.UsageError(
            f"--mpi-args takes options as in a shell: close each quote. Received: {arguments} ({error})"
        ) from None


def _rank_files(options: Options, processes: int) -> contextlib.AbstractContextManager[RankFiles | None]:
    if options.output is None:
        return contextlib.nullcontext()
    try:
        return contextlib.closing(RankFiles(options.output, processes, max(options.max_np or 0, processes)))
    except OSError as error:
        raise click.UsageError(
            f"--output-filename takes a folder to write to: choose one that you may make. Received: {error}"
        ) from None


if __name__ == "__main__":
    main()
