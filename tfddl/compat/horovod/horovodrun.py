"""The command `horovodrun`: tfddlrun with Horovod's options."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from tfddl.launch import horovod_settings, run

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
    "--log-with-timestamp",
    "--log-without-timestamp",
    "--log-hide-timestamp",
    "--no-log-hide-timestamp",
    "--no-timeline-mark-cycles",
]
_VALUES = [
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
]

# Parameter -> option of tfddlrun.
_PASSED_ON = {
    "processes": "-np",
    "hosts": "-H",
    "hostfile": "--hostfile",
    "interfaces": "--network-interfaces",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "mpi_args": "--mpi-args",
    "start_timeout": "--start-timeout",
    "output_filename": "--output-filename",
    "config_file": "--config-file",
    "timeline_filename": "--timeline-filename",
    "min_np": "--min-np",
    "max_np": "--max-np",
    "discovery": "--host-discovery-script",
    "slots": "--slots",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
}
_PASSED_ON_FLAGS = {
    "timestamps": "--prefix-timestamp",
    "timeline_mark_cycles": "--timeline-mark-cycles",
    "verbose": "--verbose",
}

_HELP = """Runs COMMAND as several processes, in which `import horovod` gives tfddl.

\b
Example:
  horovodrun -np 4 python train.py

It is `tfddlrun --horovod` with Horovod's options. Options for parts of Horovod that tfddl does not have change nothing,
and a line says so. See `tfddlrun --help` for more."""


def _changes_nothing(_: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        click.echo(f"horovodrun: {option.opts[-1]} changes nothing in tfddl; leave it out", err=True)


def _with_options_of_horovod(command: Callable[..., None]) -> Callable[..., None]:
    for name in _FLAGS:
        command = click.option(
            *name.split(), is_flag=True, hidden=True, expose_value=False, callback=_changes_nothing
        )(command)
    for name in _VALUES:
        command = click.option(*name.split(), hidden=True, expose_value=False, callback=_changes_nothing)(
            command
        )
    return command


@click.command(
    help=_HELP,
    no_args_is_help=True,
    context_settings=run.CONTEXT,
)
@click.option("-np", "--num-proc", "processes", help="Number of processes.")
@click.option("-H", "--hosts", help="Hosts, with the number of processes of each: node1:4,node2:4.")
@click.option("-hostfile", "--hostfile", help="File with a host on each line: node1 slots=4.")
@click.option(
    "--network-interfaces", "--network-interface", "interfaces", help="Names of network interfaces."
)
@click.option("-p", "--ssh-port", help="Port of ssh on the other hosts.")
@click.option("-i", "--ssh-identity-file", help="File with the key for ssh.")
@click.option("--mpi-args", help="More options for mpirun, as one argument.")
@click.option("--binding-args", help="Options for mpirun that bind processes to cores.")
@click.option("--start-timeout", help="Seconds for all processes to start in.")
@click.option("--output-filename", help="Folder for the output of each rank.")
@click.option(
    "-prefix-timestamp",
    "--prefix-output-with-timestamp",
    "timestamps",
    is_flag=True,
    help="Date and time before each line.",
)
@click.option("--config-file", help="YAML with values of these options.")
@click.option("--fusion-threshold-mb", type=float, help="Size of a bucket of gradients: TFDDL_BUCKET_MB.")
@click.option(
    "--hierarchical-allreduce/--no-hierarchical-allreduce",
    default=None,
    help="Reduce inside each host first: TFDDL_HIERARCHICAL_ALLREDUCE.",
)
@click.option("--timeline-filename", help="File for a timeline of rank 0; see tfddlrun.")
@click.option("--timeline-mark-cycles", is_flag=True, help="Mark in the timeline where the ranks vote.")
@click.option("--stall-check-warning-time-seconds", "warning", type=float, help="TFDDL_STALL_WARNING.")
@click.option(
    "--stall-check-shutdown-time-seconds", "limit", type=float, help="TFDDL_STALL_LIMIT; 0 for never."
)
@click.option(
    "--stall-check/--no-stall-check", default=None, help="Report ranks that wait for others, the default."
)
@click.option("--min-np", "--min-num-proc", "min_np", help="Go on with as few processes, if others are lost.")
@click.option("--max-np", "--max-num-proc", "max_np", help="The most processes, as new hosts come.")
@click.option(
    "--host-discovery-script", "discovery", help="Command that prints a line host:slots for each host."
)
@click.option(
    "--slots-per-host", "--slots", "slots", help="Slots of a host for which the script prints none."
)
@click.option("--elastic-timeout", help="Seconds to wait for hosts.")
@click.option(
    "--blacklist-cooldown-range", "cooldown", nargs=2, help="Seconds for which a failed host is not used."
)
@click.option("--reset-limit", help="With --min-np: how often the job may start again.")
@click.option("-cb", "--check-build", is_flag=True, help="Print what this tfddl can do.")
@click.option("--verbose", is_flag=True, help="Print the mpirun line, and the starts and ends of processes.")
@click.option("-v", "--version", is_flag=True, help="Print the version.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_with_options_of_horovod
def main(command: tuple[str, ...], **options: Any) -> None:
    """Entry point of `horovodrun`."""
    for flag in ("version", "check_build"):
        if options[flag]:
            run.main([f"--{flag.replace('_', '-')}"], prog_name="horovodrun")
    settings = {
        "fusion-threshold-mb": options["fusion_threshold_mb"],
        "hierarchical-allreduce": options["hierarchical_allreduce"],
        "stall-check-enabled": options["stall_check"],
        "stall-check-warning-time-seconds": options["warning"],
        "stall-check-shutdown-time-seconds": options["limit"],
    }
    try:
        os.environ.update(horovod_settings.split(settings)[0])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    elastic = options["min_np"] or options["reset_limit"] or options["discovery"]
    options["mpi_args"] = " ".join(filter(None, (options["mpi_args"], options["binding_args"])))
    line = ["--horovod"] + (["--elastic"] if elastic else [])
    if options["discovery"] and not options["min_np"]:  # as in Horovod
        options["min_np"] = options["processes"]
    line += ["--blacklist-cooldown-range", *options["cooldown"]] if options["cooldown"] else []
    line += [item for name, flag in _PASSED_ON.items() if options[name] for item in (flag, options[name])]
    line += [flag for name, flag in _PASSED_ON_FLAGS.items() if options[name]]
    run.main([*line, *command], prog_name="horovodrun")


if __name__ == "__main__":
    main()
