"""Settings of Horovod's machinery, as horovodrun's options and as variables: tfddl has variables for some of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

_VARIABLES = {
    "fusion-threshold-mb": "TFDDL_BUCKET_MB",
    "hierarchical-allreduce": "TFDDL_HIERARCHICAL_ALLREDUCE",
    "stall-check-warning-time-seconds": "TFDDL_STALL_WARNING",
    "stall-check-shutdown-time-seconds": "TFDDL_STALL_LIMIT",
}
_STALL_CHECK = "stall-check-enabled"
# What 0 means in Horovod: each gradient travels by itself, and no limit.
_ZERO = {"fusion-threshold-mb": "1e-06", "stall-check-shutdown-time-seconds": "inf"}
WITHOUT_EFFECT = (
    "controller",
    "cycle-time-ms",
    "cache-capacity",
    "hierarchical-allgather",
    "torus-allreduce",
    "autotune-enabled",
    "autotune-log-file",
    "autotune-warmup-samples",
    "autotune-steps-per-sample",
    "autotune-bayes-opt-max-samples",
    "autotune-gaussian-process-noise",
    "mpi-threads-disable",
    "num-nccl-streams",
    "ccl-bgt-affinity",
    "thread-affinity",
    "gloo-timeout-seconds",
    "log-level",
    "log-with-timestamp",
    "log-hide-timestamp",
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
READ = {*_SETTINGS, *_SWITCHES, "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES"}
"""The variables of Horovod that have one of tfddl's."""
_ON = re.compile(
    r"\s*\+?0*[1-9].*", re.DOTALL
)  # for Horovod, which reads digits and takes any other text as 0

_MPI_OR_GLOO = ("gloo", "use-gloo", "mpi", "use-mpi", "jsrun", "use-jsrun")


def advice(option: str) -> str:
    """Says what to do instead of an option of horovodrun that tfddlrun lacks.

    Args:
        option: The option, with its dashes.

    Returns:
        A sentence; empty for an option that horovodrun lacks too.
    """
    name = option.lstrip("-")
    if name in _VARIABLES:
        return f"Set {_VARIABLES[name]} instead."
    if name == "no-stall-check":
        return "Set TFDDL_STALL_WARNING=inf instead."
    if name == "binding-args":
        return "Give its words to --mpi-args instead."
    if name in _MPI_OR_GLOO:
        return "Leave it out: tfddlrun always uses MPI."
    if name.startswith("autotune"):
        return "Leave it out: tfddl tune finds the settings before a job, and --config-file takes them."
    return "Leave it out: tfddl has nothing that it could change." if name in WITHOUT_EFFECT else ""


def split(settings: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Takes out the settings that tfddl has as variables.

    Args:
        settings: Values by the names of horovodrun's options, without dashes in front. None stands for a setting that is not
            given.

    Returns:
        The variables, and the other settings.

    Raises:
        ValueError: A value has the wrong type.
    """
    variables = {}
    for name, variable in _VARIABLES.items():
        value = settings.get(name)
        if value is not None:
            variables[variable] = _text(name, value)
    checks = settings.get(_STALL_CHECK)
    if checks not in (None, False, True):  # or 0 or 1
        raise ValueError(f"{_STALL_CHECK} is true or false: write one of them. Received: {checks!r}")
    if checks is not None and not checks:
        variables["TFDDL_STALL_WARNING"] = "inf"
        variables.setdefault("TFDDL_STALL_LIMIT", "inf")
    rest = {name: value for name, value in settings.items() if name not in (*_VARIABLES, _STALL_CHECK)}
    return variables, rest


def translated(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of tfddl for those of Horovod, such as `HOROVOD_TIMELINE`.

    Raises:
        ValueError: The value of a variable has the wrong form.
    """
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
    return found | split(settings)[0]


def _text(name: str, value: Any) -> str:
    if name == "hierarchical-allreduce":
        if not isinstance(value, bool):
            raise ValueError(f"{name} is true or false: write one of them. Received: {value!r}")
        return str(int(value))
    if (
        name == "fusion-threshold-mb" and isinstance(value, list) and len(value) == 2
    ):  # as tfddl tune writes it
        return ",".join(_text(name, each) for each in value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{name} is a number: write 0 or more. Received: {value!r}")
    return _ZERO.get(name, "0") if value == 0 else repr(value)  # 32 where the file says 0x20


def _number(name: str, text: str) -> int:
    try:
        number = int(float(text))  # 60.0 is 60, as in Horovod
    except (ValueError, OverflowError):
        number = -1
    if number < 0:
        raise ValueError(f"{name} is a whole number, 0 or more: set one, or leave it out. Received: {text!r}")
    return number
