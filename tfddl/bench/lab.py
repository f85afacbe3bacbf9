"""Hosts on one machine: a network, a name, shared memory and processes of their own, with links between them.

    python -m tfddl.bench.lab DIRECTORY RATE[,DELAY[,HOSTS]] COMMAND ARGS...

runs a command on `hostA`, from where mpirun reaches `hostB` (and `hostC`, ...) by a stand-in for ssh. All share the
file system, as a cluster's nodes do. DIRECTORY is an empty one for files of the lab. RATE is what a host's link carries in
each direction, as `tc` writes it (`1gbit`), or `-` for all it can. DELAY is one way, as with `tc netem delay` on each host:
`20ms` makes a round trip of 40 ms. HOSTS is 2 by default, at most 8. `100mbit,20ms` is a link between buildings.

Two hosts without a delay have a veth cable, which `tbf` limits. With a delay, or with more hosts, `relay.py` is a switch
between them. The lab needs no privileges beyond unprivileged user namespaces, and `/dev/net/tun` for the switch. All that it
makes is in namespaces and goes with this process.
"""

import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

NAMESPACES = ["--user", "--map-root-user", "--mount", "--net", "--uts", "--ipc"]
"""Options of `unshare` for host A; the other hosts have the same user namespace."""

MTU = 9000
"""Bytes of a packet on the links to the switch, as in relay.py."""

LEFT_LIMIT = 30.0
"""Seconds that the processes of a job get to be gone once its launcher has ended."""

PR_SET_PDEATHSIG = 1

LAB = "LAB"
"""Variable that tells the command its lab: `RATE,DELAY,HOSTS`."""

ADDRESSES = {f"host{letter}": f"10.77.0.{number}" for number, letter in enumerate("ABCDEFGH", 1)}

# ssh gives a command no more of the environment than this.
AGENT = """#!/bin/sh
while case $1 in -*) ;; *) false ;; esac; do shift; done
case $1 in
  {cases}
  *) echo "ssh: Could not resolve hostname $1" >&2; exit 255 ;;
esac
shift
exec nsenter --target $holder --mount --net --uts --ipc -- \\
  env -i HOME='{home}' PATH=/usr/bin:/bin TMPDIR='{directory}' /bin/sh -c "$*"
"""


def lab_command(directory: Path, rate: str, delay: str, hosts: int) -> list[str]:
    """The command line in front of one that is to run on host A."""
    return [sys.executable, "-S", __file__, str(directory), network_text(rate, delay, hosts)]


def network_text(rate: str, delay: str, hosts: int) -> str:
    """The words that `network` reads."""
    return f"{rate},{delay},{hosts}"


def enter(arguments: list[str]) -> int:
    """Runs this file anew, in namespaces of its own. They go with this process; `unshare` by itself ignores SIGTERM."""
    own = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    line = ["unshare", *NAMESPACES, *own, sys.executable, "-S", __file__, "--inside", *arguments]
    kill_with_parent = functools.partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGKILL)
    unshare = subprocess.Popen(line, preexec_fn=kill_with_parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the command too
    signal.signal(signal.SIGTERM, lambda *_: end_command(unshare.pid))
    code = unshare.wait()
    return code if code >= 0 else 128 - code


def end_command(unshare: int) -> None:
    """Tells the process in the namespaces to end its command."""
    children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    for child in map(int, children):
        os.kill(child, signal.SIGTERM)


def call(*words: str) -> None:
    """Runs a command that has to succeed."""
    subprocess.run(words, check=True)


def become(host: str, hosts_file: Path) -> None:
    """Makes the namespaces of this process those of a host."""
    call("mount", "--bind", str(hosts_file), "/etc/hosts")
    call("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    call("ip", "link", "set", "lo", "up")
    socket.sethostname(host)


def start(*command: str) -> int:
    """Starts a process of this lab in the background, and returns its id once it says that it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)  # no Ctrl-C reaches it
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(
            f"{' '.join(command)} did not start: exit code {process.wait()}; look at its output above"
        )
    return process.pid


def start_host(host: str, hosts_file: Path) -> int:
    """Starts the process that holds the namespaces of a host."""
    return start("unshare", *NAMESPACES[2:], sys.executable, "-S", __file__, "--hold", str(hosts_file), host)


def inside(holder: int | None) -> list[str]:
    """The words in front of a command that belongs to the network of a host; host A has no holder."""
    return [] if holder is None else ["nsenter", "--target", str(holder), "--net"]


def connect(holders: dict[str, int | None], rate: str, delay: str) -> list[int]:
    """Lays the links between the hosts. Returns the process of the switch, if there is one."""
    switch = []
    if len(holders) > 2 or delay:
        relay = Path(__file__).with_name("relay.py")
        switch = [start(sys.executable, "-S", str(relay), rate, delay or "0s", str(len(holders)))]
        for number, holder in enumerate(holders.values()):
            place = [] if holder is None else ["netns", str(holder)]
            call("ip", "link", "set", f"relay{number}", *place, "name", "cable")
            address = f"02:00:00:00:00:{number:02x}"
            call(*inside(holder), "ip", "link", "set", "cable", "address", address, "mtu", str(MTU))
    else:
        peer = ["peer", "name", "cable", "netns", str(holders["hostB"])]
        call("ip", "link", "add", "cable", "type", "veth", *peer)
    for host, holder in holders.items():
        call(*inside(holder), "ip", "address", "add", f"{ADDRESSES[host]}/24", "dev", "cable")
        call(*inside(holder), "ip", "link", "set", "cable", "up")
        if rate != "-" and not switch:
            shaping = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            call(*inside(holder), "tc", "qdisc", "add", "dev", "cable", "root", *shaping)
    return switch


def left_running(own: Collection[int]) -> list[str]:
    """Command lines of the processes on all hosts, but this lab's own, that are still there after `LEFT_LIMIT` seconds."""
    deadline = time.monotonic() + LEFT_LIMIT
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in own:
                try:
                    words = (entry / "cmdline").read_bytes()  # Empty for a zombie.
                except OSError:
                    continue
                if words:
                    found.append(words.replace(b"\0", b" ").decode())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def check(directory: Path, text: str) -> None:
    """Ends with an error if the first words of the command line are wrong."""
    from tfddl.bench.relay import bytes_per_second, seconds

    if not directory.is_dir() or any(directory.iterdir()):
        sys.exit(f"The lab needs an empty directory: give it $(mktemp -d). Received: {directory}")
    try:
        rate, delay, _ = network(text)
        bytes_per_second(rate)
        seconds(delay or "0s")
    except ValueError as error:
        sys.exit(str(error))


def network(text: str) -> tuple[str, str, list[str]]:
    """Rate, delay (empty for none) and names of the hosts of RATE[,DELAY[,HOSTS]]."""
    rate, delay, *count = text.split(",") if "," in text else (text, "")
    if len(count) > 1 or not all(map(str.isdecimal, count)):
        raise ValueError(f"A lab is RATE[,DELAY[,HOSTS]]: write 1gbit, or 100mbit,20ms,4. Received: {text!r}")
    hosts = int(count[0]) if count else 2
    if not 2 <= hosts <= len(ADDRESSES):
        raise ValueError(
            f"The lab has 2 to {len(ADDRESSES)} hosts: choose a number of them. Received: {text!r}"
        )
    return rate, delay, list(ADDRESSES)[:hosts]


def main() -> int:
    """Builds the hosts, runs the command on host A, and says what it left running on any."""
    # The first process of a namespace ignores it by default.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory, command = Path(sys.argv[2]), sys.argv[4:]
    rate, delay, hosts = network(sys.argv[3])
    hosts_file, agent = directory / "hosts", directory / "agent"
    lines = [f"{ADDRESSES[host]} {host}" for host in hosts]
    hosts_file.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    become("hostA", hosts_file)
    others = {host: start_host(host, hosts_file) for host in hosts[1:]}
    switch = connect({"hostA": None, **others}, rate, delay)
    home = os.environ.get("HOME", "/")
    cases = "\n  ".join(f"{host} | {ADDRESSES[host]}) holder={holder} ;;" for host, holder in others.items())
    agent.write_text(AGENT.format(cases=cases, home=home, directory=directory))
    agent.chmod(0o755)
    lab = network_text(rate, delay, len(hosts))
    os.environ.update({LAB: lab, "PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": str(agent)})
    # Process numbers begin anew here, so that what Open MPI left of a lab that was killed would bear the same names.
    running = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(directory)})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the command too
    signal.signal(signal.SIGTERM, lambda *_: running.terminate())
    code = running.wait()
    for line in left_running([os.getpid(), *others.values(), *switch]):
        print("left running:", line)
    return code if code >= 0 else 128 - code


def hold(hosts_file: Path, host: str) -> None:
    """Another host than A: its namespaces last as long as this process."""
    become(host, hosts_file)
    print("ready", flush=True)
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    if len(sys.argv) < 4 or "--help" in sys.argv[1:3]:
        sys.exit(__doc__)
    if sys.argv[1] == "--hold":
        hold(Path(sys.argv[2]), sys.argv[3])
    if sys.argv[1] != "--inside":
        if __package__:  # from a command line; `tfddl bench --lab` has checked its own
            check(Path(sys.argv[1]), sys.argv[2])
        sys.exit(enter(sys.argv[1:]))
    sys.exit(main())
