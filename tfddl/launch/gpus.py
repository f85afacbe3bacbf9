"""Counts the GPUs that processes on this host may use, without TensorFlow and CUDA."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = Path("/dev")
_LIMIT_S = 10.0  # nvidia-smi waits for a driver that hangs
_DEVICE = re.compile(r"nvidia\d+")


def local_gpus(environment: Mapping[str, str]) -> tuple[int, str]:
    """Counts the GPUs of this host.

    Args:
        environment: The environment variables.

    Returns:
        The number, and where it comes from.
    """
    if VISIBLE in environment:
        return _visible(environment[VISIBLE]), f"{VISIBLE}={environment[VISIBLE]}"
    files = [file for file in _DEVICES.glob("nvidia*") if _DEVICE.fullmatch(file.name)]
    if files:
        return len(files), f"{_DEVICES}/nvidia*"
    count = _listed()
    return count, "nvidia-smi -L" if count else f"neither {_DEVICES}/nvidia* nor nvidia-smi -L has one"


def _visible(text: str) -> int:
    """The devices of CUDA_VISIBLE_DEVICES. CUDA ignores what follows the first that does not exist, such as -1."""
    count = 0
    for device in text.split(","):
        if not re.fullmatch(r"\s*(\d+|GPU-[\w-]+|MIG-[\w/-]+)\s*", device):
            break
        count += 1
    return count


def _listed() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", answer.stdout, re.MULTILINE))
