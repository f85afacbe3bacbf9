"""A hint for searches of KerasTuner, whose ranks try different models where their seeds differ."""

import sys

_HINT = (
    " In a search of KerasTuner give all ranks the same seed, and each a directory of its own (under --auto one for all), "
    "so that they try the same models."
)


def tuner_hint() -> str:
    """A sentence for an error about models or optimizers that differ. Empty where KerasTuner is not in use."""
    return _HINT if "keras_tuner" in sys.modules else ""
