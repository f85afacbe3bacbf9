"""Probes of the host: shared memory, cores, memory, containers, networks, schedulers."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfddl.doctor.finding import Finding, fault, note, ok
from tfddl.launch.allocation import choose
from tfddl.runtime.launcher_check import unexpected_single

LEAST_SHM_MB = 64
_MB = 1 << 20
_SCHEDULERS = {"SLURM_JOB_ID": "Slurm", "PBS_JOBID": "PBS", "LSB_JOBID": "LSF"}


def shared_memory(path: str = "/dev/shm") -> Iterator[Finding]:
    """The room through which ranks of one host exchange data."""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        yield fault("/dev/shm", str(error), "mount -t tmpfs tmpfs /dev/shm")
        return
    text = f"{usage.free // _MB} MB free of {usage.total // _MB}"
    if usage.free < LEAST_SHM_MB * _MB:
        yield fault(
            "/dev/shm",
            f"{text}; a rank wants {LEAST_SHM_MB} MB, else it sends by MPI, several times slower",
            "docker run --shm-size=1g ..., or rm what an earlier job has left in /dev/shm",
        )
    else:
        yield ok("/dev/shm", text)


def locked_memory(infiniband: Path = Path("/sys/class/infiniband")) -> Iterator[Finding]:
    """How much memory a process may lock, as InfiniBand needs it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KB"
    has_device = infiniband.is_dir() and any(infiniband.iterdir())
    if has_device and soft != resource.RLIM_INFINITY:
        yield fault("locked memory", f"{text}, and this host has InfiniBand", "ulimit -l unlimited")
    else:
        yield ok("locked memory", text if has_device else f"{text}: enough without InfiniBand")


def cores(cgroup: Path = Path("/sys/fs/cgroup")) -> Iterator[Finding]:
    """The cores that a process may use, by its affinity and by its control group."""
    there, may = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    text = f"{may} of {there}" + (f"; the control group allows the time of {quota:.1f}" if quota else "")
    if may < there and may == 1:
        yield note(
            "cores", f"{text}: all threads of TensorFlow share one", "mpirun --bind-to none, or tfddlrun"
        )
    else:
        yield ok("cores", text)


def memory(cgroup: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    """The memory of the host, and of the control group."""
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo.read_text(), re.MULTILINE))
    free = int(kilobytes["MemAvailable"]) // 1024
    text = f"{free} MB free of {int(kilobytes['MemTotal']) // 1024}"
    limit = _number(cgroup / "memory.max") or _number(cgroup / "memory" / "memory.limit_in_bytes")
    if limit and limit < int(kilobytes["MemTotal"]) * 1024:
        text += f"; the control group allows {limit // _MB} MB"
        free = min(free, limit // _MB)
    if free < 1024:
        yield note(
            "memory", f"{text}: a process with TensorFlow takes 500 MB and more", "start fewer processes"
        )
    else:
        yield ok("memory", text)


def container(proc: Path = Path("/proc"), root: Path = Path("/")) -> Iterator[Finding]:
    """Whether this is a container, and whether ranks of one host see each other's processes."""
    signs = [sign for sign in (".dockerenv", "run/.containerenv", ".singularity.d") if (root / sign).exists()]
    where = f"a container (/{signs[0]})" if signs else "none that is known"
    try:
        first = (proc / "1" / "comm").read_text().strip()
    except OSError:
        first = "hidden"
    yield ok("container", f"{where}; process 1 is {first}")


def scheduler(environment: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """The allocation of a scheduler, and a launcher that MPI does not know."""
    environment = os.environ if environment is None else environment
    jobs = [f"{name} job {environment[key]}" for key, name in _SCHEDULERS.items() if key in environment]
    error = unexpected_single(environment)
    yield ok("scheduler", jobs[0] if jobs else "none") if error or not jobs else _job(jobs[0], environment)
    if error:
        yield fault(
            "launcher", error.partition(": each")[0], "srun --mpi=pmix, or tfddlrun in the batch script"
        )


def _job(name: str, environment: Mapping[str, str]) -> Finding:
    """What tfddlrun without -np starts in this job of a scheduler."""
    try:
        return ok("scheduler", f"{name}: tfddlrun python train.py starts {choose(environment)}")
    except ValueError as error:
        return note("scheduler", f"{name}: {error}", "tfddlrun -np 2 python train.py")


def network() -> Iterator[Finding]:
    """The host's name, and the interfaces that MPI may use for other hosts."""
    name = socket.gethostname()
    interfaces = [each for _, each in socket.if_nameindex() if each != "lo"]
    up = [each for each in interfaces if _state(each) in ("up", "unknown")]
    text = f"{', '.join(up) or 'lo alone'} ({name})"
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        yield fault(
            "network",
            f"{text}; the host does not know its own name",
            f"echo '127.0.1.1 {name}' >> /etc/hosts",
        )
        return
    chosen = {
        key: os.environ[key]
        for key in ("OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES")
        if key in os.environ
    }
    missing = [
        each
        for value in chosen.values()
        for each in value.split(",")
        if _is_missing(each, [*interfaces, "lo"])
    ]
    if missing:
        given = ", ".join(f"{key}={value}" for key, value in chosen.items())
        yield fault(
            "network", f"{text}; there is no {missing[0]}, which {given} names", f"unset {next(iter(chosen))}"
        )
    else:
        yield ok("network", text)


def _is_missing(name: str, interfaces: list[str]) -> bool:
    # A subnet, such as 10.0.0.0/8, and a device with a port, such as mlx5_0:1, are no interfaces.
    return not ("/" in name or ":" in name or name in interfaces or name == "all")


def _state(interface: str) -> str:
    try:
        return (Path("/sys/class/net") / interface / "operstate").read_text().strip()
    except OSError:
        return "unknown"


def _quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
