"""Fixtures and ordering that every test directory shares."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.harness.group import GroupPool, RankGroup
from tests.harness.mpirun import mpi_version
from tests.harness.rows import selected


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--thin` (the default), `--rest` and `--full`, which choose how much runs, and `--ranks`."""
    parser.addoption("--ranks", type=int, default=None, help="run only the ranked tests of this size")
    extents = {
        "thin": "run every value of each parameter, and no slow test (the default)",
        "rest": "run the slow tests, and other numbers of ranks",
        "full": "run both, every combination of the parameters, and the long tests",
    }
    for name, text in extents.items():
        parser.addoption(
            f"--{name}", dest="extent", action="store_const", const=name, default="thin", help=text
        )


def pytest_report_header() -> str:
    """Names what the ranks run on: most differences between machines are explained by it."""
    found = []
    for package in ("tensorflow", "tensorflow-cpu", "keras", "mpi4py"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"ranks: {mpi_version()}; {', '.join(found)}"


def _size(item: pytest.Item) -> int:
    """How many ranks a test needs; 0 for one that needs none."""
    specification = getattr(item, "callspec", None)
    return specification.params.get("rank_group", 0) if specification else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects the tests of `--thin`, `--rest` or `--full`, and sorts them by size: each group of ranks starts once."""
    chosen, wanted = selected(items, config.getoption("extent")), config.getoption("--ranks")
    if wanted is not None:
        chosen = [item for item in chosen if _size(item) in (0, wanted)]
    left_out = set(items) - set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = sorted(chosen, key=_size)


@pytest.fixture(scope="session")
def rank_groups() -> Iterator[GroupPool]:
    """The living group of ranks; its end is part of the test run."""
    pool = GroupPool()
    yield pool
    pool.close()


@pytest.fixture
def rank_group(request: pytest.FixtureRequest, rank_groups: GroupPool) -> RankGroup:
    """The ranks that an `on_ranks` test runs on."""
    return rank_groups.get(request.param)
