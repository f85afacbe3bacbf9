"""Gives tfddl the settings that a job for Horovod has in its environment, such as `HOROVOD_TIMELINE`."""

from __future__ import annotations

import logging
import re
from collections.abc import MutableMapping

from tfddl.launch.horovod_settings import READ, translated
from tfddl.launch.rank_shim import RANK_VARIABLES

# A program reads these itself, Horovod's launcher sets them, its installation did, or tfddl needs nothing like them.
_NOT_A_SETTING = re.compile(
    r"HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME|ELASTIC|DYNAMIC_PROCESS_SETS|CONTROLLER|CPU|CPU_OPERATIONS"
    r"|GLOO_\w+|GPU|GPU_\w+|ALLOW_\w+|WITH\w*|BUILD\w*|VERSION|\w+_(HOME|INCLUDE|LIB|LINK))"
)
_RANKS = (*RANK_VARIABLES, "SLURM_PROCID")


def take(environment: MutableMapping[str, str]) -> None:
    """Sets the variables of tfddl that are missing and that Horovod's name. One line names Horovod's other settings.

    Args:
        environment: The environment variables of this process.

    Raises:
        ValueError: The value of a variable has the wrong form.
    """
    for name, value in translated(environment).items():
        environment.setdefault(name, value)
    ignored = without_effect(environment)
    if ignored and next((environment[name] for name in _RANKS if name in environment), "0") == "0":
        logging.getLogger("tfddl").warning("%s: changes nothing in tfddl; leave it out", ", ".join(ignored))


def without_effect(environment: MutableMapping[str, str]) -> list[str]:
    """The settings of Horovod that tfddl has no equivalent of."""
    return sorted(
        name
        for name in environment
        if name.startswith("HOROVOD_") and name not in READ and not _NOT_A_SETTING.fullmatch(name)
    )
