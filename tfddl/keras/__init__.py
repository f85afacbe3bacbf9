"""What Keras users touch: the optimizer and the callbacks. `import tfddl.keras as hvd` has all names of `tfddl`."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    try:
        return getattr(importlib.import_module("tfddl"), name)
    except AttributeError:
        raise AttributeError(f"module 'tfddl.keras' has no attribute {name!r}") from None
