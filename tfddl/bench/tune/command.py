"""The command `tfddl tune`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfddl.report.options import check_packages, file_option

if TYPE_CHECKING:
    from tfddl.bench.tune.candidates import Candidate
    from tfddl.bench.tune.steps import Steps

Tables = dict[str, list[dict[str, Any]]]

_SETTINGS = {
    "buckets": "TFDDL_BUCKET_MB",
    "compression": "compression",
    "hosts": "TFDDL_HIERARCHICAL_ALLREDUCE",
}
"""The setting that each table varies."""


@click.command(short_help="Finds the fastest settings for a model.")
@click.option(
    "--model",
    default="resnet20",
    show_default=True,
    metavar="NAME|FILE",
    help="The model to train: resnet20, cnn or vgg of `tfddl bench training`, or your own, as model.save writes it.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    metavar="N",
    help="Rows of a rank in a step.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=9),
    default=11,
    show_default=True,
    metavar="N",
    help="Blocks of each setting; they take turns.",
)
@file_option("-o", "--output", about="Write the best setting, for tfddlrun --config-file.")
@file_option("--plot", "plot_path", about="Draw a picture, as .png or .svg.")
@file_option("--json", "json_path", about="Write all numbers as JSON.")
def tune(
    model: str, batch: int, rounds: int, output: Path | None, plot_path: Path | None, json_path: Path | None
) -> None:
    """Finds the bucket size and the compression with which a model's steps are fastest on the network of a job.

    It runs in a job, on the hosts that will train:

    \b
      tfddlrun -np 8 -H a:4,b:4 tfddl tune --model model.keras -o tuned.yaml
      tfddlrun -np 8 -H a:4,b:4 --config-file tuned.yaml python train.py

    The ranks train the model on random inputs, with each setting in turn. A setting is better than the default only
    if it saves 2 % in three of four rounds, and if 1 - ratio is larger than p75 - p25. Columns:

    \b
      setting   TFDDL_BUCKET_MB: megabytes of the first and of the later buckets;
                1e-06 sends each gradient alone, 4096 all together
      buckets   how many buckets this makes of the model's gradients
      ms        a step of the slowest rank, median of rounds
      ratio     to the default in the same round: median, and quartiles p25, p75; it
                counts where it contradicts ms, since a slow round hits all settings
      #wrong    weights that differ between ranks; if there are any, the exit code is 1

    A second table has compressions of gradients, with the best bucket size. They change the numbers of a training, so
    the file does not hold them: they are an argument of DistributedOptimizer. hvd.PowerSGD, for very slow networks,
    changes them more and is not tried.
    A third table, with several ranks on each of several hosts, has TFDDL_HIERARCHICAL_ALLREDUCE: by hosts (1), or each
    rank with each (0).
    """
    check_packages("tfddl tune", plot_path)
    import tfddl as hvd
    from tfddl.bench.levels import LEVELS
    from tfddl.bench.tune import candidates
    from tfddl.bench.tune.steps import Steps

    hvd.init()
    hvd.set_visible_gpu()
    if hvd.size() == 1:
        raise click.ClickException(
            "One process has nobody to exchange gradients with: start a job, such as tfddlrun -np 2 tfddl tune."
        )
    try:
        steps = Steps(model, batch)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    tables, chosen = _measure(steps, rounds)
    wrong = sum(line["#wrong"] for table in tables.values() for line in table)
    if hvd.rank() == 0:
        title = f"{model}, {batch} rows a rank, {hvd.size()} ranks, hosts: {hvd.cross_size()}"
        found = {"fusion-threshold-mb": chosen.in_a_file}
        if "hosts" in tables and candidates.best(tables["hosts"], LEVELS[0]) != LEVELS[0]:
            found["hierarchical-allreduce"] = "false"
        _show(title, tables, chosen.megabytes, found)
        _write(title, tables, found, output, json_path)
        if plot_path is not None:
            _draw(title, tables, plot_path)
    hvd.shutdown()
    if wrong:
        raise click.ClickException(
            f"{wrong:,} weights differed between ranks. Report this with the output of tfddl doctor -np 2 --json."
        )


def _measure(steps: Steps, rounds: int) -> tuple[Tables, Candidate]:
    """The lines of each table by its name, and the best bucket sizes. All ranks call it."""
    import tfddl as hvd
    from tfddl.bench.levels import LEVELS
    from tfddl.bench.rounds import quiet
    from tfddl.bench.tune import candidates

    tried = candidates.candidates(steps.gradients())

    def progress(count: int, settings: str) -> Callable[[int], None]:
        seconds = count * rounds * steps.seconds_of_a_block()
        label = f"measuring {count} {settings}, about {seconds:.0f} s"
        return _progress(label, rounds) if hvd.rank() == 0 else quiet

    none = hvd.Compression.none
    sizes = {each.megabytes: (each.megabytes, none) for each in tried}
    timings = steps.measure(sizes, rounds, progress(len(tried), "bucket sizes"))
    lines = candidates.compare(timings, candidates.DEFAULT)
    chosen = next(each for each in tried if each.megabytes == candidates.best(lines, candidates.DEFAULT))
    for line, each in zip(lines, tried, strict=True):
        line["buckets"] = each.buckets
    kinds = {
        "none": none,
        "fp16": hvd.Compression.fp16,
        "bf16": hvd.Compression.bf16,
        "int8": hvd.Compression.int8(),
    }
    formats = {name: (chosen.megabytes, kind) for name, kind in kinds.items()}
    timings = steps.measure(formats, rounds, progress(len(kinds), "compressions"))
    compressed = candidates.compare(timings, "none")
    tables = {"buckets": lines, "compression": compressed}
    if 1 < hvd.cross_size() < hvd.size():
        timings = steps.measure_levels(chosen.megabytes, rounds, progress(len(LEVELS), "ways between hosts"))
        tables["hosts"] = candidates.compare(timings, LEVELS[0])
    return tables, chosen


def _progress(label: str, rounds: int) -> Callable[[int], None]:
    """Shows a line, and returns the function that writes the number of a round into it, as a progress bar does."""

    def advance(number: int) -> None:
        click.echo(f"\r{label}: round {number} of {rounds}...", nl=number == rounds, err=True)

    advance(0)
    return advance


def _show(title: str, tables: Tables, chosen: str, found: dict[str, str]) -> None:
    from tfddl.bench.tune.candidates import best
    from tfddl.report.table import show

    in_a_file = found["fusion-threshold-mb"]
    buckets = f"best: {_SETTINGS['buckets']}={chosen}; in a file fusion-threshold-mb: {in_a_file}"
    show(title, tables["buckets"], [buckets], left=["setting"])
    compression = best(tables["compression"], "none")
    advice = (
        f"faster: compression=hvd.Compression.{compression} in DistributedOptimizer or DistributedGradientTape"
        if compression != "none"
        else "no compression is faster"
    )
    show("compression", tables["compression"], [advice], left=["setting"])
    if "hosts" in tables:
        level = "0" if "hierarchical-allreduce" in found else "1"
        show("several hosts", tables["hosts"], [f"best: {_SETTINGS['hosts']}={level}"], left=["setting"])


def _write(
    title: str, tables: Tables, found: dict[str, str], output: Path | None, json_path: Path | None
) -> None:
    from tfddl.bench.tune.candidates import DEFAULT, Candidate

    if output is not None:
        lines = "".join(f"{name}: {value}\n" for name, value in found.items())
        output.write_text(f"# tfddl tune: {title}\n{lines}")
        default = found == {"fusion-threshold-mb": Candidate(DEFAULT, 0).in_a_file}
        advice = "It holds the defaults, which are the best" if default else "Use it"
        click.echo(f"Written: {output}. {advice}: tfddlrun --config-file {shlex.quote(str(output))} ...")
    if json_path is not None:
        json_path.write_text(json.dumps({"title": title, **tables, **found}, indent=2) + "\n")


def _draw(title: str, tables: Tables, path: Path) -> None:
    """Ratios to the default, with quartiles."""
    from matplotlib.figure import Figure  # not pyplot: no window, no display

    figure = Figure(figsize=(9, 4), layout="constrained")
    plots = figure.subplots(1, len(tables), sharey=True)
    for axes, (name, table) in zip(plots, tables.items(), strict=True):
        ratios = [line["ratio"] for line in table]
        spread = [
            [line["ratio"] - line["p25"] for line in table],
            [line["p75"] - line["ratio"] for line in table],
        ]
        axes.bar([line["setting"] for line in table], ratios, yerr=spread, capsize=3)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xlabel=_SETTINGS[name], ylabel="time of a step / that of the first")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
