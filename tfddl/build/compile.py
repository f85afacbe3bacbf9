"""Compiles tfddl's native library and the library with the XLA kernels, with CMake."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

from tfddl.build.discover import Mpi, TensorFlow
from tfddl.build.mpi_headers import mpi_include
from tfddl.build.scratch import scratch_directory
from tfddl.build.sources import library_stem, source_directory, source_hash, xla_library_stem

_REMIND_EVERY_S = 30.0

# A compiler's words say more than CMake's text below "CMake Error at FILE:", and that says more than make's.
_ERRORS = (
    re.compile(r"^(.*(?:error:|undefined reference|Killed|No space left).*)$", re.MULTILINE),
    re.compile(r"^CMake Error(?: (?:at|in) .*)?:(.*\n(?:(?: .*)?\n)*)", re.MULTILINE),
    re.compile(r"^(.*\*\*\* .*)$", re.MULTILINE),
)
_LONGEST_ERROR = 300


class CompileError(RuntimeError):
    """The library could not be compiled. The message has the reason and the path of the compiler's output."""


class CompilationFailed(CompileError):
    """The compiler failed, and would fail again on the same sources."""


def compile_library(
    tensorflow: TensorFlow | None, mpi: Mpi, output_dir: Path, build_dir: Path | None = None
) -> Path:
    """Compiles the native library for one TensorFlow and one MPI, with lines about it on stderr.

    Args:
        tensorflow: a `TensorFlow`; None leaves out the TensorFlow ops, for tests and benchmarks of the engine.
        mpi: an `Mpi`.
        output_dir: directory for the library, made if it is missing. The library appears there complete or not at
            all. After a failure the log is there instead.
        build_dir: directory for intermediate files, which shorten the next build of changed sources. Defaults to a
            temporary directory.

    Returns:
        Path of the library.

    Raises:
        CompileError: a tool is missing, or the compiler failed.
    """
    version = tensorflow.version if tensorflow else None
    target = f"TensorFlow {version} and {mpi.name}" if version else mpi.name
    library = _Library(
        "tfddl",
        f"its native library for {target}",
        "once; it takes one to five minutes",
        lambda: library_stem(version, mpi.tag),
        lambda: _definitions(tensorflow, mpi),
    )
    return _compile(library, output_dir, build_dir)


def compile_xla_library(tensorflow: TensorFlow, output_dir: Path, build_dir: Path | None = None) -> Path:
    """Compiles the library with the XLA kernels, which takes minutes. For arguments and errors see `compile_library`."""
    library = _Library(
        "tfddl_xla",
        f"its XLA kernels for TensorFlow {tensorflow.version}",
        "once, for jit_compile=True; it takes one to five minutes; TFDDL_XLA=0 does without",
        lambda: xla_library_stem(tensorflow.version),
        lambda: _xla_definitions(tensorflow),
    )
    return _compile(library, output_dir, build_dir)


class _Library(NamedTuple):
    """A library to compile.

    Attributes:
        target: Its name for CMake.
        name: Its name in lines for the user.
        remark: How often and how long it is compiled.
        stem: Returns the begin of its file's name, which depends on the sources.
        definitions: Returns the options of CMake.
    """

    target: str
    name: str
    remark: str
    stem: Callable[[], str]
    definitions: Callable[[], list[str]]


def _compile(library: _Library, output_dir: Path, build_dir: Path | None) -> Path:
    cmake = _find_tools(library.name)
    _print_line(f"tfddl: compiling {library.name} ({library.remark})...")
    started = time.monotonic()
    output_dir.mkdir(parents=True, exist_ok=True)
    stem = library.stem()
    log = output_dir / f"{stem}.log"
    with contextlib.nullcontext(build_dir) if build_dir else scratch_directory() as build:
        configured = _forget_other_configuration(build)
        configure = [cmake, "-S", str(source_directory()), "-B", str(build), "-G", "Unix Makefiles"]
        make = [cmake, "--build", str(build), "--target", library.target, "--parallel", str(_jobs())]
        built = build / f"lib{library.target}.so"
        # A linker that was killed leaves a part, a compiler an empty file. make takes them for finished.
        for part in (built, *(each for each in build.rglob("*.o") if each.stat().st_size == 0)):
            part.unlink(missing_ok=True)
        with log.open("w") as output:
            for command in (configure + library.definitions(), make):
                print("$", " ".join(command), file=output, flush=True)
                if _run(command, output, library.name, started) != 0:
                    raise CompilationFailed(
                        f"tfddl could not compile {library.name}, see {log}; the first error is: {_first_error(log)}. "
                        "Run tfddl doctor, which compares the compiler and the headers."
                    )
                with contextlib.suppress(OSError):  # a full disk: the next build configures anew
                    configured.write_text(_configuration(build))
        if library.stem() != stem:
            raise CompileError("tfddl's C++ sources changed while they were compiled; start again.")
        compiled = output_dir / f"lib{stem}.so"
        _copy(built, compiled)
    log.unlink()
    return compiled


def _print_line(line: str) -> None:
    """Prints a line on stderr, text and end in one write: `tfddl build` compiles two libraries at a time."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)


def _copy(built: Path, target: Path) -> None:
    """Copies a file, which may be on another file system. The copy appears complete or not at all."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(built, partial)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _configuration(build: Path) -> str:
    """The directories and the compiler, which CMake keeps in a build directory."""
    return "\n".join(map(str, (source_directory(), build, os.environ.get("CXX"), find_compiler())))


def _forget_other_configuration(build: Path) -> Path:
    """Makes CMake look for the compiler again, unless its last run succeeded with the same one.

    CMake would take the compiler of the last run, also one that is gone or broken.

    Returns:
        Path of the file for `_configuration(build)`, to be written after a run that succeeds.
    """
    configured = build / "configured"
    same = configured.is_file() and configured.read_text() == _configuration(build)
    configured.unlink(missing_ok=True)
    if not same:  # cmake --fresh, which CMake before 3.24 does not know
        (build / "CMakeCache.txt").unlink(missing_ok=True)
        shutil.rmtree(build / "CMakeFiles", ignore_errors=True)
    return configured


def _run(command: list[str], output: TextIO, library_name: str, started: float) -> int:
    """Runs a command to its end, and says now and then that it still runs. Returns its exit code."""
    with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            while True:
                try:
                    return process.wait(_REMIND_EVERY_S)
                except subprocess.TimeoutExpired:
                    seconds = round(time.monotonic() - started)
                    _print_line(f"tfddl: still compiling {library_name} ({seconds} s)...")
        except BaseException:  # Ctrl-C
            process.kill()
            raise


def _definitions(tensorflow: TensorFlow | None, mpi: Mpi) -> list[str]:
    values = {
        "CMAKE_BUILD_TYPE": "Release",
        "TFDDL_WITH_TENSORFLOW": "ON" if tensorflow else "OFF",
        "TFDDL_MPI_INCLUDE": mpi_include(mpi),
        "TFDDL_MPI_LIBRARY": mpi.library,
        "TFDDL_BUILD_MPI": mpi.tag,
        "TFDDL_SOURCE_HASH": source_hash(),
    }
    if tensorflow:
        values |= _tensorflow_values(tensorflow)
        values["TFDDL_BUILD_TF"] = tensorflow.version
    return [f"-D{name}={value}" for name, value in values.items()]


def _xla_definitions(tensorflow: TensorFlow) -> list[str]:
    values = {
        "CMAKE_BUILD_TYPE": "Release",
        "TFDDL_WITH_TENSORFLOW": "OFF",
        "TFDDL_WITH_XLA": "ON",
        "TFDDL_TF_CC_LIBRARY": os.path.join(os.path.dirname(tensorflow.library), "libtensorflow_cc.so.2"),
        **_tensorflow_values(tensorflow),
    }
    return [f"-D{name}={value}" for name, value in values.items()]


def _tensorflow_values(tensorflow: TensorFlow) -> dict[str, str]:
    return {
        "TFDDL_TF_INCLUDE": tensorflow.include,
        "TFDDL_TF_LIBRARY": tensorflow.library,
        "TFDDL_TF_CFLAGS": ";".join(tensorflow.flags),
    }


def find_cmake() -> str | None:
    """Returns the path of cmake: the PyPI package's, else the system's; None if there is none."""
    try:
        from cmake import CMAKE_BIN_DIR

        # The path of the binary: the package's `cmake` script starts a Python, and may not be on PATH.
        return os.path.join(CMAKE_BIN_DIR, "cmake")
    except ImportError:
        return shutil.which("cmake")


def find_compiler() -> str | None:
    """Returns the path of the C++ compiler that CMake takes; None if there is none.

    `CXX` may hold a launcher and flags, as in `ccache g++ -m64`. Without `CXX` it is c++, g++ or clang++.

    Raises:
        CompileError: `CXX` opens a quote and does not close it, or names no program.
    """
    given = os.environ.get("CXX", "")
    try:
        named = shlex.split(given)[:1]
    except ValueError as error:
        raise CompileError(
            f"CXX names a compiler as in a shell: close each quote. Received: CXX={given} ({error})"
        ) from None
    found = next(filter(None, map(shutil.which, named or ("c++", "g++", "clang++"))), None)
    if named and found is None:
        raise CompileError(
            f"CXX names a compiler that is not there: unset CXX, or give the compiler's path. Received: CXX={given!r}"
        )
    return found


def _find_tools(library_name: str) -> str:
    """Returns the path of cmake. Checks for a compiler and make."""
    cmake = find_cmake()
    tools = {
        "cmake (pip install cmake)": cmake,
        "make": shutil.which("make"),
        "a C++ compiler (g++)": find_compiler(),
    }
    missing = [name for name, path in tools.items() if not path]
    if missing or cmake is None:
        raise CompileError(
            f"tfddl has not compiled {library_name} yet and cannot do so without "
            f"{' and '.join(missing)}: install them (on Debian and Ubuntu: apt install g++ make)."
        )
    return cmake


def _jobs() -> int:
    """One compiler for each core, as far as memory allows: TensorFlow's headers take about 1 GB in each."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 1e9
    return max(1, min(len(os.sched_getaffinity(0)), int(gigabytes)))


def _first_error(log: Path) -> str:
    text = log.read_text(errors="replace")
    found = next(filter(None, (pattern.search(text) for pattern in _ERRORS)), None)
    return " ".join(found[1].split())[:_LONGEST_ERROR].rstrip(".") if found else "the compiler failed"
