"""The C++ sources of this copy of tfddl, and the names of the libraries that they make."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
# The sources of the two libraries, without tests and models. The second library has few sources, so that a change of the
# engine does not compile it anew, which takes minutes.
_MAIN = ("CMakeLists.txt", "base/*", "transport/*", "core/*/*", "gpu/*", "api/*", "tensorflow/*")
_XLA = (
    "CMakeLists.txt",
    "xla/*",
    "core/compiled/call.*",
    "base/rows.h",
    "base/signature.*",
    "base/support.*",
    "base/types.*",
    "base/wire.h",
    "tensorflow/attributes.h",
    "tensorflow/compat.h",
)


def source_directory() -> Path:
    """Returns the directory of CMakeLists.txt: inside an installed package, or beside the package in a checkout."""
    inside = _PACKAGE / "custom_ops"
    return inside if inside.is_dir() else _PACKAGE.parent / "custom_ops"


def in_checkout() -> bool:
    """Whether this is a checkout, not an installed package."""
    return not (_PACKAGE / "custom_ops").is_dir()


def source_files(patterns: tuple[str, ...] = _MAIN + _XLA) -> list[Path]:
    """Lists the sources of both libraries, relative to `source_directory()`, sorted."""
    root = source_directory()
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(
        path.relative_to(root) for path in found if path.suffix in (".cc", ".h", ".txt") and path.is_file()
    )


def source_hash(patterns: tuple[str, ...] = _MAIN) -> str:
    """Hashes names and contents of the sources that match `patterns`: 12 hexadecimal digits."""
    digest = hashlib.sha256()
    root = source_directory()
    for path in source_files(patterns):
        content = (root / path).read_bytes()
        digest.update(f"{path.as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def xla_source_hash() -> str:
    """Hashes the sources of the library with the XLA kernels."""
    return source_hash(_XLA)


def target_name(tensorflow: str | None, mpi_tag: str | None) -> str:
    """Names the target of a library: TensorFlow, MPI and platform.

    Args:
        tensorflow: string, TensorFlow's version; None for a library without TensorFlow ops.
        mpi_tag: string, such as `"openmpi-5"`; None for a library without MPI.

    Returns:
        String such as `"tf2.21.0-openmpi-5-linux_x86_64-glibc2.36"`. The name has the C library, since several
        machines may share a home directory with the cache.
    """
    libc, libc_version = platform.libc_ver()
    system = f"{platform.system().lower()}_{platform.machine()}"
    mpi = f"-{mpi_tag}" if mpi_tag else ""
    return f"tf{tensorflow or 'none'}{mpi}-{system}-{libc}{libc_version}"


def library_stem(tensorflow: str | None, mpi_tag: str) -> str:
    """Returns the file name of the main library for a target, without `lib` and `.so`."""
    return f"tfddl-{target_name(tensorflow, mpi_tag)}-{source_hash()}"


def xla_library_stem(tensorflow: str) -> str:
    """Returns the file name of the library with the XLA kernels, without `lib` and `.so`."""
    return f"tfddl_xla-{target_name(tensorflow, None)}-{xla_source_hash()}"
