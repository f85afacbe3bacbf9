"""The command `tfddl tune`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from tfddl.launch.reports import check_packages, file_option


@click.command()
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
    if it saves 2 % in three of four rounds, and more than the rounds differ. Columns:

    \b
      setting   TFDDL_BUCKET_MB: megabytes of the first and of the later buckets;
                1e-06 sends each gradient alone, 4096 all together
      buckets   how many buckets this makes of the model's gradients
      ms        a step of the slowest rank, median of rounds
      ratio     to the default in the same round: median, and quartiles p25, p75
      #wrong    weights that differ between ranks; if there are any, the exit code is 1

    A second table has compressions of gradients, with the best bucket size. They change the numbers of a training, so
    the file does not hold them: they are an argument of DistributedOptimizer.
    """
    check_packages("tfddl tune", plot_path)
    import tfddl as hvd
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
    tried = candidates.candidates(steps.gradients())
    if hvd.rank() == 0:
        click.echo(
            f"measuring {len(tried)} bucket sizes, then 3 compressions, {rounds} rounds each...", err=True
        )
    none = hvd.Compression.none
    timings = steps.measure({each.megabytes: (each.megabytes, none) for each in tried}, rounds)
    lines = candidates.compare(timings, candidates.DEFAULT)
    chosen = next(each for each in tried if each.megabytes == candidates.best(lines, candidates.DEFAULT))
    for line, each in zip(lines, tried, strict=True):
        line["buckets"] = each.buckets
    formats = {name: (chosen.megabytes, getattr(hvd.Compression, name)) for name in ("none", "fp16", "bf16")}
    more = candidates.compare(steps.measure(formats, rounds), "none")
    wrong = sum(line["#wrong"] for line in (*lines, *more))
    if hvd.rank() == 0:
        title = f"{model}, {batch} rows a rank, {hvd.size()} ranks, hosts: {hvd.cross_size()}"
        _show(title, lines, more, chosen.megabytes, candidates.best(more, "none"))
        _write(title, lines, more, chosen.in_a_file, output, json_path)
        if plot_path is not None:
            _draw(title, lines, more, plot_path)
    hvd.shutdown()
    if wrong:
        raise click.ClickException(
            f"{wrong:,} weights differed between ranks. Report this with the output of tfddl doctor -np 2 --json."
        )


def _show(
    title: str, lines: list[dict[str, Any]], more: list[dict[str, Any]], chosen: str, compression: str
) -> None:
    from tfddl.launch.table import show

    show(title, lines, [f"best: TFDDL_BUCKET_MB={chosen}"], left=["setting"])
    advice = (
        f"faster: compression=hvd.Compression.{compression} in DistributedOptimizer or DistributedGradientTape"
        if compression != "none"
        else "no compression is faster"
    )
    show("compression", more, [advice], left=["setting"])


def _write(
    title: str,
    lines: list[dict[str, Any]],
    more: list[dict[str, Any]],
    megabytes: str,
    output: Path | None,
    json_path: Path | None,
) -> None:
    if output is not None:
        output.write_text(f"# tfddl tune: {title}\nfusion-threshold-mb: {megabytes}\n")
        click.echo(f"Written: {output}. Use it: tfddlrun --config-file {shlex.quote(str(output))} ...")
    if json_path is not None:
        document = {"title": title, "buckets": lines, "compression": more, "fusion-threshold-mb": megabytes}
        json_path.write_text(json.dumps(document, indent=2) + "\n")


def _draw(title: str, lines: list[dict[str, Any]], more: list[dict[str, Any]], path: Path) -> None:
    """Ratios to the default, with quartiles."""
    from matplotlib.figure import Figure  # not pyplot: no window, no display

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, some, label in zip(
        figure.subplots(1, 2, sharey=True), (lines, more), ("TFDDL_BUCKET_MB", "compression"), strict=True
    ):
        ratios = [line["ratio"] for line in some]
        spread = [
            [line["ratio"] - line["p25"] for line in some],
            [line["p75"] - line["ratio"] for line in some],
        ]
        axes.bar([line["setting"] for line in some], ratios, yerr=spread, capsize=3)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xlabel=label, ylabel="time of a step / that of the first")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
