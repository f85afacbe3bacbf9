"""The inputs of the compiler: the headers and libraries of TensorFlow's and MPI's wheels."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from packages.wheel.toolchain import run

ROOT = Path(__file__).resolve().parents[2]
# Of TensorFlow 2.15 and of every later one the newest Python with wheels of both is 3.11. No header depends on it.
PYTHON = "3.11"
# The platforms that pip looks for where the wheel is for another processor than this machine's, the newest glibc first.
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


@dataclass(frozen=True)
class MpiAbi:
    """The MPIs that have one binary interface: a library for one of them serves all.

    Attributes:
        vendor: string, also the name of the package with the headers to compile with.
        library: string, the file of the package to link with.
        majors: ints, the major versions with this interface that have been tried.
    """

    vendor: str
    library: str
    majors: tuple[int, ...]


MPIS = (MpiAbi("openmpi", "libmpi.so.40", (4, 5)), MpiAbi("mpich", "libmpi.so.12", (4, 5)))


def pinned(package: str) -> dict[str, str]:
    """Reads the exact versions of a package in the constraint files, by minor version (`{"2.21": "2.21.0"}`)."""
    files = [*sorted((ROOT / "constraints").glob("tf*.txt")), ROOT / "constraints.txt"]
    pattern = re.compile(rf"^{re.escape(package)}==((\d+\.\d+)\S*)", re.MULTILINE)
    return {minor: version for file in files for version, minor in pattern.findall(file.read_text())}


def tensorflow_package(version: str, machine: str) -> str:
    """Names the package with TensorFlow `version` for CPUs of the kind `machine`."""
    if machine == "x86_64":
        return "tensorflow-cpu"
    return "tensorflow-cpu-aws" if version.startswith("2.15.") else "tensorflow"


def platform_options(machine: str) -> list[str]:
    """The options that make pip look for wheels for `machine`."""
    if machine == platform.machine():
        return []
    return [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]


def unpack_tensorflow(version: str, machine: str, destination: Path, log: Path) -> Path:
    """Unpacks the headers and the libraries of a TensorFlow, where they are not there yet.

    Returns:
        Path of the package `tensorflow`.
    """
    wanted = [f"tensorflow/{name}" for name in TENSORFLOW_LIBRARIES]
    _unpack(
        f"{tensorflow_package(version, machine)}=={version}",
        machine,
        destination,
        lambda name: name if name.startswith("tensorflow/include/") or name in wanted else None,
        log,
    )
    return destination / "tensorflow"


def unpack_mpi(abi: MpiAbi, machine: str, destination: Path, log: Path) -> tuple[Path, str]:
    """Unpacks the headers and the library of an MPI, where they are not there yet.

    Returns:
        Tuple of the directory with `include` and `lib`, and of the major version.
    """
    (version,) = pinned(abi.vendor).values()
    inside = re.compile(rf"[^/]+\.data/data/(include/.*|lib/{re.escape(abi.library)})")

    def place(name: str) -> str | None:
        match = inside.fullmatch(name)
        return match[1] if match else None

    _unpack(f"{abi.vendor}=={version}", machine, destination, place, log)
    return destination, version.split(".")[0]


def _unpack(
    requirement: str, machine: str, destination: Path, place: Callable[[str], str | None], log: Path
) -> None:
    """Unpacks members of a wheel to where `place` says, complete or not at all. The wheel is not kept."""
    if destination.exists():
        return
    partial = destination.with_name(f"{destination.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    wanted = ["--python-version", PYTHON, *platform_options(machine)]
    run([*pip, *wanted, "--dest", str(partial), requirement], log)
    (wheel,) = partial.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = None if member.is_dir() else place(member.filename)
            if name:
                target = partial / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    wheel.unlink()
    partial.rename(destination)


def versions_of(minors: tuple[str, ...]) -> dict[str, str]:
    """The exact versions of TensorFlow for the minor versions that were asked for; of all where none was."""
    known = pinned("tensorflow-cpu")
    unknown = [minor for minor in minors if minor not in known]
    if unknown:
        raise click.BadParameter(f"constraints/ pins no TensorFlow {unknown[0]}, but {', '.join(known)}.")
    return {minor: version for minor, version in known.items() if not minors or minor in minors}
