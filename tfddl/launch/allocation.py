"""Finds out how many processes to start, and where, if nobody has said so: from a scheduler's allocation, else from GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tfddl.launch import slurm
from tfddl.launch.gpus import local_gpus
from tfddl.launch.hosts import Host, all_local
from tfddl.runtime.launcher_check import unexpected_single


class NoChoiceError(ValueError):
    """Nothing says how many processes to start. The message says how to say it."""


class Advice(NamedTuple):
    """The words of a caller for errors."""

    start: str  # how to say the number of processes
    without: str  # who chooses the number, as the subject of a sentence


TFDDLRUN = Advice("tfddlrun -np 2 python train.py", "Without -np tfddlrun")


@dataclass(frozen=True)
class Allocation:
    """The hosts, tasks and GPUs that a scheduler has given to this job."""

    scheduler: str
    hosts: list[str]
    tasks: list[Host] = field(
        default_factory=list
    )  # the tasks of each host; empty if nobody has asked for tasks
    tasks_source: str = ""
    gpus: int = 0  # on each host; 0: unknown, or different if there is a source
    gpus_source: str = ""
    gpu_hosts: list[Host] = field(default_factory=list)  # the GPUs of each host; empty: unknown
    ask: str = ""  # how to ask the scheduler for tasks


@dataclass(frozen=True)
class Choice:
    """How many processes to start where, and what says so."""

    hosts: list[Host]
    source: str

    @property
    def processes(self) -> int:
        return sum(host.slots for host in self.hosts)

    def __str__(self) -> str:
        count = self.processes
        where = ", ".join(f"{host.slots} on {host.name}" for host in self.hosts[:4])
        if len(self.hosts) > 4:
            where += f", ... ({len(self.hosts)} hosts)"
        return f"{count} process{'es' if count > 1 else ''} ({where}), by {self.source}"


def find_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Reads the variables of Slurm, PBS or LSF.

    Args:
        environment: The environment variables.

    Returns:
        An `Allocation`; None outside of one.

    Raises:
        ValueError: A variable or a file of the scheduler cannot be read.
    """
    readers = {"SLURM_JOB_ID": _slurm, "PBS_NODEFILE": _pbs, "LSB_JOBID": _lsf}
    return next((read(environment) for name, read in readers.items() if environment.get(name)), None)


def choose(environment: Mapping[str, str], advice: Advice = TFDDLRUN) -> Choice:
    """Chooses the number of processes and their hosts.

    The tasks that were asked for come first, then one process for each GPU of the allocation, then one for each GPU of this
    host.

    Args:
        environment: The environment variables.
        advice: For errors.

    Returns:
        A `Choice`.

    Raises:
        NoChoiceError: Nothing says how many processes to start.
        ValueError: A variable or a file of the scheduler cannot be read.
    """
    if unexpected_single(environment):
        raise NoChoiceError(
            "A launcher has started tfddlrun several times, and each would start a job of its own. Start tfddlrun once, "
            "as in a batch script without srun, or start the program without tfddlrun: srun --mpi=pmix python train.py"
        )
    allocation = find_allocation(environment)
    if allocation is None:
        count, source = local_gpus(environment)
        if count:
            return Choice([Host("localhost", count)], f"the GPUs of this host ({source})")
        raise NoChoiceError(
            f"Say how many processes to start: {advice.start}. {advice.without} takes the tasks of an "
            f"allocation (Slurm, PBS, LSF), else one process for each GPU. Received: no allocation, no GPU ({source})"
        )
    return _from(allocation, environment, advice)


def hosts_for_mpirun(environment: Mapping[str, str]) -> list[Host]:
    """The hosts that mpirun has to be told, if the user has given the number of processes.

    Each mpirun knows Slurm by itself. Few builds of Open MPI know PBS and LSF, the wheel does not.

    Raises:
        ValueError: A variable or a file of the scheduler cannot be read.
    """
    found = None if environment.get("SLURM_JOB_ID") else find_allocation(environment)
    return found.tasks if found is not None and len(found.hosts) > 1 else []


def _from(allocation: Allocation, environment: Mapping[str, str], advice: Advice) -> Choice:
    name = allocation.scheduler
    if any(host.slots > 1 for host in allocation.tasks) or (name == "Slurm" and allocation.tasks):
        return Choice(
            allocation.tasks, f"the tasks of {name} ({allocation.tasks_source}){_more_gpus(allocation)}"
        )
    count, source = allocation.gpus, allocation.gpus_source
    if allocation.gpu_hosts:
        return Choice(allocation.gpu_hosts, f"the GPUs that {name} gives on each host ({source})")
    if not count and source:
        some = ",".join(f"{host}:1" for host in allocation.hosts[:3])
        raise NoChoiceError(
            f"The hosts of this job have different numbers of GPUs: write how many processes each takes, as in -H {some}, "
            f"or ask for as many on each, by sbatch --gpus-per-node. Received: {source} for {', '.join(allocation.hosts)}"
        )
    if not count and any(all_local([Host(host)]) for host in allocation.hosts):
        count, source = local_gpus(environment)
    if count:
        each = f"on each of its {len(allocation.hosts)} hosts" if len(allocation.hosts) > 1 else "on its host"
        hosts = [Host(host, count) for host in allocation.hosts]
        return Choice(hosts, f"the GPUs that {name} gives {each} ({source})")
    if allocation.tasks:  # PBS and LSF: one slot on each host
        return Choice(allocation.tasks, f"the slots of {name} ({allocation.tasks_source})")
    raise NoChoiceError(
        f"This job of {name} has asked neither for tasks nor for GPUs: say how many processes to start, by "
        f"{allocation.ask} or by {advice.start}. Received: {', '.join(allocation.hosts)}"
    )


def _more_gpus(allocation: Allocation) -> str:
    """A hint, where the usual way to ask for one process with all GPUs was meant for another program."""
    count = allocation.gpus if allocation.tasks == [Host(allocation.hosts[0])] else 0
    return f"; for its {count} GPUs: tfddlrun -np {count}, or sbatch --ntasks={count}" if count > 1 else ""


def _slurm(environment: Mapping[str, str]) -> Allocation:
    hosts = slurm.host_names(environment)
    if not hosts:
        raise ValueError(
            "A job of Slurm has its hosts in SLURM_JOB_NODELIST: start tfddlrun in the job's shell or script, or pass -H. "
            "Received: none"
        )
    tasks, tasks_source = slurm.tasks(environment, hosts)
    gpus, gpus_source = slurm.gpus(environment, len(hosts))
    several = len(hosts) > 1 and not tasks
    gpu_hosts, source = slurm.gpus_of_each_host(environment, hosts) if several else ([], "")
    ask = "sbatch --ntasks-per-node=2"
    return Allocation("Slurm", hosts, tasks, tasks_source, gpus, source or gpus_source, gpu_hosts, ask)


def _pbs(environment: Mapping[str, str]) -> Allocation:
    path = environment["PBS_NODEFILE"]
    return _of_slots("PBS", _lines(path), f"PBS_NODEFILE={path}")


def _lsf(environment: Mapping[str, str]) -> Allocation:
    pairs = environment.get("LSB_MCPU_HOSTS", "").split()
    if pairs:
        names, counts = pairs[::2], pairs[1::2]
        if len(names) != len(counts) or not all(count.isdecimal() for count in counts):
            raise ValueError(
                f"LSB_MCPU_HOSTS looks like node1 4 node2 4: set it so, or pass -H. Received: {' '.join(pairs)}"
            )
        slots = [name for name, count in zip(names, counts, strict=True) for _ in range(int(count))]
        return _of_slots("LSF", slots, "LSB_MCPU_HOSTS")
    path = environment.get("LSB_DJOB_HOSTFILE", "")
    return _of_slots("LSF", _lines(path), f"LSB_DJOB_HOSTFILE={path}")


def _lines(path: str) -> list[str]:
    try:
        lines = Path(path).read_text().split()
    except OSError as error:
        raise ValueError(
            f"tfddlrun cannot read the scheduler's list of hosts: pass the hosts with -H. Received: {error}"
        ) from None
    if not lines:
        raise ValueError(
            "The scheduler's list of hosts has a line for each process: pass the hosts with -H instead. "
            f"Received: {path}, which is empty"
        )
    return lines


def _of_slots(scheduler: str, names: list[str], source: str) -> Allocation:
    """An allocation whose list names a host once for each of its slots."""
    hosts = [Host(name, count) for name, count in Counter(names).items()]
    return Allocation(scheduler, [host.name for host in hosts], hosts, source)
