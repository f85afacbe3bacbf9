"""Adds the C++ sources and, if possible, a compiled library to the package.

The wheel always has the sources of the native library. If the target environment has a TensorFlow and an MPI, the wheel
also has a compiled library and a platform tag. Build isolation hides this environment, so setup.py runs its interpreter
to ask. `TFDDL_BUILD_PYTHON` names another interpreter, or is `none` for a wheel without a library. `TFDDL_BINARIES` names a
directory with the libraries for several TensorFlows and MPIs, which `make wheel` has compiled: then nothing is compiled.
"""

import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # build backends run this file without its directory on the path

from tfddl.build.cache import cache_directory, is_whole  # noqa: E402
from tfddl.build.compile import CompileError, compile_library, compile_xla_library  # noqa: E402
from tfddl.build.discover import Mpi, TensorFlow, find_in  # noqa: E402
from tfddl.build.packaged import read_manifest  # noqa: E402
from tfddl.build.sources import (  # noqa: E402
    library_stem,
    source_directory,
    source_files,
    source_hash,
    xla_library_stem,
    xla_source_hash,
)
from tfddl.build.support import check_platform, check_tensorflow  # noqa: E402


def prebuilt_binaries() -> list[Path]:
    """The manifests and libraries in `TFDDL_BINARIES`; an empty list without this variable."""
    directory = os.environ.get("TFDDL_BINARIES")
    if not directory:
        return []
    files = sorted(path for path in Path(directory).iterdir() if path.suffix in (".so", ".json"))
    hashes = (f"-{source_hash()}.so", f"-{xla_source_hash()}.so")
    wrong = [path.name for path in files if path.suffix == ".so" and not path.name.endswith(hashes)]
    if wrong or not files:
        raise SystemExit(
            f"tfddl: {directory} has no libraries of these sources; make wheel. Received: {wrong}"
        )
    return files


def prebuilt_platform() -> str:
    """The platform that the libraries in `TFDDL_BINARIES` are for."""
    (platform,) = {read_manifest(path).platform for path in prebuilt_binaries() if path.suffix == ".json"}
    return platform


@functools.cache
def find_target() -> tuple[TensorFlow, Mpi] | None:
    """Finds the TensorFlow and MPI to compile for. None leaves the wheel without a library."""
    python = os.environ.get("TFDDL_BUILD_PYTHON") or sys.executable
    if python == "none" or prebuilt_binaries():
        return None
    tensorflow, mpi = find_in(python)
    if tensorflow is None or mpi is None:
        print(f"tfddl: {python} has no TensorFlow or no MPI: the wheel carries sources only", file=sys.stderr)
        return None
    check_platform()
    check_tensorflow(tensorflow.version)
    return tensorflow, mpi


def add_library(stem: str, compile_into: Callable[[Path], object], directory: Path) -> None:
    """Adds a library: from the cache if `tfddl build` has compiled it for this target, else compiled now."""
    cached = cache_directory() / f"lib{stem}.so"
    if is_whole(cached):
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cached, directory / cached.name)
    else:
        compile_into(directory)


def add_libraries(tensorflow: TensorFlow, mpi: Mpi, directory: Path) -> None:
    """Adds the main library and, if it compiles, the library with the XLA kernels for jit_compile=True."""
    version = tensorflow.version
    print(f"tfddl: compiling for TensorFlow {version} and {mpi.name}", file=sys.stderr)
    add_library(
        library_stem(version, mpi.tag), lambda where: compile_library(tensorflow, mpi, where), directory
    )
    if os.environ.get("TFDDL_XLA") == "0":
        return
    try:
        add_library(
            xla_library_stem(version), lambda where: compile_xla_library(tensorflow, where), directory
        )
    except CompileError as error:
        print(f"tfddl: the wheel carries no XLA kernels: {error}", file=sys.stderr)


class TfddlDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        """A wheel with a library belongs to a platform. An editable install has no library."""
        return "bdist_wheel" in self.commands and bool(find_target() or prebuilt_binaries())


class BuildPy(build_py):
    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        package = Path(self.build_lib) / "tfddl"
        shutil.rmtree(package, ignore_errors=True)  # else files of an earlier build would be packed too
        super().run()
        for path in source_files():
            destination = package / "custom_ops" / path
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source_directory() / path, destination)
        target = find_target()
        if target is not None:
            add_libraries(*target, package / "binaries")
        for path in prebuilt_binaries():
            (package / "binaries").mkdir(exist_ok=True)
            shutil.copyfile(path, package / "binaries" / path.name)


class BdistWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """The library depends on the platform, not on the Python version."""
        python, abi, platform = super().get_tag()
        if self.root_is_pure:
            return python, abi, platform
        return "py3", "none", prebuilt_platform() if prebuilt_binaries() else platform


setup(distclass=TfddlDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
