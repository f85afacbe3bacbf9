"""Wheels of this checkout: their contents, and an installation in a fresh environment."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.build.environments import (
    ROOT,
    RUN_LIMIT,
    SETUP_LIMIT,
    bare_environment,
    build_wheel,
    check_two_ranks,
    checked,
    make_borrowing_environment,
    run,
)
from tfddl.build.discover import tensorflow_version
from tfddl.build.locate import locate_library, locate_xla_library
from tfddl.build.support import major_minor


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache directory for the build."""
    directory = tmp_path / "built"
    directory.mkdir()
    return directory


def test_a_wheel_with_binaries_runs_in_a_fresh_environment(tmp_path: Path, cache: Path) -> None:
    """Both libraries come from the cache."""
    for built in (locate_library(), locate_xla_library()):
        shutil.copyfile(built, cache / built.name)
    wheel = build_wheel(tmp_path, TFDDL_CACHE_DIR=str(cache))
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    contents = zipfile.ZipFile(wheel)
    assert {"tfddl/custom_ops/CMakeLists.txt", "tfddl/py.typed"} <= set(contents.namelist())
    for built in cache.iterdir():
        assert contents.read(f"tfddl/binaries/{built.name}") == built.read_bytes()

    environment = make_borrowing_environment(tmp_path / "venv", wheel)
    launcher = [environment / "tfddlrun", "-np", "2"]
    used, _ = check_two_ranks(launcher, environment / "python", tmp_path)
    assert not used.exists(), "the binary inside the wheel was not used"


@pytest.mark.long
def test_make_wheel_trains_where_there_is_no_compiler(tmp_path: Path) -> None:
    """`make wheel` with this machine's compiler, for the TensorFlow at hand; what an earlier run has built is kept."""
    minor = "{}.{}".format(*major_minor(str(tensorflow_version())))
    options = ["--host-toolchain", "--tensorflow", minor, "--output", tmp_path / "dist"]
    checked(run([sys.executable, "-m", "packages.wheel", *options], SETUP_LIMIT, cwd=ROOT))
    (wheel,) = (tmp_path / "dist").glob("tfddl-*-py3-none-linux_x86_64.whl")
    environment = make_borrowing_environment(tmp_path / "venv", wheel)
    code = "import pathlib, proof; proof.check_tools(); print(proof.train(*map(pathlib.Path, __import__('sys').argv[1:])))"
    variables = bare_environment(PATH=str(environment), PYTHONPATH=str(ROOT / "packages" / "wheel"))
    command = [environment / "python", "-c", code, ROOT / "docs/guides/quickstart.md", tmp_path]
    checked(run(command, RUN_LIMIT, env=variables, cwd=tmp_path))


@pytest.mark.long
def test_the_build_of_a_wheel_compiles_what_the_cache_lacks(tmp_path: Path, cache: Path) -> None:
    """A compiler that fails shows it. `test_mpich.py` compiles the library, by the same function."""
    with pytest.raises(AssertionError, match=r"could not compile its native library"):
        build_wheel(tmp_path, TFDDL_CACHE_DIR=str(cache), CXX="/bin/false")


def test_a_wheel_without_a_target_carries_sources_only(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, TFDDL_BUILD_PYTHON="none")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith("/engine.h")]
    assert not [name for name in names if name.endswith(".so")]
