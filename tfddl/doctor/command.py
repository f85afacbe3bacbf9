"""The command `tfddl doctor`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict

import click

from tfddl.doctor import probe
from tfddl.doctor.finding import FAULT, NOTE, OK, Finding
from tfddl.launch.param_types import Text

JOB_LIMIT_S = 600.0  # the first job may compile the native library
_SIGNS = {OK: ("ok", "green"), NOTE: ("note", "yellow"), FAULT: ("FAULT", "red")}


@click.command()
@click.option(
    "-np",
    "--num-proc",
    "processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also train on N processes.",
)
@click.option(
    "-H",
    "--hosts",
    type=Text(),
    metavar="HOST:SLOTS,...",
    help="Hosts of these processes, as tfddlrun takes them: node1:2,node2:2.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the findings as JSON, for programs and bug reports."
)
def doctor(processes: int | None, hosts: str | None, as_json: bool) -> None:
    """Looks at this installation and this host, and says what to mend.

    \b
    Examples:
      tfddl doctor            Python, TensorFlow, Keras, MPI, the native library,
                              GPUs, shared memory, cores, scheduler, network
      tfddl doctor -np 2      the same, then two processes: a hello, an allreduce
                              compared with NumPy, ten steps of fit, a timing

    Each probe is a process of its own with a time limit, so the doctor works when half of the installation is broken. A
    FAULT keeps tfddl from working; the line below it says how to mend it. A note may be intended.

    Exits with code 1 if there is a FAULT.
    """
    if hosts and not processes:
        raise click.UsageError("-H goes with -np: run tfddl doctor -np 4 -H node1:2,node2:2")
    found = []
    for finding in _findings(processes, hosts):
        found.append(finding)
        if not as_json:
            _print(finding)
    faults = sum(finding.state == FAULT for finding in found)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        click.echo(_summary(faults, processes))
    sys.exit(faults > 0)


def _summary(faults: int, processes: int | None) -> str:
    if faults:
        return f"{faults} {'fault' if faults == 1 else 'faults'}: the line below each says how to mend it."
    return "No fault." if processes else "No fault. To see two processes train: tfddl doctor -np 2"


def _findings(processes: int | None, hosts: str | None) -> Iterator[Finding]:
    yield from probe.run_all()
    if processes:
        click.echo(f"      training on {processes} processes; this takes up to a minute ...", err=True)
        options = ["-np", str(processes), *(["-H", hosts] if hosts else [])]
        command = [sys.executable, "-m", "tfddl.launch.run", *options]
        rank = [sys.executable, "-m", "tfddl.doctor.job", str(processes)]
        again = shlex.join(["tfddlrun", *options, *rank])
        yield from probe.run_process([*command, *rank], "job", JOB_LIMIT_S, f"see the whole output: {again}")


def _print(finding: Finding) -> None:
    word, color = _SIGNS[finding.state]
    click.echo(f"{click.style(f'{word:5}', fg=color)} {finding.subject}: {finding.text}")
    if finding.cure:
        click.echo(f"      {finding.cure}")
