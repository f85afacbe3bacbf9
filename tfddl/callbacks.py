"""Callbacks for `fit`: `from tfddl.callbacks import BroadcastGlobalVariablesCallback`."""

from tfddl.keras.callbacks import *  # noqa: F403
from tfddl.keras.callbacks import __all__ as __all__
