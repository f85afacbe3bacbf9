"""The command `horovodrun`: tfddlrun with Horovod's options."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from tfddl.launch import run

_FLAGS = [
    "--disable-cache",
    "--gloo",
    "--mpi",
    "--jsrun",
    "--tcp",
    "--autotune",
    "--no-autotune",
    "--torus-allreduce",
    "--no-torus-allreduce",
    "--hierarchical-allgather",
    "--no-hierarchical-allgather",
    "--mpi-threads-disable",
    "--no-mpi-threads-disable",
    "--stall-check",
    "--no-stall-check",
    "--log-with-timestamp",
    "--log-without-timestamp",
    "-prefix-timestamp --prefix-output-with-timestamp",
    "--log-hide-timestamp",
    "--no-log-hide-timestamp",
    "--no-timeline-mark-cycles",
]
_VALUES = [
    "--start-timeout",
    "--cycle-time-ms",
    "--cache-capacity",
    "--num-nccl-streams",
    "--thread-affinity",
    "--gloo-timeout-seconds",
    "--log-level",
    "--autotune-log-file",
    "--autotune-warmup-samples",
    "--autotune-steps-per-sample",
    "--autotune-bayes-opt-max-samples",
    "--autotune-gaussian-process-noise",
    "--binding-args",
]
_REFUSED = [
    "--config-file",
    "-p --ssh-port",
    "-i --ssh-identity-file",
    "--mpi-args",
    "--output-filename",
    "--host-discovery-script",
    "--min-np",
    "--max-np",
    "--min-num-proc",
    "--max-num-proc",
    "--slots-per-host",
    "--elastic-timeout",
    "--reset-limit",
    "--blacklist-cooldown-range",
]

_HELP = """Runs COMMAND as several processes, in which `import horovod` gives tfddl.

\b
Example:
  horovodrun -np 4 python train.py

It is `tfddlrun --horovod` with Horovod's options. Options of the machinery that tfddl does not have change nothing, and a
line says so; those of elastic jobs, of ssh and of mpirun are errors. `tfddlrun --help` says the rest."""


def _changes_nothing(_: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        click.echo(f"horovodrun: {option.opts[-1]} changes nothing in tfddl", err=True)


def _refuse(_: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        raise click.UsageError(
            f"tfddl has nothing for {option.opts[-1]}: leave it out, or start the program by mpirun. Received: {value}"
        )


def _with_options_of_horovod(command: Callable[..., None]) -> Callable[..., None]:
    for name in _FLAGS:
        command = click.option(
            *name.split(), is_flag=True, hidden=True, expose_value=False, callback=_changes_nothing
        )(command)
    for name in _VALUES:
        command = click.option(*name.split(), hidden=True, expose_value=False, callback=_changes_nothing)(
            command
        )
    for name in _REFUSED:
        command = click.option(*name.split(), hidden=True, expose_value=False, callback=_refuse)(command)
    return command


@click.command(
    help=_HELP,
    no_args_is_help=True,
    context_settings={"allow_interspersed_args": False, "max_content_width": 120},
)
@click.option("-np", "--num-proc", "processes", type=int, help="Number of processes.")
@click.option("-H", "--hosts", help="Hosts, with the number of processes of each: node1:4,node2:4.")
@click.option("-hostfile", "--hostfile", help="File with a host on each line: node1 slots=4.")
@click.option(
    "--network-interfaces", "--network-interface", "interfaces", help="Names of network interfaces."
)
@click.option("--fusion-threshold-mb", type=float, help="Size of a bucket of gradients: TFDDL_BUCKET_MB.")
@click.option(
    "--hierarchical-allreduce/--no-hierarchical-allreduce", default=None, help="One ring for each host."
)
@click.option("--timeline-filename", help="File for a timeline of rank 0; see tfddlrun.")
@click.option("--timeline-mark-cycles", is_flag=True, help="Mark each vote of the ranks in it.")
@click.option("--stall-check-warning-time-seconds", "warning", type=float, help="TFDDL_STALL_WARNING.")
@click.option(
    "--stall-check-shutdown-time-seconds", "limit", type=float, help="TFDDL_STALL_LIMIT; 0 for never."
)
@click.option("-cb", "--check-build", is_flag=True, help="Say what this tfddl can do.")
@click.option("--verbose", is_flag=True, help="Print the mpirun line, and the starts and ends of processes.")
@click.option("-v", "--version", is_flag=True, help="Print the version.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_with_options_of_horovod
def main(
    processes: int | None,
    hosts: str | None,
    hostfile: str | None,
    interfaces: str | None,
    fusion_threshold_mb: float | None,
    hierarchical_allreduce: bool | None,
    timeline_filename: str | None,
    timeline_mark_cycles: bool,
    warning: float | None,
    limit: float | None,
    check_build: bool,
    verbose: bool,
    version: bool,
    command: tuple[str, ...],
) -> None:
    """Entry point of `horovodrun`."""
    if version:
        run.main(["--version"])
    if check_build:
        _print_build()
        return
    variables = {
        "TFDDL_BUCKET_MB": fusion_threshold_mb,
        "TFDDL_HIERARCHICAL_ALLREDUCE": None
        if hierarchical_allreduce is None
        else int(hierarchical_allreduce),
        "TFDDL_STALL_WARNING": warning,
        "TFDDL_STALL_LIMIT": "inf" if limit == 0 else limit,
    }
    os.environ.update({name: str(value) for name, value in variables.items() if value is not None})
    options = {
        "-np": processes,
        "-H": hosts,
        "--hostfile": hostfile,
        "--network-interfaces": interfaces,
        "--timeline-filename": timeline_filename,
    }
    line = ["--horovod"]
    line += [item for name, value in options.items() if value is not None for item in (name, str(value))]
    line += ["--timeline-mark-cycles"] if timeline_mark_cycles else []
    line += ["--verbose"] if verbose else []
    run.main([*line, *command], prog_name="horovodrun")


def _print_build() -> None:
    from tfddl import __version__
    from tfddl.runtime import features

    click.echo(f"tfddl {__version__}, with the names of Horovod\n")
    parts = {"TensorFlow": True, "MPI": features.mpi_built(), "NCCL": bool(features.nccl_built())}
    for name, there in {**parts, "Gloo": False, "PyTorch": False, "MXNet": False}.items():
        click.echo(f"    [{'X' if there else ' '}] {name}")


if __name__ == "__main__":
    main()
