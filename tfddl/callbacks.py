"""Callbacks for `fit`: `from tfddl.callbacks import BroadcastGlobalVariablesCallback`."""

from tfddl.elastic.fit import ElasticCallback
from tfddl.keras import callbacks as _callbacks
from tfddl.keras.callbacks import *  # noqa: F403

__all__ = [*_callbacks.__all__, "ElasticCallback"]
