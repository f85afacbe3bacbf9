"""The XLA kernels take longer to compile than a test may take."""

import pytest

from tfddl.build.locate import locate_xla_library


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compiles them, unless they are there, before the ranks come to need them."""
    locate_xla_library()
