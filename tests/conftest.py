"""Fixtures and ordering that every test directory shares."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.harness.group import GroupPool, RankGroup
from tests.harness.mpirun import mpi_version
from tests.harness.rows import thinned


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--ranks`, to run one job size only while working on a test, and `--thin`, for a look at everything."""
    parser.addoption("--ranks", type=int, default=None, help="run only the ranked tests of this size")
    parser.addoption(
        "--thin",
        action="store_true",
        help="every value of each parameter of a ranked test, not every combination",
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
    """Puts tests of one job size side by side, so that each group of ranks starts once; leaves out rows of thin sizes."""
    items[:] = sorted(thinned(items, config.getoption("--thin")), key=_size)
    wanted = config.getoption("--ranks")
    if wanted is not None:
        config.hook.pytest_deselected(items=[item for item in items if _size(item) not in (0, wanted)])
        items[:] = [item for item in items if _size(item) in (0, wanted)]


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
