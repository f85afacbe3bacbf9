"""The command `tfddl timeline`."""

from __future__ import annotations

from pathlib import Path

import click

from tfddl.launch.reports import check_packages, file_option


@click.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@file_option("-o", "--output", about="Write one trace of all ranks, for https://ui.perfetto.dev.")
@file_option("--plot", about="Draw a picture, as .png or .svg.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Lines of the last two tables.",
)
def timeline(path: Path, output: Path | None, plot: Path | None, top: int) -> None:
    """Sums up what collectives waited for, from the traces of a job.

    PATH is what hvd.start_timeline(PATH), TFDDL_TIMELINE or tfddlrun --timeline-filename was given, the file of rank
    0; those of the other ranks, as timeline.rank1.json, are found beside it. The clocks of several hosts are aligned by
    the moments at which the ranks agreed.

    \b
    Tables, with times in seconds (s) or milliseconds (ms):
      ranks     waiting: at least one collective waited for peers; moving: at
                least one moved its data. Several at once count once.
      late      how often a rank was the last to submit a collective that all its
                members recorded, and how much later than the one before;
                buckets that wait at the same time count once in "s in all"
      steps     of each graph with an allreduce that ran twice or more: the time
                between steps, and what communication adds to it at most
                ("exposed"), from the last submission of a step to the last end,
                waits for late ranks included
      names     what took most time; of each collective the rank counts that
                waited longest, and the one that moved longest
    """
    check_packages("tfddl timeline", plot)
    from tfddl.launch.table import show
    from tfddl.timeline import summary
    from tfddl.timeline.align import read_job, write_merged
    from tfddl.timeline.plot import draw
    from tfddl.timeline.trace import TraceError

    try:
        traces, notes = read_job(path)
    except (OSError, TraceError) as error:
        raise click.ClickException(str(error)) from None
    show(f"{path.name}: {len(traces)} of {traces[0].size} ranks", summary.ranks(traces), left=["host"])
    show("late", summary.lateness(traces))
    if steps := summary.exposed(traces, top):
        show("steps", steps, left=["step"], new_section="step")
    show("names", summary.names(traces, top), left=["name", "kind"])
    for note in [*notes, *summary.errors(traces), *summary.unfinished(traces)]:
        click.echo(note)
    if output is not None:
        write_merged(traces, output)
    if plot is not None:
        draw(traces, plot)
