"""Optimizers for the large batches of many ranks: `hvd.optimizers.X`. With Keras 2 the module is empty."""

from typing import Any

from tfddl import _compat

if not _compat.is_keras_2():
    from tfddl.keras.optimizers.lamb import LAMB
    from tfddl.keras.optimizers.lars import LARS
    from tfddl.keras.optimizers.novograd import NovoGrad

    __all__ = ["LAMB", "LARS", "NovoGrad"]


def __getattr__(name: str) -> Any:
    message = f"module {__name__!r} has no attribute {name!r}"
    if _compat.is_keras_2():
        message += (
            ": tfddl's optimizers are for Keras 3. On TensorFlow 2.15 use those of TensorFlow Addons (pip install "
            f"tensorflow-addons). Received: keras {_compat.keras().__version__}"
        )
    raise AttributeError(message)
