"""Leaves these tests out of runs that do not name their folder: they take minutes, and CI has no Slurm."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = any(
        Path(argument.split("::")[0]).resolve().is_relative_to(Path(__file__).parent)
        for argument in config.args
    )
    return None if named else True
