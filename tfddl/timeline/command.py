"""The command `tfddl timeline`."""

from __future__ import annotations

from pathlib import Path

import click

from tfddl.report.options import check_packages, file_option


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
    help="Number of lines in the last two tables.",
)
def timeline(path: Path, output: Path | None, plot: Path | None, top: int) -> None:
    """Sums up the waits of collectives, from the traces of a job.

    PATH is the argument of hvd.start_timeline, TFDDL_TIMELINE or tfddlrun --timeline-filename: the file of rank 0. The
    files of other ranks, such as timeline.rank1.json, are found beside it. The clocks of several hosts are aligned by
    the times at which the ranks agreed on collectives.

    \b
    Tables, with times in seconds (s) or milliseconds (ms):
      ranks     waiting: time in which at least one collective waited for peers;
                moving: time in which at least one moved its data
      late      how often a rank was the last to submit a collective that all
                members recorded, and how much later than the rank before;
                buckets that wait at the same time count once in "s in all"
      steps     for each graph with an allreduce that ran twice or more: the time
                between steps, and the most that communication adds to a step
                ("exposed"), from the last submission of the step to the last
                end, including waits for late ranks
      names     the collectives that took most time; "waiting" and "moving" are
                those of the rank that waited or moved longest

    The last line says what communication adds at most to the slowest kind of step, and to what that time goes.
    """
    check_packages("tfddl timeline", plot)
    from tfddl.report.table import show
    from tfddl.timeline import summary
    from tfddl.timeline.align import read_job, recordings, write_merged
    from tfddl.timeline.plot import draw
    from tfddl.timeline.trace import TraceError

    for file in filter(None, (output, plot)):
        if file.exists() and any(map(file.samefile, recordings(path).values())):
            raise click.UsageError(
                f"The output would replace a recording: give it a name of its own. Received: {file}"
            )
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
    if line := summary.conclusion(traces):
        click.echo(line)
    if output is not None:
        write_merged(traces, output)
    if plot is not None:
        draw(traces, plot)
