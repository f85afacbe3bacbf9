"""Two hosts on one machine: a network, a name, shared memory and processes of their own, a cable between them.

    python lab.py DIRECTORY RATE COMMAND ARGS...

runs a command on `hostA`, from where mpirun reaches `hostB` by a stand-in for ssh. Both share the file system,
as a cluster's nodes do. RATE is what the cable carries in each direction, as `tc` writes it (`1gbit`), or `-` for
all it can. Needs no privileges beyond unprivileged user namespaces; all that it makes is in namespaces and goes
with this process.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

NAMESPACES = ["--user", "--map-root-user", "--mount", "--net", "--uts", "--ipc"]
"""Options of `unshare` for host A; host B has the same user namespace."""

LEFT_LIMIT = 30.0
"""Seconds that the processes of a job get to be gone once its launcher has ended."""

ADDRESSES = {"hostA": "10.77.0.1", "hostB": "10.77.0.2"}

# ssh gives a command no more of the environment than this.
AGENT = """#!/bin/sh
while case $1 in -*) ;; *) false ;; esac; do shift; done
case $1 in hostB | {address}) ;; *) echo "ssh: Could not resolve hostname $1" >&2; exit 255 ;; esac
shift
exec nsenter --target {holder} --mount --net --uts --ipc -- \\
  env -i HOME='{home}' PATH=/usr/bin:/bin TMPDIR='{directory}' /bin/sh -c "$*"
"""


def lab_command(directory: Path, rate: str = "-") -> list[str]:
    """The command line in front of one that is to run on host A."""
    return [sys.executable, "-S", __file__, str(directory), rate]


def enter(arguments: list[str]) -> NoReturn:
    """Runs this file anew, in namespaces of its own."""
    own = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    os.execvp(
        "unshare", ["unshare", *NAMESPACES, *own, sys.executable, "-S", __file__, "--inside", *arguments]
    )


def call(*words: str) -> None:
    """Runs a command that has to succeed."""
    subprocess.run(words, check=True)


def become(host: str, hosts_file: Path) -> None:
    """Makes the namespaces of this process those of a host."""
    call("mount", "--bind", str(hosts_file), "/etc/hosts")
    call("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    call("ip", "link", "set", "lo", "up")
    socket.sethostname(host)


def start_host_b(hosts_file: Path) -> subprocess.Popen[bytes]:
    """Starts the process that holds host B's namespaces, and returns once they are ready."""
    command = ["unshare", *NAMESPACES[2:], sys.executable, "-S", __file__, "--hold", str(hosts_file)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    if not holder.stdout.readline():
        raise RuntimeError(f"host B did not start: exit code {holder.wait()}")
    return holder


def connect(holder: int, rate: str) -> None:
    """Lays the cable between the hosts."""
    call("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(holder))
    for prefix, host in (([], "hostA"), (["nsenter", "--target", str(holder), "--net"], "hostB")):
        call(*prefix, "ip", "address", "add", f"{ADDRESSES[host]}/24", "dev", "cable")
        call(*prefix, "ip", "link", "set", "cable", "up")
        if rate != "-":
            shaping = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            call(*prefix, "tc", "qdisc", "add", "dev", "cable", "root", *shaping)


def left_running(holder: int) -> list[str]:
    """Command lines of the processes on both hosts that are still there after `LEFT_LIMIT` seconds."""
    deadline = time.monotonic() + LEFT_LIMIT
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in (os.getpid(), holder):
                try:
                    words = (entry / "cmdline").read_bytes()  # Empty for a zombie.
                except OSError:
                    continue
                if words:
                    found.append(words.replace(b"\0", b" ").decode())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def main() -> int:
    """Builds the hosts, runs the command on host A, and says what it left running on either."""
    directory, rate, command = Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    hosts_file, agent = directory / "hosts", directory / "agent"
    lines = [f"{address} {host}" for host, address in ADDRESSES.items()]
    hosts_file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    become("hostA", hosts_file)
    holder = start_host_b(hosts_file).pid
    connect(holder, rate)
    home = os.environ.get("HOME", "/")
    agent.write_text(AGENT.format(address=ADDRESSES["hostB"], holder=holder, home=home, directory=directory))
    agent.chmod(0o755)
    os.environ.update(PRTE_MCA_plm="ssh", PRTE_MCA_plm_ssh_agent=str(agent))
    code = subprocess.run(command).returncode
    for line in left_running(holder):
        print("left running:", line)
    return code


def hold(hosts_file: Path) -> None:
    """Host B: its namespaces last as long as this process."""
    become("hostB", hosts_file)
    print("ready", flush=True)
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    if sys.argv[1] == "--hold":
        hold(Path(sys.argv[2]))
    if sys.argv[1] != "--inside":
        enter(sys.argv[1:])
    sys.exit(main())
