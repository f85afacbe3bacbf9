"""tfddl on MPICH: two ranks that start together compile one library for it, and agree."""

from pathlib import Path

import pytest

from tests.build.environments import build_wheel, check_two_ranks, make_environment


@pytest.mark.long
def test_two_ranks_on_mpich(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, TFDDL_BUILD_PYTHON="none")
    environment = make_environment(tmp_path / "venv", str(wheel), "tensorflow-cpu", "mpich")
    launcher = [environment / "mpiexec", "-n", "2"]
    cache, errors = check_two_ranks(launcher, environment / "python", tmp_path)
    assert errors.count("tfddl: compiling its native library") == 1
    # Under tfddlrun a rank's process outlives the rank, so that mpiexec sees whether the rank has taken its leave of MPI.
    check_two_ranks([environment / "tfddlrun", "-np", "2"], environment / "python", tmp_path)
    (library,) = cache.glob("*.so")
    assert "-mpich-" in library.name
