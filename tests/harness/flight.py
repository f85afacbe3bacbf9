"""The flight record of this rank, for tests that look at the order and the times of collectives."""

import tempfile
from pathlib import Path

from tfddl.flight import records
from tfddl.runtime.flight_record import write_flight_record


def operations(process_set: int = 0) -> list[records.Operation]:
    """The last collectives of this rank in a process set, in the order of submission."""
    with tempfile.TemporaryDirectory() as folder:
        return records.read(Path(write_flight_record(folder))).operations.get(process_set, [])
