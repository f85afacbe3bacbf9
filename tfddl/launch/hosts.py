"""The hosts of a job: `-H host:slots,...` and host files."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfddl.launch.channel import interface_addresses

_HOST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<slots>[1-9][0-9]*))?")
_LINE = re.compile(r"(?P<host>\S+)(?P<settings>(\s+[\w-]+\s*=\s*\S+)*)")
_SETTING = re.compile(r"([\w-]+)\s*=\s*(\S+)")
_COUNT = re.compile("[1-9][0-9]*")
_IPV6 = re.compile(r".*::.*|\[.*|([^:]*:){7}.*")


@dataclass(frozen=True)
class Host:
    """A host and its number of slots for processes."""

    name: str
    slots: int = 1


def parse_hosts(text: str) -> list[Host]:
    """Reads `host:slots,...`; slots default to 1.

    Args:
        text: string, as given to `-H`.

    Returns:
        List of `Host`, in the order given.

    Raises:
        ValueError: `text` does not have this form, or names a host twice.
    """
    return _once_each([host_of(item.strip(), text) for item in text.split(",")])


def read_hostfile(path: Path) -> list[Host]:
    """Reads a host file: one host a line, as `host`, `host:slots` or `host slots=N`; `#` starts a comment.

    Args:
        path: path of the file.

    Returns:
        List of `Host`, in the order of the file.

    Raises:
        ValueError: a line has another form, a host is named twice, no host is named, or the file is no text.
    """
    hosts = []
    try:
        text = path.read_text("utf-8-sig")  # editors of Windows put a mark in front
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A host file is text in UTF-8, with a host on each line: give such a file. Received: {path} ({error})"
        ) from None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        where = f"{path}, line {number}: {line}"
        match = _LINE.fullmatch(line)
        given = dict(_SETTING.findall(match["settings"])) if match else {}
        slots = next((given[name] for name in ("slots", "max_slots", "max-slots") if name in given), "")
        if match is None or (given and not _COUNT.fullmatch(slots)):
            raise ValueError(
                f"A line of the host file is not a host: write 'node1 slots=4' or 'node1:4'. Received: {where}"
            )
        host = host_of(match["host"], where)
        hosts.append(Host(host.name, int(slots)) if slots else host)
    if not hosts:
        raise ValueError(
            f"A host file must name a host: write 'node1 slots=4'. Received: {path}, which names none"
        )
    return _once_each(hosts)


def slots_taken(hosts: Sequence[Host], processes: int | None) -> int:
    """The number of processes: all slots, unless the user has given a number.

    Raises:
        ValueError: The hosts have fewer slots.
    """
    slots = sum(host.slots for host in hosts)
    count = processes or slots
    if count > slots:
        each = -(-count // len(hosts))
        more = ",".join(f"{host.name}:{max(host.slots, each)}" for host in hosts[:3])
        raise ValueError(
            f"The hosts have {slots} slot{'s' if slots > 1 else ''} for {count} processes. Write the number of slots "
            f"behind each host, as in -H {more}, or ask for fewer processes. Received: -np {count} with "
            + ",".join(f"{host.name}:{host.slots}" for host in hosts)
        )
    return count


def with_room(hosts: Sequence[Host], processes: int) -> list[Host]:
    """The hosts with as many times their slots as the processes need."""
    slots = sum(host.slots for host in hosts)
    times = max(1, -(-processes // slots)) if slots else 1
    return [Host(host.name, host.slots * times) for host in hosts]


def all_local(hosts: Sequence[Host]) -> bool:
    """Whether every host is this host."""
    own = socket.gethostname()
    local = {"localhost", own, own.split(".")[0], *interface_addresses()}
    return all(host.name in local or host.name.startswith("127.") for host in hosts)


def names_of(machine: str, hosts: Sequence[Host]) -> list[str]:
    """The names that hosts have for a machine: its own with or without a domain, for this host also its addresses.

    Args:
        machine: What `socket.gethostname()` returns there.
        hosts: The hosts.
    """
    is_own = machine == socket.gethostname()
    return [
        host.name
        for host in hosts
        if host.name.split(".")[0] == machine.split(".")[0] or (is_own and all_local([host]))
    ]


def host_of(text: str, received: str, slots: int = 1) -> Host:
    """Reads `host` or `host:slots`.

    Args:
        text: The host.
        received: What an error quotes.
        slots: The slots of a host without a number.

    Raises:
        ValueError: `text` does not have this form.
    """
    match = _HOST.fullmatch(text)
    if match is None and "@" in text:
        raise ValueError(
            "A host is named without a user: write the name alone, and the user in ~/.ssh/config (Host node1, User me). "
            f"Received: {received}"
        )
    if match is None and _IPV6.fullmatch(text):
        raise ValueError(
            "tfddl connects hosts by IPv4: write a host's name, or its IPv4 address, instead of an IPv6 address. "
            f"Received: {received}"
        )
    if match is None:
        raise ValueError(
            f"A host is not a name with a whole number of slots: write 'node1' or 'node1:4'. Received: {received}"
        )
    return Host(match["name"], int(match["slots"] or slots))


def _once_each(hosts: list[Host]) -> list[Host]:
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"A host is named several times: name each once, with all its slots. Received: {', '.join(twice)} more than once"
        )
    return hosts
