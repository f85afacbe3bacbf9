"""`python -m packages.containers`: builds images in chroots, and trains in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import yaml

from packages.containers.image import LIMIT_S, Image, make_base
from packages.containers.recipes import read_definition, read_dockerfile
from packages.containers.workers import run_job
from packages.wheel.inputs import ROOT
from packages.wheel.toolchain import apt_archive

DEPLOY = ROOT / "deploy"
RECIPES = {
    "docker": DEPLOY / "Dockerfile",
    "apptainer": DEPLOY / "tfddl.def",
    "openmpi4": Path(__file__).with_name("Dockerfile.openmpi4"),
}
EXAMPLE = ROOT / "docs" / "guides" / "custom-loops.md"  # which needs no package beside tfddl's own
LEARNT = re.compile(r"^\[(\d)\] steps: \d+ loss below 0\.05: True$", re.MULTILINE)
RUN = ["tfddlrun", "-np", "2", "python", "train.py"]
PBS = "for i in 0 1; do hostname; done >/tmp/nodes; PBS_JOBID=1 PBS_NODEFILE=/tmp/nodes tfddlrun python train.py"
TESTS = "cd /src && python -m pytest -p no:cacheprovider -q -n 2 tests/launch"
USER = 1000


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(RECIPES)))
@click.option("--keep", is_flag=True, help="Take the images of the last run, and only train in them.")
@click.option("--mirror", metavar="URL", help="An archive of Debian. Defaults to that of this machine's apt.")
def main(names: tuple[str, ...], keep: bool, mirror: str | None) -> None:
    """Tries deploy/Dockerfile with deploy/mpijob.yaml, deploy/tfddl.def, and the launcher on Open MPI 4.

    Each recipe runs as it is written, in a chroot. Needs root, debootstrap, and on the PATH the Python of the base image.
    """
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        raise click.ClickException("A chroot needs root and debootstrap: apt install debootstrap")
    work = ROOT / "build" / "containers"
    work.mkdir(parents=True, exist_ok=True)
    for name in names or RECIPES:
        text = RECIPES[name].read_text()
        recipe = read_definition(text) if RECIPES[name].suffix == ".def" else read_dockerfile(text)
        program = _directory_with_program(work / f"{name}-train")
        image = Image(recipe, work / name, program, work / f"{name}.log")
        if not (keep and image.root.exists()):
            click.echo(f"{name}: building; the output goes to {image.log}")
            image.build(make_base(recipe.base, work, mirror or apt_archive()))
        for what in _trials(name, image):
            click.echo(f"{name}: {what}")


def _directory_with_program(directory: Path) -> Path:
    """A directory of the user with train.py, for /train."""
    directory.mkdir(exist_ok=True)
    os.chown(directory, USER, USER)
    program = re.search(r"```python\n(.*?)```", EXAMPLE.read_text(), re.DOTALL)
    assert program is not None
    (directory / "train.py").write_text(program[1])
    return directory


def _trials(name: str, image: Image) -> Iterator[str]:
    """Runs the jobs of an image. Yields which have succeeded."""
    if name == "apptainer":
        script = ["sh", "-c", f"{image.recipe.environment}\n{image.recipe.start}", "sh", *RUN[1:]]
        _train(image.command(script, user=USER), 2, image.log)
        yield "apptainer run: 2 ranks have trained, as a user and on a read-only image"
        return
    _train(image.command(RUN), 2, image.log)
    yield "tfddlrun -np 2: 2 ranks have trained"
    job = yaml.safe_load((DEPLOY / "mpijob.yaml").read_text())["spec"]
    _train(run_job(image, job), 4, image.log)
    yield "the job of mpijob.yaml: 4 ranks have trained, on two workers"
    if name == "openmpi4":
        output = _train(image.command(["sh", "-c", PBS]), 2, image.log)
        yield output.partition("\n")[0].removeprefix("tfddlrun: ") + ": 2 ranks have trained"
        output = _checked(image.command(["sh", "-c", TESTS]), image.log)
        yield "tests/launch: " + output.strip().splitlines()[-1]


def _train(command: list[str], ranks: int, log: Path) -> str:
    """Runs a job, all ranks of which have to learn. Returns its output, that to stderr first."""
    output = _checked(command, log)
    if sorted(map(int, LEARNT.findall(output))) != list(range(ranks)) or "compiling" in output:
        raise click.ClickException(
            f"Expected {ranks} ranks that learn, with the library of the image. Received:\n{output}"
        )
    return output


def _checked(command: list[str], log: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    output = done.stderr + done.stdout
    with log.open("a") as file:
        file.write(output)
    if done.returncode:
        raise click.ClickException(
            f"Exit code {done.returncode}; the whole output is in {log}:\n{output[-3000:]}"
        )
    return output


if __name__ == "__main__":
    main(prog_name="python -m packages.containers")
