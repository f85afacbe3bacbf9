"""The compiler: this machine's, or Debian 11's in a chroot, whose libraries load wherever glibc is 2.31 or newer.

Debian 11 also has a compiler for another processor, whose libraries no program of this machine can load.

Each toolchain has a directory for its work. A command of the toolchain sees this directory as `/work` in the chroot, and
under its own path on the host.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tfddl.build.compile import find_cmake

SUITE = "bullseye"
PACKAGES = ("g++", "make", "cmake")
MACHINES = ("x86_64", "aarch64")
LINES_OF_A_FAILURE = 15


@dataclass(frozen=True)
class Toolchain:
    """Where commands run.

    Attributes:
        work: absolute path of the directory for everything that is built.
        glibc: tuple of two ints, the version of the C library.
        root: absolute path of the chroot, in which `work` lies; None for the host.
        cmake: string, the program.
        machine: string, the processor that the libraries are for.
    """

    work: Path
    glibc: tuple[int, int]
    root: Path | None = None
    cmake: str = "cmake"
    machine: str = platform.machine()

    @property
    def platform(self) -> str:
        """The platform tag of the wheel. Nobody knows which symbols the host's compiler has taken."""
        name = "manylinux_{}_{}".format(*self.glibc) if self.root else "linux"
        return f"{name}_{self.machine}"

    @property
    def prefix(self) -> str:
        """The first part of the compiler's name: empty for the compiler of this machine's processor."""
        return "" if self.machine == platform.machine() else f"{self.machine}-linux-gnu-"

    @property
    def definitions(self) -> dict[str, str]:
        """CMake's variables for another processor than this machine's."""
        if not self.prefix:
            return {}
        return {
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": self.machine,
            "CMAKE_CXX_COMPILER": f"{self.prefix}g++",
        }

    def path(self, path: Path) -> str:
        """The name that the toolchain's commands know a file of `work` by."""
        return f"/{path.relative_to(self.root)}" if self.root else str(path)

    def run(self, command: Sequence[str], log: Path) -> None:
        """Runs a command, with its output in a file.

        Raises:
            click.ClickException: the command failed; with the end of its output.
        """
        environment = {**os.environ}
        if self.root:
            command = ["chroot", str(self.root), *command]
            environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        run(command, log, environment)


def run(command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
    """Runs a command of the host as `Toolchain.run` does, in the log's folder: CMake's trial of a compiler leaves a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        print("$", *command, file=output, flush=True)
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=log.parent
        )
    if done.returncode:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-LINES_OF_A_FAILURE:])
        raise click.ClickException(f"{command[0]} failed; the whole output is in {log}:\n{last}")


def host(directory: Path) -> Toolchain:
    """The toolchain of this machine."""
    cmake = find_cmake()
    missing = [tool for tool in ("g++", "make", "strip") if not shutil.which(tool)]
    if missing or cmake is None:
        raise click.ClickException(
            f"Missing: {missing or 'cmake'}; on Debian and Ubuntu: apt install g++ make cmake"
        )
    major, minor = platform.libc_ver()[1].split(".")[:2]
    return Toolchain(directory / "host", (int(major), int(minor)), cmake=cmake)


def debian(directory: Path, mirror: str | None, machine: str) -> Toolchain:
    """The toolchain of Debian 11 for a processor, which is installed into a chroot by the first call.

    Args:
        directory: for the chroot.
        mirror: URL of an archive of Debian; None for that of this machine's apt.
        machine: string, one of `MACHINES`.

    Raises:
        click.ClickException: no root, no debootstrap, or no archive.
    """
    if os.geteuid() != 0:
        raise click.ClickException("A chroot needs root: run this in a container, or with --host-toolchain.")
    foreign = machine != platform.machine()
    root = directory / (f"{SUITE}-{machine}" if foreign else SUITE)
    ready = root / ".tfddl-ready"
    if not ready.exists():
        if not shutil.which("debootstrap"):
            raise click.ClickException("debootstrap is missing: apt install debootstrap")
        if root.exists():  # of a run that was interrupted
            shutil.rmtree(root)
        packages = ",".join((*PACKAGES, *((f"g++-{machine}-linux-gnu",) if foreign else ())))
        archive = mirror or apt_archive()
        log = directory / "debootstrap.log"
        install_debian(SUITE, root, [f"--include={packages}"], archive, log)
        ready.touch()
    return Toolchain(root / "work", (2, 31), root, machine=machine)


def install_debian(suite: str, root: Path, options: Sequence[str], archive: str, log: Path) -> None:
    """Installs a minimal Debian into a new directory, as root.

    It has a mount namespace of its own: debootstrap mounts /proc in the directory, and leaves it mounted if it is killed.
    """
    run(["unshare", "--mount", "debootstrap", "--variant=minbase", *options, suite, str(root), archive], log)


def apt_archive() -> str:
    """The archive of Debian that this machine's apt uses."""
    targets = ["apt-get", "indextargets", "--format", "$(SITE) $(LABEL)", "Created-By: Packages"]
    try:
        answer = subprocess.run(targets, capture_output=True, text=True).stdout
    except FileNotFoundError:
        answer = ""
    for line in answer.splitlines():
        site, _, label = line.partition(" ")
        if label == "Debian":
            return site
    raise click.ClickException("apt knows no archive of Debian here: name one with --mirror.")
