"""Compiles the libraries for one TensorFlow, and writes their manifest.

All TensorFlows and MPIs share one build directory: CMake then compiles the engine once, the ops once for each TensorFlow,
and the files with MPI's calls once for each library.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import click

from packages.wheel.inputs import MPIS, MpiAbi, unpack_mpi, unpack_tensorflow
from packages.wheel.toolchain import Toolchain
from tfddl.build.headers import Headers, hash_headers
from tfddl.build.packaged import (
    MAIN,
    XLA,
    Manifest,
    library_name,
    manifest_name,
    read_manifest,
    xla_library_name,
)
from tfddl.build.sources import source_directory, source_files, source_hash

# What tf.sysconfig.get_compile_flags() says in TensorFlow 2.15 to 2.21. tests/build/test_wheel_builder.py compares.
FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17", "-DEIGEN_MAX_ALIGN_BYTES=64")
# Where the compiler says which of TensorFlow's headers each library reads.
OBJECTS = {MAIN: "tfddl_tensorflow", XLA: "tfddl_xla"}


class Builder:
    """Builds what `setup.py` packs.

    Args:
        toolchain: a `Toolchain`.
        jobs: int, compilers at a time.
        keep: bool, whether TensorFlow's headers stay for the next run, 1 GB each.
    """

    def __init__(self, toolchain: Toolchain, jobs: int, keep: bool) -> None:
        self.toolchain, self.jobs, self.keep = toolchain, jobs, keep
        self.work = toolchain.work
        self.libraries = self.work / "libraries"
        self.log = self.work / "build.log"
        self.libraries.mkdir(parents=True, exist_ok=True)

    def is_built(self, version: str) -> bool:
        """Whether all libraries for a TensorFlow are there, made of these sources."""
        path = self.libraries / manifest_name(version)
        return (
            path.is_file()
            and read_manifest(path).tensorflow == version
            and all((self.libraries / name).is_file() for name in _library_names(version))
        )

    def build(self, version: str) -> None:
        """Compiles the libraries for TensorFlow `version`.

        Raises:
            click.ClickException: a download or the compiler failed, or the sources have changed meanwhile.
        """
        names = _library_names(version)
        self._remove_older(version)
        self._copy_sources()
        machine = self.toolchain.machine
        tensorflow = unpack_tensorflow(version, machine, self.work / f"tensorflow-{version}", self.log)
        for abi in MPIS:
            self._configure(version, tensorflow, abi)
            self._make(MAIN, *([XLA] if abi is MPIS[0] else []))
            self._deliver(f"lib{MAIN}.so", library_name(version, abi.vendor))
            if abi is MPIS[0]:
                self._deliver(f"lib{XLA}.so", xla_library_name(version))
        if names != _library_names(version):
            raise click.ClickException("tfddl's C++ sources changed while they were compiled; start again.")
        headers = {kind: self._headers(objects, tensorflow) for kind, objects in OBJECTS.items()}
        majors = {abi.vendor: abi.majors for abi in MPIS}
        manifest = Manifest(version, self.toolchain.platform, self.toolchain.glibc, majors, headers)
        manifest.write(self.libraries)
        if not self.keep:
            shutil.rmtree(tensorflow.parent)

    def collect(self, versions: list[str]) -> Path:
        """Puts the manifests and libraries for `versions`, and no others, into a directory, and returns its path."""
        collected = self.work / "binaries"
        shutil.rmtree(collected, ignore_errors=True)
        collected.mkdir()
        for version in versions:
            for name in (manifest_name(version), *_library_names(version)):
                shutil.copyfile(self.libraries / name, collected / name)
        return collected

    def _remove_older(self, version: str) -> None:
        """Removes the manifest and the libraries of other sources for a TensorFlow."""
        manifest = manifest_name(version)
        names = {manifest, *_library_names(version)}
        for path in self.libraries.glob(f"*{Path(manifest).stem}[-.]*"):
            if path.name not in names:
                path.unlink()

    def _copy_sources(self) -> None:
        """Copies the sources to where the toolchain sees them, with their times, by which make knows what is new."""
        copy = self.work / "custom_ops"
        shutil.rmtree(copy, ignore_errors=True)
        for path in source_files():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source_directory() / path, copy / path)

    def _configure(self, version: str, tensorflow: Path, abi: MpiAbi) -> None:
        mpi, major = unpack_mpi(abi, self.toolchain.machine, self.work / abi.vendor, self.log)
        path = self.toolchain.path
        values = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_FLAGS": "-MD",  # see headers_in()
            "TFDDL_WITH_XLA": "ON",
            "TFDDL_TF_INCLUDE": path(tensorflow / "include"),
            "TFDDL_TF_LIBRARY": path(tensorflow / "libtensorflow_framework.so.2"),
            "TFDDL_TF_CC_LIBRARY": path(tensorflow / "libtensorflow_cc.so.2"),
            "TFDDL_TF_CFLAGS": ";".join(FLAGS),
            "TFDDL_MPI_INCLUDE": path(mpi / "include"),
            "TFDDL_MPI_LIBRARY": path(mpi / "lib" / abi.library),
            "TFDDL_BUILD_TF": version,
            "TFDDL_BUILD_MPI": f"{abi.vendor}-{major}",
            "TFDDL_SOURCE_HASH": source_hash(),
            **self.toolchain.definitions,
        }
        command = [
            self.toolchain.cmake,
            "-S",
            path(self.work / "custom_ops"),
            "-B",
            path(self.work / "objects"),
        ]
        definitions = [f"-D{name}={value}" for name, value in values.items()]
        self.toolchain.run([*command, "-G", "Unix Makefiles", *definitions], self.log)

    def _make(self, *targets: str) -> None:
        command = [
            self.toolchain.cmake,
            "--build",
            self.toolchain.path(self.work / "objects"),
            "--parallel",
            str(self.jobs),
        ]
        self.toolchain.run([*command, "--target", *targets], self.log)

    def _deliver(self, library: str, name: str) -> None:
        """Copies a library into `libraries`, complete or not at all, without the symbols that only a debugger reads."""
        partial = self.libraries / f".{name}"
        shutil.copyfile(self.work / "objects" / library, partial)
        self.toolchain.run([f"{self.toolchain.prefix}strip", self.toolchain.path(partial)], self.log)
        partial.replace(self.libraries / name)

    def _headers(self, objects: str, tensorflow: Path) -> Headers:
        include = tensorflow / "include"
        files = (self.work / "objects" / "CMakeFiles" / f"{objects}.dir").rglob("*.d")
        names = headers_in([file.read_text() for file in files], self.toolchain.path(include))
        digest = hash_headers(include, names)
        if not names or digest is None:
            raise click.ClickException(
                f"The compiler has not said which headers of {include} {objects} reads."
            )
        return Headers(names, digest)


def _library_names(version: str) -> list[str]:
    return [*(library_name(version, abi.vendor) for abi in MPIS), xla_library_name(version)]


def headers_in(dependencies: list[str], include: str) -> tuple[str, ...]:
    """The headers under a directory that the compiler has written into dependency files (`-MD`).

    Args:
        dependencies: strings, the contents of the files.
        include: string, the directory.

    Returns:
        Strings, paths in the directory, sorted.
    """
    words = {
        os.path.normpath(word) for text in dependencies for word in re.split(r"\s(?:\\\n)?\s*", text) if word
    }
    return tuple(sorted(word[len(include) + 1 :] for word in words if word.startswith(f"{include}/")))
