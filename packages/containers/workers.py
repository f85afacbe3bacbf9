"""The job of deploy/mpijob.yaml: workers with sshd and addresses of their own, and a launcher that is none of them."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

from packages.containers.image import MOUNT, NAMESPACES, Image

DOMAIN = "tfddl.default.svc"
NETWORK = "10.78.0"
# Runs in the launcher's namespaces. Each worker has a network, a name and shared memory of its own, and the same files:
# their images are equal.
LAUNCH = """
set -e
ip link set lo up
ip link add bridge type bridge
ip addr add {network}.1/24 dev bridge
ip link set bridge up
hostname launcher
for i in {numbers}; do
  unshare --mount --net --uts sh -c '
    hostname tfddl-worker-'$i'
    mount -t tmpfs -o size=1g,mode=1777 tmpfs {root}/dev/shm
    until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
    ip link set lo up
    ip addr add {network}.1'$i'/24 dev eth0
    ip link set eth0 up
    exec {chroot} env -i PATH={path} {worker}' &
  sleep 0.3
  ip link add port$i type veth peer name eth0 netns $!
  ip link set port$i master bridge up
done
for i in {numbers}; do
  until {chroot} sh -c 'exec ssh-keyscan -T 1 {network}.1'$i >/dev/null 2>&1; do sleep 0.2; done
done
exec "$@"
"""


def run_job(image: Image, job: dict[str, Any]) -> list[str]:
    """Prepares the image as the MPI operator does. Returns the command line of the whole job.

    Args:
        image: the image of deploy/Dockerfile.
        job: the field `spec` of the MPIJob.
    """
    roles = {role: job["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker")}
    launcher, worker = (role["template"]["spec"]["containers"][0] for role in roles.values())
    numbers = range(roles["Worker"]["replicas"])
    _write_keys(image, job["sshAuthMountPath"])
    names = [f"tfddl-worker-{i}.{DOMAIN}" for i in numbers]
    hosts = "".join(
        f"{NETWORK}.1{i} {name} {name.partition('.')[0]}\n" for i, name in zip(numbers, names, strict=True)
    )
    (image.root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{NETWORK}.1 launcher\n{hosts}")
    (image.root / "etc/mpi").mkdir(exist_ok=True)
    slots = "".join(f"{name} slots={job['slotsPerWorker']}\n" for name in names)
    (image.root / "etc/mpi/hostfile").write_text(slots)
    launch = LAUNCH.format(
        network=NETWORK,
        numbers=" ".join(map(str, numbers)),
        root=shlex.quote(str(image.root)),
        chroot=shlex.join(image.chroot()),
        path=image.variables["PATH"],
        worker=shlex.join(worker["command"]),
    )
    inside = image.command(launcher["command"])
    # image.command without its namespaces and mounts, which the launcher's script has made.
    own = inside[inside.index("chroot") :]
    return [
        *NAMESPACES,
        "--net",
        *["sh", "-c", MOUNT, "sh", str(image.root), str(image.train), "rw"],
        *["sh", "-c", launch, "sh", *own],
    ]


def _write_keys(image: Image, directory: str) -> None:
    """The key of the job, which the operator mounts into launcher and workers."""
    folder = image.root / directory.lstrip("/")
    key = folder / "id_rsa"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(key)], check=True)
        (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
