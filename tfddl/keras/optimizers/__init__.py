"""Optimizers for large batches, as many ranks make them: `hvd.optimizers.X`."""

from tfddl.keras.optimizers.lamb import LAMB
from tfddl.keras.optimizers.lars import LARS
from tfddl.keras.optimizers.novograd import NovoGrad

__all__ = ["LAMB", "LARS", "NovoGrad"]
