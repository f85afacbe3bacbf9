"""A wheel built here installs and runs in a second, fresh environment."""

import zipfile
from pathlib import Path

import pytest

from tests.build.environments import build_wheel, check_two_ranks, make_environment

pytestmark = pytest.mark.slow


def test_wheel_with_a_binary_runs_in_a_fresh_environment(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tfddl/custom_ops/CMakeLists.txt" in names
    assert "tfddl/py.typed" in names
    assert len([name for name in names if name.startswith("tfddl/binaries/libtfddl-tf2.")]) == 1
    assert len([name for name in names if name.startswith("tfddl/binaries/libtfddl_xla-tf2.")]) == 1

    environment = make_environment(tmp_path / "venv", f"{wheel}[cpu]")
    launcher = [environment / "tfddlrun", "-np", "2"]
    cache, _ = check_two_ranks(launcher, environment / "python", tmp_path)
    assert not cache.exists(), "the binary inside the wheel was not used"


def test_wheel_without_a_target_carries_sources_only(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, TFDDL_BUILD_PYTHON="none")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tfddl/custom_ops/core/engine.h" in names
    assert not [name for name in names if name.endswith(".so")]
