"""`load_model` with Horovod's arguments."""

from __future__ import annotations

from typing import Any

from tfddl.compat.horovod.private_api import add_private_api
from tfddl.keras import load
from tfddl.ops.compression import Compression


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """See `tfddl.load_model`. `legacy_opts` changes nothing: the file names the class of its optimizer."""
    model = load.load_model(filepath, custom_optimizers, custom_objects, compression)
    if getattr(model, "optimizer", None) is not None:
        add_private_api(model.optimizer)
    return model
