"""What the tests of `tfddl analyze` share."""

import pytest

from tests.flight.builder import Rank, write
from tfddl.flight.conclusion import conclude
from tfddl.flight.records import read_job


@pytest.fixture
def concluded(tmp_path):
    """Writes records and returns the conclusion, with the partings."""

    def function(made: list[Rank]):
        return conclude(read_job(write(tmp_path, made)))

    return function
