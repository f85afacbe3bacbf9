"""The options that all operations of `tfddl bench` share: where it runs, with whom it compares, what it writes."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tfddl.bench import lab as labs
from tfddl.bench.param_types import Lab, Labs, Names
from tfddl.bench.place import Place, fill
from tfddl.launch import allocation
from tfddl.launch.hosts import Host
from tfddl.launch.options import HOSTS
from tfddl.launch.rank_shim import end_with_parent
from tfddl.launch.run import hosts_of
from tfddl.report.options import file_option

PEERS = ("mpi4py", "mpi4py-fused", "horovod", "gloo", "mwms")
NUMBER: dict[str, Any] = {"type": click.IntRange(min=1), "show_default": True, "metavar": "N"}


def names(flag: str, choices: Sequence[str], about: str) -> Any:
    """Makes an option that takes some of the names."""
    return click.option(
        flag, type=Names(choices), default="all", show_default=True, metavar="NAME,...", help=about
    )


def common(command: Any) -> Any:
    """Adds the shared options to a command, which gets `place`, `lab`, `rounds`, `peers` and the files."""
    options = [
        click.option(
            "-np", "--num-proc", "ranks", type=click.IntRange(min=1), metavar="N",
            help="Number of ranks.  [default: 2, or all slots of the hosts]",
        ),
        *HOSTS[1:],
        click.option(
            "--lab", type=Labs(), metavar="HOSTSxRANKS[,RATE[,DELAY]]",
            help="Measure between 2 to 8 hosts that are namespaces on this machine, with Open MPI. RATE of a link in each "
            "direction: 1gbit; from three hosts on, or with a delay, a process of this machine carries all, at 100mbit "
            "well. DELAY from host to host, one way: 20ms.",
        ),
        click.option("--rounds", default=7, help="Number of rounds: blocks of calls of each adapter.", **NUMBER),
        names(
            "--peers", PEERS,
            f"Libraries to compare: {', '.join(PEERS)}; all or none. Missing ones are skipped.",
        ),
        file_option("--json", "json_path", about="Write all numbers as JSON."),
        file_option("--plot", "plot_path", about="Draw a picture, as .png or .svg."),
        file_option("--markdown", "markdown_path", about="Write the medians as a table."),
    ]  # fmt: skip

    @functools.wraps(command)
    def run(
        ranks: int | None,
        hosts: str | None,
        hostfile: Path | None,
        interfaces: str,
        ssh_port: int | None,
        ssh_identity: Path | None,
        lab: Lab | None,
        **options: Any,
    ) -> None:
        given = hosts_of(hosts, hostfile)
        if lab is not None:
            if given:
                raise click.UsageError("Give the hosts by -H or --hostfile, or by --lab, not by both.")
            _enter(lab, ranks)
            command(place=Place(lab.ranks, lab.hosts), lab=lab, **options)
            return
        reach = {"--network-interfaces": interfaces, "-p": ssh_port, "-i": ssh_identity}
        words = [word for name, value in reach.items() if value for word in (name, str(value))]
        command(place=_place(ranks, given or _allocated(), words), lab=None, **options)

    for option in reversed(options):
        run = option(run)
    return run


def _place(ranks: int | None, hosts: Sequence[Host], words: Sequence[str]) -> Place:
    if not hosts:
        return Place(ranks or 2)
    try:
        return Place(*fill(hosts, ranks), tuple(words))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _allocated() -> list[Host]:
    """The hosts of a scheduler's allocation, if there are several."""
    try:
        found = allocation.find_allocation(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return found.tasks if found is not None and len(found.hosts) > 1 else []


def _enter(lab: Lab, ranks: int | None) -> None:
    """Runs this command on the first host of a lab, unless it runs there."""
    if ranks not in (None, lab.ranks):
        raise click.UsageError(
            f"--lab has {lab.ranks} ranks: leave -np out, or choose another lab. Received: -np {ranks}"
        )
    around = os.environ.get(labs.LAB, lab.network)
    if around != lab.network:
        raise click.UsageError(
            f"This command runs in a lab of {around} (rate, delay, hosts): start it outside. Received: --lab {lab.network}"
        )
    if labs.LAB not in os.environ:
        sys.exit(_inside(lab))


def _inside(lab: Lab) -> int:
    """Runs this command on the first host of a lab. Returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="tfddl-lab-") as directory:
        line = labs.lab_command(Path(directory), lab.rate, lab.delay, len(lab.hosts))
        probe = subprocess.run([*line, "true"], capture_output=True, text=True)
        if probe.returncode != 0:
            raise click.ClickException(
                "This machine cannot build a lab: install unshare, ip and tc, permit user namespaces, and for a delay or "
                f"more than two hosts give access to /dev/net/tun. It said: {probe.stderr.strip()[-300:]}"
            )
        line += [sys.executable, "-m", "tfddl.cli", *sys.argv[1:]]
        # With this process go all processes of the lab.
        running = subprocess.Popen(line, preexec_fn=functools.partial(end_with_parent, signal.SIGKILL))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the command in the lab too
        try:
            return running.wait()
        finally:
            running.kill()  # if a signal has come
            running.wait()
