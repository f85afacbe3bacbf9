"""Checks the options of elastic jobs, as the user has given them together."""

from __future__ import annotations

import click

from tfddl.launch.options import Options


def check(options: Options) -> None:
    """Refuses options of elastic jobs without the option that they belong to, or that contradict each other.

    Raises:
        click.UsageError: There are such options.
    """
    given = {
        "--min-np": options.min_np is not None,
        "--reset-limit": options.reset_limit is not None,
        "--replace": options.replace,
        "--state-dir": options.state_dir is not None,
        "--host-discovery-script": options.discovery is not None,
    }
    for name, used in given.items():
        if used and not options.elastic:
            raise click.UsageError(f"{name} is for --elastic: give --elastic as well.")
    _check_discovery(options)


def _check_discovery(options: Options) -> None:
    if options.discovery is None:
        needs = {
            "--max-np": options.max_np is not None,
            "--slots": options.slots != 1,
            "--elastic-timeout": options.elastic_timeout != 600.0,
            "--blacklist-cooldown-range": options.cooldown is not None,
        }
        for name, used in needs.items():
            if used:
                raise click.UsageError(
                    f"{name} is for jobs that get new hosts: give --host-discovery-script as well."
                )
        return
    if options.hosts is not None or options.hostfile is not None:
        raise click.UsageError(
            "Give the hosts by --host-discovery-script, or by -H or --hostfile, not by both."
        )
    if options.replace:
        raise click.UsageError(
            "Leave --replace out: with --host-discovery-script the job takes all slots of the hosts."
        )
    least, most = max(options.processes or 1, options.min_np or 1), options.max_np
    if most is not None and most < least:
        raise click.UsageError(
            f"--max-np is less than the job needs to start: raise it. Received: --max-np {most} for {least} processes"
        )
    if options.cooldown is not None and options.cooldown[0] > options.cooldown[1]:
        raise click.UsageError(
            "--blacklist-cooldown-range takes the shorter time first: change the order. "
            f"Received: {options.cooldown[0]:g} {options.cooldown[1]:g}"
        )
