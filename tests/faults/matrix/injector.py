"""Makes a rank fail: the program's places call `at()`, and one of them is where the planned fault happens."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PREFIX = "TFDDL_FAULT_"
"""Environment variables that start so hold the plan: RANK, MOMENT, FAULT,
LAUNCHER, and DIRECTORY for the injector's files."""

PAUSE_S = 8.0
ROOM_BYTES = 1 << 20
_IN_DATA = ("out of data", "joins early")
_happened = False


def rank() -> int:
    """The rank of this process, before MPI knows it."""
    return int(os.environ["OMPI_COMM_WORLD_RANK"])


def directory() -> Path:
    """A directory of the job outside TMPDIR."""
    return Path(os.environ[PREFIX + "DIRECTORY"])


def fail_at(rank: int, moment: str, fault: str, launcher: str, directory: Path) -> dict[str, str]:
    """The environment variables that plan a fault."""
    values = {"RANK": str(rank), "MOMENT": moment, "FAULT": fault}
    values |= {"LAUNCHER": launcher, "DIRECTORY": str(directory)}
    return {PREFIX + name: value for name, value in values.items()}


def is_planned(moment: str, *faults: str) -> bool:
    """Whether this rank fails at this moment, by one of these faults; by any fault if none is given."""
    plan = {name: os.environ[PREFIX + name] for name in ("RANK", "MOMENT", "FAULT")}
    return (plan["RANK"], plan["MOMENT"]) == (str(rank()), moment) and (not faults or plan["FAULT"] in faults)


def at(moment: str, poison: Callable[[], None] | None = None) -> None:
    """A place of the program. The planned fault happens at its first call.

    Args:
        moment: The name of the place.
        poison: A function that makes this rank compute NaN.
    """
    if not is_planned(moment) or is_planned(moment, *_IN_DATA) or _happened:
        return
    mark()
    fault = os.environ[PREFIX + "FAULT"]
    if fault == "NaN":
        assert poison is not None
        poison()
    else:
        ACTIONS[fault]()


def data_ends(moment: str) -> bool:
    """Whether the data of this rank end here."""
    if not is_planned(moment, *_IN_DATA):
        return False
    mark()
    return True


def mark() -> None:
    """Writes the time of the fault."""
    global _happened
    _happened = True
    (directory() / "fault").write_text(str(time.time()))


def meet(size: int) -> None:
    """Waits until all ranks that come here have come: imports take unequal times."""
    (directory() / f"imported.{rank()}").touch()
    late = os.environ[PREFIX + "MOMENT"] in ("before import", "before init")
    for other in range(size):
        if not (late and other == int(os.environ[PREFIX + "RANK"])):
            while not (directory() / f"imported.{other}").exists():
                time.sleep(0.02)


def _kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _pause() -> None:
    command = f"sleep {PAUSE_S}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(error: BaseException) -> Callable[[], NoReturn]:
    def action() -> NoReturn:
        raise error

    return action


def _sleep() -> None:
    while True:
        time.sleep(1000)


def _call_another() -> None:
    import tensorflow as tf

    import tfddl as hvd

    hvd.allreduce(tf.ones([3]), name="another")


def _run_out_of_memory() -> None:
    """Before the import and before `init()` these fail by themselves; later the program asks for more than there is."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if not (is_planned("before import") or is_planned("before init")):
        bytearray(1 << 34)


def _fill_disk() -> None:
    full = directory() / "full"  # a file system without room, where the job may have one
    path = full / f"log.{rank()}" if full.is_dir() and os.path.ismount(full) else Path("/dev/full")
    with path.open("wb", buffering=0) as file:
        for _ in range(64):
            file.write(b"x" * 65536)


def _signal_launcher(number: int, name: str = "") -> Callable[[], None]:
    def action() -> None:
        os.kill(_ancestor(name or os.environ[PREFIX + "LAUNCHER"]), number)
        # The launcher ends this rank. A killed mpirun does not, and the program goes on until it notices.
        time.sleep(0.5 if number == signal.SIGKILL else 100)

    return action


def _ancestor(name: str) -> int:
    """The nearest process above this one that is `tfddlrun` or `mpirun`."""
    pid = os.getpid()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        programs = {Path(words[0]).name, *words} & {"mpirun", "prterun", "tfddl.launch.run"}
        if programs and (name == "tfddlrun") == ("tfddl.launch.run" in programs):
            return pid
    sys.exit(f"The injector found no {name} above rank {rank()}.")


ACTIONS: dict[str, Callable[[], None]] = {
    "SIGKILL": _kill(signal.SIGKILL),
    "SIGSEGV": _kill(signal.SIGSEGV),
    "SIGABRT": os.abort,
    "SIGSTOP": _kill(signal.SIGSTOP),
    "SIGSTOP, then SIGCONT": _pause,
    "_exit(0)": lambda: os._exit(0),
    "_exit(3)": lambda: os._exit(3),
    "exit(0)": lambda: sys.exit(0),
    "exit(5)": lambda: sys.exit(5),
    "SystemExit(3)": _raise(SystemExit(3)),
    "exception": _raise(ValueError("planted")),
    "KeyboardInterrupt": _raise(KeyboardInterrupt()),
    "never calls": _sleep,
    "calls another collective": _call_another,
    "holds the GIL": lambda: ctypes.PyDLL(None).sleep(1000),
    "out of memory": _run_out_of_memory,
    "full disk": _fill_disk,
    "launcher INT": _signal_launcher(signal.SIGINT),
    "launcher TERM": _signal_launcher(signal.SIGTERM),
    "launcher HUP": _signal_launcher(signal.SIGHUP),
    "launcher KILL": _signal_launcher(signal.SIGKILL),
    "mpirun KILL": _signal_launcher(signal.SIGKILL, "mpirun"),
}
