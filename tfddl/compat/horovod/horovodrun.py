"""The command `horovodrun`: tfddlrun with Horovod's options."""

from __future__ import annotations

from typing import Any

import click

from tfddl.launch import horovod_settings, run
from tfddl.launch.options import Command, Options, print_version

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

_HELP = """Runs COMMAND as several processes, in which `import horovod` gives tfddl.

\b
Example:
  horovodrun -np 4 python train.py

It is `tfddlrun --horovod` with Horovod's options. Options for parts of Horovod that tfddl does not have change nothing,
and a line says so. See `tfddlrun --help` for more."""


class _Command(Command):
    """tfddlrun's command by another name."""

    program = "horovodrun"


def _changes_nothing(_: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        click.echo(f"{_Command.program}: {option.opts[-1]} changes nothing in tfddl; leave it out", err=True)


def _params() -> list[click.Parameter]:
    """The options of tfddlrun, and those of Horovod's that change nothing."""
    ignored = [
        click.Option(
            [name], is_flag=name in _FLAGS, hidden=True, expose_value=False, callback=_changes_nothing
        )
        for name in (*_FLAGS, *_VALUES)
    ]
    return [*(param for param in run.main.params if param.name not in ("auto", "horovod")), *ignored]


@click.command(
    cls=_Command,
    help=_HELP,
    no_args_is_help=True,
    context_settings=run.CONTEXT,
    options_metavar="[OPTIONS]",
)
@click.option("--binding-args", default="", help="Options for mpirun that bind processes to cores.")
@click.option("--fusion-threshold-mb", type=float, help="Size of a bucket of gradients: TFDDL_BUCKET_MB.")
@click.option(
    "--hierarchical-allreduce/--no-hierarchical-allreduce",
    default=None,
    help="Reduce inside each host first: TFDDL_HIERARCHICAL_ALLREDUCE.",
)
@click.option("--stall-check-warning-time-seconds", "warning", type=float, help="TFDDL_STALL_WARNING.")
@click.option(
    "--stall-check-shutdown-time-seconds", "limit", type=float, help="TFDDL_STALL_LIMIT; 0 for never."
)
@click.option(
    "--stall-check/--no-stall-check", default=None, help="Report ranks that wait for others, the default."
)
@click.option(
    "-v", is_flag=True, is_eager=True, expose_value=False, callback=print_version, help="As --version."
)
def main(
    command: tuple[str, ...],
    binding_args: str,
    fusion_threshold_mb: float | None,
    hierarchical_allreduce: bool | None,
    warning: float | None,
    limit: float | None,
    stall_check: bool | None,
    **values: Any,
) -> None:
    """Entry point of `horovodrun`."""
    settings = {
        "fusion-threshold-mb": fusion_threshold_mb,
        "hierarchical-allreduce": hierarchical_allreduce,
        "stall-check-enabled": stall_check,
        "stall-check-warning-time-seconds": warning,
        "stall-check-shutdown-time-seconds": limit,
    }
    try:
        values["file_variables"] |= horovod_settings.split(settings)[0]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    values["mpi_args"] = f"{values['mpi_args']} {binding_args}".strip()
    if values["discovery"] and values["min_np"] is None:  # as in Horovod
        values["min_np"] = values["processes"]
    if values["discovery"] or values["min_np"] is not None or values["reset_limit"] is not None:
        values["elastic"] = True
    run.start(command, Options(auto=False, horovod=True, **values))


main.params = [*_params(), *main.params]  # not as an argument of click.command, which click 8.0 lacks


if __name__ == "__main__":
    main()
