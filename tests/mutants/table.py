"""All planted faults, by name."""

from tests.mutants import (
    compression,
    data_path,
    elastic,
    engine,
    gpu,
    gradients,
    keras,
    kernels,
    local_steps,
    sharded,
    tools,
)
from tests.mutants.fault import Fault

_TABLES = (
    compression.FAULTS,
    data_path.FAULTS,
    elastic.FAULTS,
    engine.FAULTS,
    gpu.FAULTS,
    gradients.FAULTS,
    keras.FAULTS,
    kernels.FAULTS,
    local_steps.FAULTS,
    sharded.FAULTS,
    tools.FAULTS,
)
FAULTS: dict[str, Fault] = {name: fault for table in _TABLES for name, fault in table.items()}
assert len(FAULTS) == sum(map(len, _TABLES)), "two faults have the same name"
