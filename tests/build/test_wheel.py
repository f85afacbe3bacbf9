"""A wheel built here installs and runs in a second, fresh environment."""

import zipfile
from pathlib import Path

import pytest

from tests.build.environments import (
    RUN_LIMIT,
    SMOKE,
    bare_environment,
    build_wheel,
    checked,
    make_environment,
    run,
)

pytestmark = pytest.mark.slow


def test_wheel_with_a_binary_runs_in_a_fresh_environment(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tfddl/custom_ops/CMakeLists.txt" in names
    assert "tfddl/py.typed" in names
    assert len([name for name in names if name.startswith("tfddl/binaries/libtfddl-tf2.")]) == 1

    environment = make_environment(tmp_path / "venv", f"{wheel}[cpu]")
    script = tmp_path / "smoke.py"
    script.write_text(SMOKE)
    cache = tmp_path / "cache"
    done = checked(
        run(
            [environment / "tfddlrun", "-np", "2", environment / "python", script],
            RUN_LIMIT,
            env=bare_environment(TFDDL_CACHE_DIR=str(cache)),
            cwd=tmp_path,
        )
    )
    assert "rank 0 of 2 agrees" in done.stdout
    assert "rank 1 of 2 agrees" in done.stdout
    assert not cache.exists(), "the binary inside the wheel was not used"


def test_wheel_without_a_target_carries_sources_only(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, TFDDL_BUILD_PYTHON="none")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tfddl/custom_ops/core/engine.h" in names
    assert not [name for name in names if name.endswith(".so")]
