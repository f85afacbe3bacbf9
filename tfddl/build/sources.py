"""The C++ sources that belong to this copy of tfddl, and the name of the library they make."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
# What the two libraries are made of; tests and models are not. Few sources are in the second one, because it takes
# minutes to compile: a change of the engine leaves it as it is.
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
    """Returns the directory of CMakeLists.txt: inside an installed package, beside it in a checkout."""
    inside = _PACKAGE / "custom_ops"
    return inside if inside.is_dir() else _PACKAGE.parent / "custom_ops"


def in_checkout() -> bool:
    """Whether the sources are a developer's checkout, not an installed package."""
    return not (_PACKAGE / "custom_ops").is_dir()


def source_files(patterns: tuple[str, ...] = _MAIN + _XLA) -> list[Path]:
    """Lists the sources of both libraries, relative to `source_directory()`, sorted."""
    root = source_directory()
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(
        path.relative_to(root) for path in found if path.suffix in (".cc", ".h", ".txt") and path.is_file()
    )


def source_hash(patterns: tuple[str, ...] = _MAIN) -> str:
    """Hashes names and contents of the main library's sources: 12 hexadecimal digits."""
    digest = hashlib.sha256()
    root = source_directory()
    for path in source_files(patterns):
        content = (root / path).read_bytes()
        digest.update(f"{path.as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def target_name(tensorflow: str | None, mpi_tag: str | None) -> str:
    """Names what a library is built for: TensorFlow, MPI and platform.

    Args:
        tensorflow: string, TensorFlow's version; None for a library without TensorFlow ops.
        mpi_tag: string, such as `"openmpi-5"`; None for a library that does without MPI.

    Returns:
        String such as `"tf2.21.0-openmpi-5-linux_x86_64-glibc2.36"`. The C library is in it because a cache
        may lie in a home directory that several machines share.
    """
    libc, libc_version = platform.libc_ver()
    system = f"{platform.system().lower()}_{platform.machine()}"
    mpi = f"-{mpi_tag}" if mpi_tag else ""
    return f"tf{tensorflow or 'none'}{mpi}-{system}-{libc}{libc_version}"


def library_stem(tensorflow: str | None, mpi_tag: str) -> str:
    """Returns the file name, without `lib` and `.so`, that these sources make for a target."""
    return f"tfddl-{target_name(tensorflow, mpi_tag)}-{source_hash()}"


def xla_library_stem(tensorflow: str) -> str:
    """Returns the file name, without `lib` and `.so`, of the library with the XLA kernels."""
    return f"tfddl_xla-{target_name(tensorflow, None)}-{source_hash(_XLA)}"
