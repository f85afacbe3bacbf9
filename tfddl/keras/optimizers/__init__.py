"""Optimizers for the large batches of many ranks: `hvd.optimizers.X`."""

from tfddl import _compat

if _compat.is_keras_2():
    raise ImportError(
        "tfddl.optimizers are optimizers of Keras 3: on TensorFlow 2.15 use those of TensorFlow Addons "
        f"(pip install 'tfddl[addons]'). Received: keras {_compat.keras().__version__}"
    )

from tfddl.keras.optimizers.lamb import LAMB
from tfddl.keras.optimizers.lars import LARS
from tfddl.keras.optimizers.novograd import NovoGrad

__all__ = ["LAMB", "LARS", "NovoGrad"]
