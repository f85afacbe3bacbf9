"""The allocation of a Slurm job: its hosts, its tasks and its GPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping

from tfddl.launch.hosts import Host

_ITEM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")  # commas inside of brackets separate numbers
_BRACKETS = re.compile(r"\[([\d,-]+)\]")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_COUNT = re.compile(r"(?:^|:)(\d+)$")  # 4, a100:4
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)(?=[(,]|$)")  # gpu:2(IDX:0,3), gpu:a100:1(IDX:0)
_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_SCONTROL_S = 30.0
_MALFORMED = (
    "A list of Slurm's hosts looks like node[01-03,7],login: pass the hosts with -H instead. Received: {}"
)


def host_names(environment: Mapping[str, str]) -> list[str]:
    """The hosts of the job.

    Those of a step do not count: a job that `sbatch` submits from within a step inherits the variables of that step.
    """
    text = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
    return expand(text) if text else []


def expand(text: str) -> list[str]:
    """Expands a list of hosts such as `node[01-03,7],login`, by scontrol if it is there.

    Raises:
        ValueError: The list is not of this form.
    """
    names = _scontrol("show", "hostnames", text).split()
    if names:
        return names
    items = _ITEM.findall(text)
    if ",".join(items) != text:
        raise ValueError(_MALFORMED.format(text))
    return [name for item in items for name in _expand_item(item, text)]


def tasks(environment: Mapping[str, str], names: list[str]) -> tuple[list[Host], str]:
    """The tasks that the user has asked for, on each host, and the variables that say so. Empty if there are none.

    Slurm sets SLURM_TASKS_PER_NODE in any case, the number of tasks only where somebody has asked for tasks. `srun` always
    sets it, so that one task in a step may only be the shell of `srun --pty bash`.
    """
    total = environment.get("SLURM_NTASKS") or environment.get("SLURM_NPROCS") or ""
    each = environment.get("SLURM_NTASKS_PER_NODE", "")
    if not total.isdecimal() and not each.isdecimal():
        return [], ""
    if total == "1" and environment.get("SLURM_STEP_NUM_TASKS") == "1":
        return [], ""
    counts = _repeated(environment.get("SLURM_TASKS_PER_NODE", ""))
    if total.isdecimal():
        source = f"SLURM_NTASKS={total}"
        if len(counts) != len(names) or sum(counts) != int(total):
            counts = _evenly(int(total), len(names))
    else:
        source = f"SLURM_NTASKS_PER_NODE={each}"
        counts = [int(each)] * len(names)
    return [Host(name, count) for name, count in zip(names, counts, strict=True) if count], source


def gpus(environment: Mapping[str, str], hosts: int) -> tuple[int, str]:
    """The GPUs of each host, and the variable that says so.

    Returns:
        0 and no variable if none says it; 0 and SLURM_GPUS if the hosts of the job have different numbers of GPUs.
    """
    count, source = _gpus_of_this_host(environment)
    text = environment.get("SLURM_GPUS", "")
    total = _total(text)
    if total and (total != count * hosts if count else total % hosts):
        return 0, f"SLURM_GPUS={text}"
    return (total // hosts, f"SLURM_GPUS={text}") if total and not count else (count, source)


def gpus_of_each_host(environment: Mapping[str, str], names: list[str]) -> tuple[list[Host], str]:
    """The hosts that have GPUs in the job, each with their number, and the command that says so.

    Slurm's variables tell the GPUs of this host, or the total.

    Returns:
        No hosts if scontrol does not tell it, or if no host has GPUs.
    """
    question = ("-d", "show", "job", environment["SLURM_JOB_ID"])
    found = {
        name: sum(map(int, _GPUS.findall(resources)))
        for nodes, resources in _NODES.findall(_scontrol(*question))
        for name in expand(nodes)
    }
    if set(found) != set(names) or not any(found.values()):
        return [], ""
    return [Host(name, found[name]) for name in names if found[name]], " ".join(("scontrol", *question))


def _scontrol(*arguments: str) -> str:
    """The output of scontrol. Empty without it, and if it fails."""
    program = shutil.which("scontrol")
    if program is None:
        return ""
    try:
        answer = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_SCONTROL_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _gpus_of_this_host(environment: Mapping[str, str]) -> tuple[int, str]:
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        count = _total(environment.get(name, ""))
        if count:
            return count, f"{name}={environment[name]}"
    indices = environment.get("SLURM_JOB_GPUS", "")
    return (indices.count(",") + 1, f"SLURM_JOB_GPUS={indices}") if indices else (0, "")


def _total(text: str) -> int:
    """The sum of `4`, `a100:4` or `a100:2,v100:2`; 0 for anything else."""
    counts = [_COUNT.search(part) for part in text.split(",")]
    return sum(int(count[1]) for count in counts if count) if all(counts) else 0


def _expand_item(item: str, text: str) -> Iterator[str]:
    brackets = _BRACKETS.search(item)
    if brackets is None:
        if not item or set(item) & set("[] "):
            raise ValueError(_MALFORMED.format(text))
        yield item
        return
    before, after = item[: brackets.start()], item[brackets.end() :]
    for span in brackets[1].split(","):
        first, _, last = span.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ValueError(_MALFORMED.format(text))
        for number in range(int(first), int(last or first) + 1):
            yield from _expand_item(f"{before}{number:0{len(first)}}{after}", text)


def _repeated(text: str) -> list[int]:
    """Expands `2(x3),1` to [2, 2, 2, 1]."""
    counts = []
    for part in text.split(","):
        match = _REPEATED.fullmatch(part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _evenly(total: int, hosts: int) -> list[int]:
    return [total // hosts + (index < total % hosts) for index in range(hosts)]
