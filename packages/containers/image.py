"""An image in a directory: the base from Debian's archive, the steps of a recipe, and commands in a container of it.

Commands run in namespaces of their own for mounts and processes, so that no mount and no process stays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from packages.containers.recipes import Recipe, assignment
from packages.wheel.inputs import ROOT
from packages.wheel.places import python_prefix
from packages.wheel.toolchain import run

LIMIT_S = 1800
# What the official image of Python has beside Debian's essential packages.
PACKAGES = (
    "ca-certificates,netbase,tzdata,libbz2-1.0,libexpat1,libffi8,liblzma5,libncursesw6,libreadline8,libsqlite3-0,"
    "libssl3,libuuid1,zlib1g,libnsl2"
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OF_ROOT = {"PATH": PATH, "HOME": "/root"}
# Certificates of a network that has its own authority, for pip.
CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
NAMESPACES = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child")
# The arguments: the image, its /train, "rw" or "ro", the command. /dev/shm has the size that docs/launch.md names.
MOUNT = """
set -e
root=$1; train=$2; mode=$3; shift 3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o size=1g,mode=1777 tmpfs "$root/dev/shm"
if [ "$mode" = ro ]; then mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"; fi
mkdir -p "$root/train"
mount --bind "$train" "$root/train"
if [ "$mode" = ro ]; then mount -o remount,bind,ro "$root"; fi
exec "$@"
"""


@dataclass(frozen=True)
class Image:
    """A directory with an image.

    Attributes:
        recipe: what builds it.
        root: absolute path of the image's root.
        train: absolute path of the directory that is mounted at /train.
        log: path of the file for the output of all steps.
    """

    recipe: Recipe
    root: Path
    train: Path
    log: Path

    def build(self, base: Path) -> None:
        """Runs the steps of the recipe on a copy of the base.

        Raises:
            click.ClickException: a command failed; with the end of its output.
        """
        shutil.rmtree(self.root, ignore_errors=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(self.root)], check=True)
        variables = OF_ROOT | certificates()
        directory = "/"
        for keyword, rest in self.recipe.steps:
            match keyword:
                case "RUN":
                    run(self._command(["sh", "-c", rest], variables, directory), self.log)
                case "COPY":
                    self._copy(*rest.split())
                case "ARG" | "ENV":
                    variables |= [assignment(rest, variables)]
                case "WORKDIR":
                    directory = rest
                    (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a container."""
        variables = dict(OF_ROOT)
        for keyword, rest in self.recipe.steps:
            if keyword == "ENV":
                variables |= [assignment(rest, variables)]
        return variables

    def command(self, command: Sequence[str], user: int | None = None) -> list[str]:
        """The command line that runs a command in a container, in /train.

        Args:
            command: list of strings.
            user: a user who can write to /train, /tmp and /dev/shm only, as with Apptainer; None for root.
        """
        variables = self.variables | ({"HOME": "/train"} if user is not None else {})
        return self._command(command, variables, "/train", user)

    def _command(
        self, command: Sequence[str], variables: Mapping[str, str], directory: str, user: int | None = None
    ) -> list[str]:
        return [
            *NAMESPACES,
            *["timeout", "-k", "10", str(LIMIT_S)],
            *["sh", "-c", MOUNT, "sh", str(self.root), str(self.train), "rw" if user is None else "ro"],
            *self.chroot(user),
            *["env", "-i", *(f"{name}={value}" for name, value in variables.items())],
            *["sh", "-c", f'cd {directory} && exec "$@"', "sh", *command],
        ]

    def chroot(self, user: int | None = None) -> list[str]:
        return ["chroot", *([f"--userspec={user}:{user}"] if user is not None else []), str(self.root)]

    def _copy(self, source: str, target: str) -> None:
        """Copies the files that git knows, which is what a clone holds."""
        listed = subprocess.run(["git", "ls-files", "-z", source], cwd=ROOT, capture_output=True, check=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            path = self.root / target.lstrip("/") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path)


def make_base(name: str, directory: Path, mirror: str) -> Path:
    """Makes the base image, where it is not there yet: a minimal Debian, and this machine's Python in /usr/local.

    Args:
        name: string, such as "python:3.12-slim-bookworm".
        directory: for the base.
        mirror: URL of an archive of Debian.

    Raises:
        click.ClickException: a command failed, or this program cannot make this image.
    """
    match = re.fullmatch(r"python:(3\.\d+)-slim-(\w+)", name)
    if match is None:
        raise click.ClickException(
            f"The base is an image such as python:3.12-slim-bookworm. Received: {name}"
        )
    python, suite = match.groups()
    root = directory / name.replace(":", "-")
    ready = root / ".ready"
    if ready.exists():
        return root
    shutil.rmtree(root, ignore_errors=True)  # of a run that was interrupted
    log = directory / "base.log"
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root), mirror], log)
    _copy_python(Path(python_prefix(python)), python, root / "usr" / "local")
    _copy_settings(root)
    run(["chroot", str(root), "ldconfig"], log)
    run(["chroot", str(root), "python", "-m", "ensurepip", "--default-pip"], log, {"PATH": PATH})
    ready.touch()
    return root


def certificates() -> dict[str, str]:
    """The variables of this machine that name a file of certificates; it is at the same place in an image."""
    return {name: os.environ[name] for name in CERTIFICATES if name in os.environ}


def _copy_python(prefix: Path, version: str, target: Path) -> None:
    name = f"python{version}"
    left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__")
    shutil.copytree(prefix / "lib" / name, target / "lib" / name, ignore=left_out)
    shutil.copytree(prefix / "include" / name, target / "include" / name)
    for library in (prefix / "lib").glob("libpython*.so*"):
        shutil.copy2(library, target / "lib", follow_symlinks=False)
    shutil.copy2(prefix / "bin" / name, target / "bin")
    for link in ("python3", "python"):
        (target / "bin" / link).symlink_to(name)


def _copy_settings(root: Path) -> None:
    """How this machine reaches the network."""
    for file in ["/etc/resolv.conf", "/etc/hosts", *certificates().values()]:
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
