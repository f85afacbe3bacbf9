"""tfddl on MPICH: two ranks that start together compile one library for it, and agree."""

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


@pytest.mark.slow
def test_two_ranks_on_mpich(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, TFDDL_BUILD_PYTHON="none")
    environment = make_environment(tmp_path / "venv", str(wheel), "tensorflow-cpu", "mpich")
    script = tmp_path / "smoke.py"
    script.write_text(SMOKE)
    cache = tmp_path / "cache"
    done = checked(
        run(
            [environment / "mpiexec", "-n", "2", environment / "python", script],
            RUN_LIMIT,
            env=bare_environment(TFDDL_CACHE_DIR=str(cache)),
            cwd=tmp_path,
        )
    )
    assert "rank 0 of 2 agrees" in done.stdout
    assert "rank 1 of 2 agrees" in done.stdout
    assert done.stderr.count("tfddl: compiling its native library") == 1
    (library,) = cache.glob("*.so")
    assert "-mpich-" in library.name
