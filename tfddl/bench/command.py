"""The command `tfddl bench`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfddl.bench.options import NUMBER, common, names
from tfddl.bench.param_types import Lab, Sizes
from tfddl.bench.place import Place
from tfddl.launch.signals import number_of
from tfddl.report.options import check_packages

if TYPE_CHECKING:
    from tfddl.bench.adapters import Adapter
    from tfddl.bench.case import Case

_SIZES = "4B,4K,64K,1M,16M,64M"
_OPERATIONS = {
    "allreduce": "Sum of a tensor over all ranks.",
    "chain": "Allreduces in one graph, each of the result of the one before.",
    "broadcast": "Rank 0's tensor on all ranks.",
    "allgather": "The tensors of all ranks, one after another.",
    "reducescatter": "Each rank's slice of the sum over all ranks.",
    "alltoall": "The n-th piece of every rank to rank n.",
}
DTYPES = ["float16", "float32", "float64", "int32", "int64"]
_NAME = "tfddl bench"
_COLUMNS = "Columns and lines of the table: tfddl bench --help"


@click.group(no_args_is_help=True)
def bench() -> None:
    """Times collectives of tfddl and of other libraries.

    \b
    Examples:
      tfddl bench allreduce -np 2
          an allreduce inside a graph, for sizes from 4 B to 64 MB, beside MPI, and
          Horovod, PyTorch's gloo and TensorFlow's MultiWorkerMirroredStrategy
          where installed
      tfddl bench allreduce -np 4 --sizes 1M,256M --dtype float16 --peers none
          two sizes of another dtype, only tfddl
      tfddl bench gradients -np 2 --json result.json --plot result.png
          all gradients of ResNet-50, of VGG-16 and 1,000 small ones
      tfddl bench chain -np 2 --sizes 4B,1K,64K
          100 allreduces in one graph, each of the result of the one before; the time is
          that of one of them
      tfddl bench training -np 2
          training steps of three models, with and without communication
      tfddl bench allreduce --lab 2x1,1gbit --sizes 16M
          two hosts with one rank each, as namespaces on this machine, with a cable of
          1 Gbit/s between them; 4x2,100mbit,20ms has four hosts of two ranks, and 20 ms
          from each host to each
      tfddl bench allreduce -H node1:4,node2:4
          between hosts of a cluster, which must let you in by ssh; in an allocation of
          Slurm, PBS or LSF over several hosts, -H is not needed

    It runs on CPUs. Each rank has one core and one thread, so start at most as many ranks as a host has cores,
    and run nothing else meanwhile. Ctrl-C keeps the finished cases. The libraries take turns: while one is timed,
    the ranks of the others sleep. Columns:

    \b
      us              time of one call, until its result is there: median of rounds
      p10 us, p90 us  10th and 90th percentile of rounds
      algbw GB/s      bytes / time
      busbw GB/s      algbw times the share that each of n ranks must send at least,
                      as in nccl-tests: 2(n-1)/n for an allreduce
      x tfddl         time / tfddl's time
      excess us       time - time of an op that does nothing (TensorFlow's share)
      #wrong          wrong elements in the checked results of all rounds;
                      if there are any, the exit code is 1

    Other lines: "floor" is the time of the copies that no allreduce can avoid, with all cores copying at once. "in
    shared memory" is an allreduce of a tensor in shared memory, such as the result of a collective. "futex
    ping-pong" is a round trip between two processes that sleep in between. "TCP between hosts" sends what the collective has
    to send there, both ways at once, and reduces nothing. `tfddl bench training --help` explains its
    lines.
    """


def _add(operation: str, about: str) -> None:
    @bench.command(operation, help=about, epilog=_COLUMNS)
    @common
    @click.option(
        "--sizes",
        type=Sizes(),
        default=_SIZES,
        show_default=True,
        metavar="SIZE,...",
        help="Bytes of the tensor (for allgather: of the result).",
    )
    @click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
    def command(place: Place, sizes: list[int], dtype: str, **options: Any) -> None:
        from tfddl.bench.case import collective

        cases = [collective(operation, size, dtype, place.ranks) for size in sizes]
        _measure(f"{operation}, {dtype}", cases, place, **options)


for _operation, _about in _OPERATIONS.items():
    _add(_operation, _about)


@bench.command(epilog=_COLUMNS)
@common
@names(
    "--sets",
    ("resnet50", "vgg16", "1000x1KB"),
    "Sets of gradients: resnet50 (161 tensors, 102 MB), vgg16 (32 tensors, 553 MB), 1000x1KB; or all.",
)
def gradients(place: Place, sets: list[str], **options: Any) -> None:
    """Mean of all gradients of a model, by the tape."""
    from tfddl.bench.case import gradients as case

    _measure("gradients", [case(name, place.ranks) for name in sets], place, **options)


@bench.command(epilog=_COLUMNS)
@common
@names(
    "--models",
    ("resnet20", "cnn", "vgg"),
    "Models: resnet20 (0.27 million weights), cnn (4.2), vgg (14.5); or all.",
)
@click.option("--batch", default=32, help="Images of each rank in a step.", **NUMBER)
@click.option("--steps", default=10, help="Steps in a block.", **NUMBER)
def training(place: Place, models: list[str], batch: int, steps: int, **options: Any) -> None:
    """Training steps of a model, with and without communication.

    Random images of 32 x 32 x 3, SGD with momentum, gradients by DistributedGradientTape or the peer's own means. "op
    that does nothing" is compute: the same processes without communication. "ranks meet" adds a barrier to each
    step, so its time includes the wait for the slower rank. "one process alone" has the whole machine.

    \b
    Further columns:
      images/s      of all ranks together
      x compute     step / compute
      efficiency %  images/s / (ranks x images/s of one process alone)
      #wrong        trained weights that differ between ranks; without
                    communication they differ, and none counts as wrong
    """
    from tfddl.bench.case import training as case

    cases = [case(name, place.ranks, batch, steps) for name in models]
    _measure(f"training, {batch} images a rank", cases, place, **options)


def _measure(
    title: str,
    cases: list[Case],
    place: Place,
    lab: Lab | None,
    rounds: int,
    peers: list[str],
    **files: Path | None,
) -> None:
    check_packages(_NAME, files["plot_path"])
    _check_memory(cases, place.ranks_on_a_machine)
    from tfddl.bench import results
    from tfddl.bench.session import Session

    title += f", {place.ranks} ranks{f' on {len(place.hosts)} hosts' if len(place.hosts) > 1 else ''}"
    if lab:
        title += f", {lab.rate if lab.rate != '-' else 'no limit'}{lab.delay and ', ' + lab.delay}"
    adapters, notes = _adapters(cases[0].operation, peers, place.kind) if cases else ({}, [])
    lines: list[dict[str, Any]] = []
    stopped = 0
    with Session(adapters, place, lambda text: click.echo(text, err=True)) as session:
        try:
            for case in cases:
                click.echo(f"measuring {case.set or results.human(case.bytes)}", err=True)
                lines += results.rows(case, session.measure(case, rounds))
        except KeyboardInterrupt as interrupt:
            stopped = 128 + number_of(interrupt)
            notes.append("stopped before the end: only the finished cases are listed")
    cores = len(os.sched_getaffinity(0))
    if place.ranks_on_a_machine > cores:
        shared = f"{place.ranks_on_a_machine} ranks share {cores} cores: "
        notes.append(
            shared
            + ("times are right where the network sets them" if lab else "the times are not meaningful")
        )
    shown = [{column: line[column] for column in line if column != "name"} for line in lines]
    document = {
        "title": title,
        "command": shlex.join(["tfddl", *sys.argv[1:]]),
        "ranks": place.ranks,
        "hosts": {host.name: host.slots for host in place.hosts},
        "rounds": rounds,
        "machine": results.machine(),
        "rows": lines,
        "notes": notes,
        "failed": session.failed,
        "lab": lab and lab.text,
    }
    try:
        results.show(title, shown, notes, new_section="bytes")
    finally:  # a full disk must not cost the table, nor a reader that has gone the files
        _write(document, **files)
    if stopped:
        sys.exit(stopped)
    _judge(results.wrong(lines), session.failed)


def _write(
    document: dict[str, Any], json_path: Path | None, plot_path: Path | None, markdown_path: Path | None
) -> None:
    from tfddl.bench import plot, results

    files: list[tuple[Path | None, Callable[[Path], object]]] = [
        (json_path, lambda path: path.write_text(json.dumps(document, indent=2) + "\n")),
        (markdown_path, lambda path: path.write_text(results.markdown(document["rows"]))),
        (plot_path, lambda path: plot.draw(document["title"], document["rows"], path)),
    ]
    problems = []
    for path, write in files:
        try:
            if path is not None:
                write(path)
        except OSError as error:
            problems.append(f"{path} ({error})")
    if problems:
        raise click.ClickException(
            "Cannot write the results to all files: make room before the next run; the table above has them. "
            f"Received: {', '.join(problems)}"
        )


def _judge(wrong: int, failed: dict[str, str]) -> None:
    """Ends with an error if results were wrong, or adapters failed."""
    if wrong:
        raise click.ClickException(
            f"{wrong:,} elements of the results were wrong. Report this with the output of tfddl doctor -np 2 --json."
        )
    if failed:
        raise click.ClickException(f"Failed: {', '.join(failed)}. See the errors above.")


def _adapters(operation: str, peers: list[str], hosts: str) -> tuple[dict[str, Adapter], list[str]]:
    """The adapters to start by name, and a note for each that is skipped."""
    from tfddl.bench.adapters import OWN, PEERS

    wanted = OWN | {name: PEERS[name] for name in PEERS if name in peers}
    chosen, skipped = {}, []
    for name, adapter in wanted.items():
        if operation not in adapter.operations or adapter.hosts not in ("any", hosts):
            continue
        missing = adapter.missing()
        if missing:
            skipped.append(f"{adapter.title} is left out: {' and '.join(missing)} is not installed")
        else:
            chosen[name] = adapter
    return chosen, skipped


def _check_memory(cases: Sequence[Case], ranks: int) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    largest = max((case.bytes for case in cases), default=0)
    if 2 * ranks * largest > memory:
        raise click.UsageError(
            f"Input and result of {largest / 1e9:,.1f} GB each on {ranks} ranks exceed the memory of this machine, "
            f"{memory / 1e9:,.1f} GB. Use smaller --sizes or fewer ranks."
        )
