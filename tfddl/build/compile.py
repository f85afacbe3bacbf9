"""The one function that compiles tfddl's native library, with CMake."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tfddl.build.discover import Mpi, TensorFlow
from tfddl.build.mpi_headers import mpi_include
from tfddl.build.sources import library_stem, source_directory, source_hash


class CompileError(RuntimeError):
    """The library could not be compiled; the message says why and where the compiler's output is."""


def compile_library(
    tensorflow: TensorFlow | None, mpi: Mpi, output_dir: Path, build_dir: Path | None = None
) -> Path:
    """Compiles the native library for one TensorFlow and one MPI.

    Args:
        tensorflow: a `TensorFlow`; None leaves the TensorFlow ops out, which serves tests of the transport.
        mpi: an `Mpi`.
        output_dir: directory for the library, made if it is not there. The library appears in it complete
            or not at all. After a failure, the log lies there instead.
        build_dir: directory for intermediate files, which makes the next build of changed sources a short
            one. Defaults to a temporary directory.

    Returns:
        Path of the library.

    Raises:
        CompileError: a tool is missing, or the compiler failed.
    """
    version = tensorflow.version if tensorflow else None
    target = f"TensorFlow {version} and {mpi.name}" if version else mpi.name
    cmake = _find_tools(target)
    output_dir.mkdir(parents=True, exist_ok=True)
    stem = library_stem(version, mpi.tag)
    log = output_dir / f"{stem}.log"
    with tempfile.TemporaryDirectory(prefix="tfddl-build-") as temporary:
        build = build_dir or Path(temporary)
        configure = [cmake, "-S", str(source_directory()), "-B", str(build), "-G", "Unix Makefiles"]
        make = [cmake, "--build", str(build), "--target", "tfddl", "--parallel", str(_jobs())]
        with log.open("w") as output:
            for command in (configure + _definitions(tensorflow, mpi), make):
                print("$", " ".join(command), file=output, flush=True)
                if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode != 0:
                    raise CompileError(
                        f"tfddl could not compile its native library for {target}, see {log}; "
                        f"the first error is: {_first_error(log)}"
                    )
        library = output_dir / f"lib{stem}.so"
        if library_stem(version, mpi.tag) != stem:
            raise CompileError("tfddl's C++ sources changed while they were compiled; start again.")
        # The build directory may be on another file system: copy, then rename, which is atomic.
        partial = output_dir / f".{library.name}.{os.getpid()}"
        shutil.copyfile(build / "libtfddl.so", partial)
        partial.replace(library)
    log.unlink()
    return library


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
        values["TFDDL_TF_INCLUDE"] = tensorflow.include
        values["TFDDL_TF_LIBRARY"] = tensorflow.library
        values["TFDDL_TF_CFLAGS"] = ";".join(tensorflow.flags)
        values["TFDDL_BUILD_TF"] = tensorflow.version
    return [f"-D{name}={value}" for name, value in values.items()]


def _find_tools(target: str) -> str:
    """Returns cmake's path: of the PyPI package, else of the system. Checks for a compiler and make."""
    cmake = shutil.which("cmake")
    try:
        from cmake import CMAKE_BIN_DIR

        # By path: the package's own `cmake` script starts a Python, and the bin directory may not be on PATH.
        cmake = os.path.join(CMAKE_BIN_DIR, "cmake")
    except ImportError:
        pass
    compilers = [os.environ["CXX"]] if "CXX" in os.environ else ["c++", "g++", "clang++"]
    tools = {
        "cmake (pip install cmake)": cmake,
        "make": shutil.which("make"),
        "a C++ compiler (g++)": next(filter(shutil.which, compilers), None),
    }
    missing = [name for name, path in tools.items() if not path]
    if missing or cmake is None:
        raise CompileError(
            f"tfddl has no native library for {target} and cannot compile one without "
            f"{' and '.join(missing)}; on Debian and Ubuntu: apt install g++ make."
        )
    return cmake


def _jobs() -> int:
    """One compiler for each core, but no more than fit in memory: TensorFlow's headers take about 1 GB."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 1e9
    return max(1, min(len(os.sched_getaffinity(0)), int(gigabytes)))


def _first_error(log: Path) -> str:
    text = log.read_text(errors="replace")
    match = re.search(r"^.*(?:error:|CMake Error|undefined reference).*$", text, re.MULTILINE)
    return match[0].strip() if match else "the compiler failed"
