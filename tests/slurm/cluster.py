"""A Slurm of two nodes on this machine, which lasts as long as the process that starts it.

Needs slurmctld, slurmd, munged and Slurm's commands (Debian: slurmctld slurmd slurm-client munge libpmix-dev), and root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "salloc", "srun", "scontrol")
_READY_S = 60.0
_SETTINGS = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no such cluster here. Empty if there can."""
    path = _path()
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if absent:
        return f"Slurm is not installed: no {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


@contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """Runs the daemons. Yields the environment of Slurm's commands."""
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    (folder / "state").mkdir()
    settings = folder / "slurm.conf"
    settings.write_text(
        _SETTINGS.format(host=socket.gethostname().split(".")[0], folder=folder, ports=_free_ports(3))
    )
    environment = os.environ | {"SLURM_CONF": str(settings), "PATH": _path()}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
        ["slurmctld", "-D", "-f", str(settings)],
        *(["slurmd", "-D", "-f", str(settings), "-N", node] for node in ("node1", "node2")),
    ]
    daemons = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.log", "ab") as log:
                daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            _wait_for(lambda: (folder / "munge.socket").exists())
        _wait_for(lambda: _idle_nodes(environment) == 2)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _idle_nodes(environment: Mapping[str, str]) -> int:
    command = ["scontrol", "--oneliner", "show", "node"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return answer.stdout.count("State=IDLE ")


def _wait_for(condition) -> None:
    deadline = time.monotonic() + _READY_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("Slurm's daemons are not ready; the folder has their logs")
        time.sleep(0.1)
