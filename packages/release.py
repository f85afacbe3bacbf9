"""`python -m packages.release`: builds the files of a release, twice, and checks them."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent


@click.command()
@click.option("--wheel-options", default="", help="Options of python -m packages.wheel, in one string.")
@click.option("--recompile", is_flag=True, help="Compile the libraries twice too, not only pack them twice.")
@click.option("--untagged", is_flag=True, help="Build without the tag v<version>, to try a release.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=ROOT / "dist",
    help="Directory for the files of the release.",
)
def main(wheel_options: str, recompile: bool, untagged: bool, output: Path) -> None:
    """Builds the files of a release: source distribution, wheel, bill of materials, checksums.

    The version is that of tfddl/__init__.py. CHANGELOG.md has to have its section with a date, and the checked-out commit
    its tag. No file may differ from the commit. Both files are built twice, and have to be equal byte for byte.
    """
    version = check_version(untagged)
    check_clean()
    began = time.monotonic()
    options = shlex.split(wheel_options)
    work = ROOT / "build" / "release"
    shutil.rmtree(work, ignore_errors=True)
    first = build(work / "first", options)
    second = build(work / "second", [*options, *(["--work", str(work / "wheel")] if recompile else [])])
    for one, other in zip(first, second, strict=True):
        if digest(one) != digest(other):
            raise click.ClickException(f"Two builds of {one.name} differ: compare {one} and {other}")
        click.echo(f"{one.name}: two builds are equal")
    _python("-m", "twine", "check", "--strict", *map(str, first))
    # W004 takes every .so for a module of Python. tfddl's libraries are opened by their paths, and their names have dots.
    _python("-m", "check_wheel_contents", "--ignore", "W004", str(first[1]))
    output.mkdir(parents=True, exist_ok=True)
    files = [Path(shutil.copy(path, output / path.name)) for path in first]
    files.append(bill_of_materials(files[1], output / f"tfddl-{version}.cdx.json", work / "venv"))
    sums = output / "SHA256SUMS"
    sums.write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))
    for path in [*files, sums]:
        click.echo(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")
    commit, minutes = _git("rev-parse", "--short", "HEAD").strip(), (time.monotonic() - began) / 60
    tag = "not tagged" if untagged else f"tag v{version}"
    click.echo(f"Version {version} of commit {commit}, {tag}: {minutes:.1f} minutes")


def check_version(untagged: bool) -> str:
    """Returns the version; refuses one without a dated section in the changelog, or without its tag.

    Raises:
        click.ClickException: See above.
    """
    text = (ROOT / "tfddl" / "__init__.py").read_text()
    (version,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if not re.search(
        rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        raise click.ClickException(
            f"CHANGELOG.md has no section with a date for this version: ## {version} (2026-01-31)"
        )
    tags = _git("tag", "--points-at", "HEAD").split()
    if not untagged and f"v{version}" not in tags:
        raise click.ClickException(
            f"This commit has no tag v{version}: git tag v{version}, or change the version in tfddl/__init__.py, or try the "
            f"release with --untagged. Received: tags {', '.join(tags) or 'none'}"
        )
    return version


def check_clean() -> None:
    """Refuses files that differ from the commit, or that it does not have: they would be packed with the commit's time.

    Raises:
        click.ClickException: See above.
    """
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise click.ClickException(
            "Some files differ from the checked-out commit: commit them, or git stash -u. Received: "
            + ", ".join(line[3:] for line in changed[:5])
            + more
        )


def build(directory: Path, wheel_options: list[str]) -> tuple[Path, Path]:
    """Builds the source distribution and the wheel into a new directory. Times in both are that of the commit."""
    directory.mkdir(parents=True)
    epoch = _git("log", "-1", "--format=%ct").strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    _python(
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "--outdir",
        str(directory),
        str(ROOT),
        environment=environment,
    )
    (source,) = directory.glob("*.tar.gz")
    set_times(source, int(epoch))
    _python("-m", "packages.wheel", "--output", str(directory), *wheel_options, environment=environment)
    (wheel,) = directory.glob("*.whl")
    return source, wheel


def set_times(archive: Path, epoch: int) -> None:
    """Gives a tar.gz the time `epoch`, in seconds since 1970, for every file, no owners, and an order by name."""
    with tarfile.open(archive) as old:
        members = [(member, old.extractfile(member)) for member in sorted(old, key=lambda each: each.name)]
        part = archive.with_suffix(".part")
        with (
            part.open("wb") as raw,
            gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
        ):
            for member, content in members:
                member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
                member.pax_headers = {}
                new.addfile(member, content)
    part.replace(archive)


def bill_of_materials(wheel: Path, output: Path, environment: Path) -> Path:
    """Writes the CycloneDX list of the wheel and of all that it installs, with versions and licenses."""
    venv.create(environment, with_pip=False)  # an environment's own pip and setuptools would be on the list
    python = str(environment / "bin" / "python")
    install = ["-m", "pip", "--python", python, "install", "--quiet"]
    _python(*install, "-c", str(ROOT / "constraints.txt"), str(wheel))
    _python(
        "-m", "cyclonedx_py", "environment", "--output-reproducible", "--output-file", str(output), python
    )
    # pip has noted where the wheel lay on this machine.
    output.write_text(output.read_text().replace(wheel.as_uri(), wheel.name))
    return output


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _python(*arguments: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment)
    if done.returncode:
        raise click.ClickException(
            f"Failed with exit code {done.returncode}, see above: python {shlex.join(arguments)}"
        )


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, cwd=ROOT, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(prog_name="python -m packages.release")
