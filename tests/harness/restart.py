"""A new job in the same processes, with settings of its own."""

import os
from typing import Any
from unittest import mock


def restart(hvd: Any, **environment: str) -> None:
    """Ends the job and starts another one. tfddl reads `environment` when it starts."""
    hvd.shutdown()
    with mock.patch.dict(os.environ, environment):
        hvd.init()
