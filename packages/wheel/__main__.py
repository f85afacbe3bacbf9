"""`python -m packages.wheel`: compiles the libraries, packs them into one wheel, and checks it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from packages.wheel import toolchain
from packages.wheel.check import check_wheel
from packages.wheel.inputs import ROOT, versions_of
from packages.wheel.libraries import Builder


@click.command()
@click.option("--tensorflow", multiple=True, metavar="2.x", help="Only this TensorFlow; may be repeated.")
@click.option(
    "--host-toolchain", is_flag=True, help="Use this machine's compiler: the wheel is for machines like it."
)
@click.option(
    "--machine",
    type=click.Choice(toolchain.MACHINES),
    default=platform.machine(),
    help="The processor that the wheel is for. Defaults to this machine's.",
)
@click.option("--mirror", metavar="URL", help="An archive of Debian. Defaults to that of this machine's apt.")
@click.option(
    "--keep", is_flag=True, help="Keep TensorFlow's headers for the next run, 1 GB for each TensorFlow."
)
@click.option(
    "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Compilers at a time, 2 GB each."
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=ROOT / "build" / "wheel",
    help="Directory for chroot, objects and libraries.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=ROOT / "dist",
    help="Directory for the wheel.",
)
def main(
    tensorflow: tuple[str, ...],
    host_toolchain: bool,
    machine: str,
    mirror: str | None,
    keep: bool,
    jobs: int,
    work: Path,
    output: Path,
) -> None:
    """Builds one wheel with libraries for several TensorFlows and MPIs. An interrupted run goes on where it ended."""
    if host_toolchain and machine != platform.machine():
        raise click.UsageError(
            f"--host-toolchain compiles for {platform.machine()}. Received: --machine {machine}"
        )
    versions = list(versions_of(tensorflow).values())
    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        steps = progress.add_task("toolchain", total=len(versions) + 2)
        tools = toolchain.host(work) if host_toolchain else toolchain.debian(work, mirror, machine)
        progress.advance(steps)
        builder = Builder(tools, jobs, keep)
        for version in versions:
            progress.update(steps, description=f"TensorFlow {version}")
            if not builder.is_built(version):
                builder.build(version)
            progress.advance(steps)
        progress.update(steps, description="wheel")
        wheel = pack(builder, versions, output)
        progress.advance(steps)
    check_wheel(wheel, tools)
    click.echo(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, {(time.monotonic() - began) / 60:.1f} minutes")


def pack(builder: Builder, versions: list[str], output: Path) -> Path:
    """Packs the package and the libraries for `versions` into a wheel, and returns its path."""
    made = builder.work / "dist"
    shutil.rmtree(made, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(made), str(ROOT)]
    toolchain.run(command, builder.log, {**os.environ, "TFDDL_BINARIES": str(builder.collect(versions))})
    (wheel,) = made.glob("*.whl")
    output.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, output / wheel.name))


if __name__ == "__main__":
    main(prog_name="python -m packages.wheel")
