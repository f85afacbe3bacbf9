"""Finds TensorFlow and MPI of this environment, of another environment, and stand-ins."""

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

from tfddl.build import discover
from tfddl.build.discover import DiscoveryError, Mpi
from tfddl.build.mpi_headers import mpi_include

OPEN_MPI_HEADER = "#define OMPI_MAJOR_VERSION 4\n"
MPICH_HEADER = '#define MPICH_VERSION "5.0.2"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Open MPI v5.0.11, package: Open MPI Distribution, ident: 5.0.11", ("openmpi", "5.0.11")),
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", ("openmpi", "4.1.4")),
        ("MPICH Version:      5.0.2\nMPICH Release date: today", ("mpich", "5.0.2")),
    ],
)
def test_library_version(text: str, expected: tuple[str, str]) -> None:
    assert discover.parse_library_version(text) == expected


def test_another_mpi_is_refused_by_name() -> None:
    with pytest.raises(DiscoveryError, match=r"Received: 'Intel\(R\) MPI Library 2021.9"):
        discover.parse_library_version("Intel(R) MPI Library 2021.9 for Linux* OS\n")


@pytest.mark.parametrize(
    ("own", "package"),
    [("2.21.0", "2.21.0"), ("2.21.0-rc1", "2.21.0rc1"), ("2.22.0-dev20260905", "2.22.0.dev20260905")],
)
def test_a_version_is_written_as_its_package_writes_it(own, package) -> None:
    """The version is in the file name of a library, so it must not depend on whether TensorFlow is loaded."""
    assert discover._normalized(own) == discover._normalized(package) == package


def test_versions_without_importing_tensorflow() -> None:
    code = (
        "import sys; from tfddl.build import discover; print(discover.tensorflow_version());"
        "assert not {name.partition('.')[0] for name in sys.modules} & {'tensorflow', 'keras', 'mpi4py'}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import tensorflow

    assert done.stdout.strip() == tensorflow.__version__.replace("-", "")


def test_mpi_of_this_environment_is_the_one_that_mpi4py_reports() -> None:
    mpi = discover.find_mpi()
    assert Path(mpi.library).is_file()
    assert (Path(mpi_include(mpi)) / "mpi.h").is_file()
    if mpi.vendor == "openmpi" and Path(mpi.library).is_relative_to(sys.prefix):
        assert mpi.version == version("openmpi")


def test_another_interpreter_is_asked_without_our_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build environment sets PYTHONPATH. Its packages must not count as the target's."""
    venv.create(tmp_path / "venv", with_pip=False)
    fake = tmp_path / "path" / "tensorflow"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise RuntimeError('not the one')")
    monkeypatch.setenv("PYTHONPATH", str(fake.parent))
    assert discover.find_in(str(tmp_path / "venv" / "bin" / "python")) == (None, None)


def test_an_mpi_in_a_directory_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "my mpi" / "libmpi.so.40"
    library.parent.mkdir()
    library.write_text("mapped")
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("import types\nrc = types.SimpleNamespace()")
    (tmp_path / "mpi4py" / "MPI.py").write_text(f"""
import mmap, os
mapped = mmap.mmap(os.open({str(library)!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ)
def Get_library_version():
    return "Open MPI v5.0.11"
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert discover.find_mpi() == Mpi("openmpi", "5.0.11", str(library))


def test_an_interpreter_that_fails_is_named() -> None:
    with pytest.raises(DiscoveryError, match=r"/bin/false could not say .* Received: exit code 1"):
        discover.find_in("/bin/false")


def test_headers_of_another_major_version_are_passed_over(tmp_path: Path) -> None:
    """Two MPIs in one prefix: the mpi.h of the second replaces that of the first."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "mpi.h").write_text(MPICH_HEADER)
    beside = tmp_path / "lib" / "openmpi" / "include"
    beside.mkdir(parents=True)
    (beside / "mpi.h").write_text(OPEN_MPI_HEADER)
    library = tmp_path / "lib" / "libmpi.so.40.30.4"
    assert mpi_include(Mpi("openmpi", "4.1.4", str(library))) == str(beside)
    assert mpi_include(Mpi("mpich", "5.0.2", str(library))) == str(tmp_path / "include")


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize("directory", ["elsewhere", "some where"])
def test_headers_from_the_compiler_wrapper(directory: str, quote: str, tmp_path: Path) -> None:
    headers = tmp_path / directory
    headers.mkdir()
    (headers / "mpi.h").write_text('#include "mpi-x86_64.h"\n')
    (headers / "mpi-x86_64.h").write_text(OPEN_MPI_HEADER)
    wrapper = tmp_path / "bin" / "mpicc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "gcc -I/usr/include -I{quote}{headers}{quote} -lmpi"\n')
    wrapper.chmod(0o755)
    assert mpi_include(Mpi("openmpi", "4.1.4", str(tmp_path / "lib" / "libmpi.so.40"))) == str(headers)


def test_missing_headers_name_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DiscoveryError, match=r"found Open MPI 4 \(.*libmpi.so.40\).*libopenmpi-dev"):
        mpi_include(Mpi("openmpi", "4.1.4", str(tmp_path / "lib" / "libmpi.so.40")))
