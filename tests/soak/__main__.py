"""`make soak`: a long job whose ranks must not leak, then training steps that must repeat bit for bit."""

import sys

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.soak import jobs
from tests.soak.report import flatness
from tests.soak.samples import GROWTH_MB, WARM_UP, leaks

FEWEST_STEPS = 250
"""With fewer samples the rule means nothing."""
REPEATED_ON = (2, 3)
"""Numbers of ranks."""


@click.command()
@click.option(
    "--steps",
    default=10000,
    type=click.IntRange(FEWEST_STEPS),
    show_default=True,
    help="Steps of the long job.",
)
@click.option("--ranks", default=2, type=click.IntRange(2), show_default=True, help="Ranks of the long job.")
@click.option("--seed", default=0, show_default=True, help="Chooses the collectives and the slow ranks.")
@click.option(
    "--runs", default=100, show_default=True, help="Runs of the repeated step in each job; 0 for none."
)
@click.option(
    "--jobs", "repeats", default=3, show_default=True, help="Jobs that repeat the step, on 2 and on 3 ranks."
)
def main(steps: int, ranks: int, seed: int, runs: int, repeats: int) -> None:
    """Runs a long job and fails if its ranks leak, then repeats a training step and fails if its weights differ.

    The job trains, runs collectives of changing sizes, adds and removes process sets, joins, writes checkpoints, and leaves
    and starts anew, while random ranks are slow.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        good = soak(console, steps, ranks, seed)
        for size in REPEATED_ON if runs else ():
            good &= repeat(console, runs, repeats, size)
    except jobs.SoakError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(not good)


def soak(console: Console, steps: int, ranks: int, seed: int) -> bool:
    """Runs the long job and prints its table. Returns whether nothing leaks."""
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"steps on {ranks} ranks", total=steps)
        samples = jobs.soak(steps, ranks, seed, lambda done: progress.update(task, completed=done))
        progress.update(task, completed=steps)
    console.print(flatness(samples))
    console.print(
        f"Rule, after the first {WARM_UP:.0%} of the samples: memory grows by less than {GROWTH_MB:g} MB (the slope of the "
        "least-squares line times the steps), and the numbers of file descriptors and of threads do not change."
    )
    found = [f"rank {rank}: {leak}" for rank, one in enumerate(samples) for leak in leaks(one)]
    for leak in found:
        console.print(f"not flat: {leak}")
    return not found


def repeat(console: Console, runs: int, repeats: int, ranks: int) -> bool:
    """Repeats the step in several jobs. Returns whether all runs give the same weights."""
    found = set().union(*(jobs.hashes(runs, ranks) for _ in range(repeats)))
    console.print(
        f"{repeats} jobs on {ranks} ranks, {runs} runs of one training step in each, random load beside them: "
        f"{len(found)} hash(es) of the weights: {', '.join(sorted(text[:12] for text in found))}"
    )
    return len(found) == 1


if __name__ == "__main__":
    main()
