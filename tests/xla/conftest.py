"""Compiles the XLA kernels before the tests, because it takes longer than a test may take."""

import pytest

from tfddl.build.locate import locate_xla_library


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compiles the XLA kernels if they are missing."""
    locate_xla_library()
