"""Gives tfddl the settings that a job for Horovod has in its environment, such as `HOROVOD_TIMELINE`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import MutableMapping

from tfddl.launch import horovod_settings
from tfddl.launch.rank_shim import RANK_VARIABLES

# A program reads these itself, Horovod's launcher sets them, its installation did, or tfddl needs nothing like them.
_NOT_A_SETTING = re.compile(
    r"HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME|ELASTIC|DYNAMIC_PROCESS_SETS|CONTROLLER|CPU|CPU_OPERATIONS"
    r"|GLOO_\w+|GPU|GPU_\w+|ALLOW_\w+|WITH\w*|BUILD\w*|VERSION|\w+_(HOME|INCLUDE|LIB|LINK))"
)
# Variable -> horovodrun's option, and how many units of the variable are one of the option.
_SETTINGS = {
    "HOROVOD_FUSION_THRESHOLD": ("fusion-threshold-mb", 2**20),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("stall-check-warning-time-seconds", 1),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("stall-check-shutdown-time-seconds", 1),
}
# Variable -> horovodrun's option, and what the option is where the variable is on, and where it is off.
_SWITCHES = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": ("hierarchical-allreduce", True, False),
    "HOROVOD_STALL_CHECK_DISABLE": ("stall-check-enabled", False, True),
}
_READ = {*_SETTINGS, *_SWITCHES, "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES"}
_ON = re.compile(
    r"\s*\+?0*[1-9].*", re.DOTALL
)  # for Horovod, which reads digits and takes any other text as 0
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


def translated(environment: MutableMapping[str, str]) -> dict[str, str]:
    """The variables of tfddl for those of Horovod, as `take` sets them."""
    found = {}
    timeline = environment.get("HOROVOD_TIMELINE", "")
    # With DYNAMIC the program calls start_timeline(), which needs no setting here.
    if timeline and timeline != "DYNAMIC":
        # The program may change its directory before init().
        found["TFDDL_TIMELINE"] = os.path.abspath(timeline)
    if environment.get("HOROVOD_TIMELINE_MARK_CYCLES"):
        found["TFDDL_TIMELINE_MARK_CYCLES"] = environment["HOROVOD_TIMELINE_MARK_CYCLES"]
    settings: dict[str, float | bool] = {}
    for name, (setting, unit) in _SETTINGS.items():
        if environment.get(name):
            settings[setting] = _number(name, environment[name]) / unit
    for name, (setting, on, off) in _SWITCHES.items():
        if environment.get(name):
            settings[setting] = on if _ON.fullmatch(environment[name]) else off
    return found | horovod_settings.split(settings)[0]


def without_effect(environment: MutableMapping[str, str]) -> list[str]:
    """The settings of Horovod that tfddl has no equivalent of."""
    return sorted(
        name
        for name in environment
        if name.startswith("HOROVOD_") and name not in _READ and not _NOT_A_SETTING.fullmatch(name)
    )


def _number(name: str, text: str) -> int:
    try:
        number = int(float(text))  # 60.0 is 60, as in Horovod
    except (ValueError, OverflowError):
        number = -1
    if number < 0:
        raise ValueError(f"{name} is a whole number, 0 or more: set one, or leave it out. Received: {text!r}")
    return number
