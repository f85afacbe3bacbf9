"""A wheel built here installs and runs in a second, fresh environment."""

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.build.environments import build_wheel, check_two_ranks, make_environment
from tfddl.build.locate import locate_xla_library

pytestmark = pytest.mark.slow


def test_wheel_with_a_binary_runs_in_a_fresh_environment(tmp_path: Path) -> None:
    """One library is compiled for it, the other, which takes minutes, comes out of the cache."""
    built = locate_xla_library()
    cache = tmp_path / "built"
    cache.mkdir()
    shutil.copyfile(built, cache / built.name)
    wheel = build_wheel(tmp_path, TFDDL_CACHE_DIR=str(cache))
    assert list(cache.iterdir()) == [cache / built.name]
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tfddl/custom_ops/CMakeLists.txt" in names
    assert "tfddl/py.typed" in names
    assert len([name for name in names if name.startswith("tfddl/binaries/libtfddl-tf2.")]) == 1
    assert zipfile.ZipFile(wheel).read(f"tfddl/binaries/{built.name}") == built.read_bytes()

    environment = make_environment(tmp_path / "venv", f"{wheel}[cpu]")
    launcher = [environment / "tfddlrun", "-np", "2"]
    used, _ = check_two_ranks(launcher, environment / "python", tmp_path)
    assert not used.exists(), "the binary inside the wheel was not used"


def test_wheel_without_a_target_carries_sources_only(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, TFDDL_BUILD_PYTHON="none")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tfddl/custom_ops/core/engine/engine.h" in names
    assert not [name for name in names if name.endswith(".so")]
