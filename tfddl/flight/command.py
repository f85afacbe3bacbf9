"""The command `tfddl analyze`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfddl.launch.param_types import Folder

if TYPE_CHECKING:
    from tfddl.flight.compare import Parting
    from tfddl.flight.records import Job


@click.command(short_help="Says why a job hangs or failed.")
@click.argument(
    "folder",
    metavar="[DIR]",
    type=Folder(path_type=Path),
    envvar="TFDDL_DUMP_DIR",
    default="tfddl-dump",
)
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Show the stacks of this rank only. May be given several times.",
)
@click.option("--threads", is_flag=True, help="Show the stacks of all threads, and every call.")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of operations to list before the one on which ranks differ.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the conclusion as JSON, for programs.")
def analyze(folder: Path, ranks: tuple[int, ...], threads: bool, last: int, as_json: bool) -> None:
    """Says why a job hangs or failed, from the flight records of its ranks.

    DIR is the folder with rank0.json, rank1.json, ...: by default $TFDDL_DUMP_DIR, else tfddl-dump in the current
    directory. Each rank writes its record when the job stalls, on SIGUSR1, which tfddlrun passes on to all ranks, and
    with TFDDL_DUMP_DIR also when the job fails. For a job that hangs:

    \b
      kill -USR1 PID    (of tfddlrun)
      tfddl analyze tfddl-dump

    \b
    The output:
      conclusion   the first operation on which ranks differ, who waits, for whom,
                   and what the others did instead
      ranks        the operation that each rank has waited for longest, else its
                   last one: submitted (waits for other ranks), agreed (all
                   members have submitted it), started (the transfer runs), ended,
                   or failed
      operations   the last ones, beside each other for ranks that differ;
                   "-": this rank has not submitted it
      stacks       one for all ranks with equal stacks of the main thread

    Times count back from the newest record. Several hosts need a DIR that all of them share, or copy their files into one.
    """
    from tfddl.flight.records import RecordError, read_job

    try:
        job = read_job(folder)
    except (OSError, RecordError) as error:
        raise click.ClickException(str(error)) from None
    if unknown := [rank for rank in ranks if rank not in job.records]:
        raise click.BadParameter(
            f"There is no record of rank {unknown[0]} in '{folder}': choose from {sorted(job.records)}.",
            param_hint="--rank",
        )
    if as_json:
        click.echo(json.dumps(_as_json(job)))
        return
    if importlib.util.find_spec("rich") is None:
        _without_tables(job)
        return
    from tfddl.flight.report import show

    show(job, last=last, ranks=ranks, threads=threads)


def _without_tables(job: Job) -> None:
    from tfddl.flight.conclusion import conclude, notes, reasons

    for line in [conclude(job)[0], *notes(job), *(f"Written by {each}" for each in reasons(job))]:
        click.echo(line)
    click.echo("Tables and stacks need rich: pip install rich", err=True)


def _as_json(job: Job) -> dict[str, Any]:
    from tfddl.flight.conclusion import conclude, notes

    text, found = conclude(job)
    return {
        "conclusion": text,
        "notes": notes(job),
        "job": next((record.job for record in job.records.values() if record.job), ""),
        "size": job.size,
        "ranks_without_record": job.absent,
        "partings": [_parting(job, parting) for parting in found],
    }


def _parting(job: Job, parting: Parting) -> dict[str, Any]:
    states: dict[str, list[int]] = {}
    for rank, operation in parting.operations.items():
        states.setdefault(operation.state, []).append(rank)
    return {
        "kind": parting.kind.value,
        "process_set": {"id": parting.process_set.id, "ranks": list(parting.process_set.ranks)},
        "operation": parting.name,
        "ticket": parting.ticket,
        "age_s": round(job.last_written - parting.since, 3),
        "states": states,
        "waits_for": parting.suspects,
        "also": parting.also,
    }
