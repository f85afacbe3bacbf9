"""Raw TCP between hosts: the bytes that a collective has to carry there, in both directions at once, and nothing reduced.

The first rank of each host sends to that of the next host while it receives from that of the one before. The other ranks
do nothing. Between two hosts no collective whose data enters each host once can take less on the same cable. Among more, a
ring waits for the slowest of its links.
"""

from __future__ import annotations

import select
import socket

import numpy as np

from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.case import BUS_FACTORS, Case, count_wrong

_LIMIT_S = 60.0


def _share(operation: str, hosts: int, ranks: int) -> float:
    """Part of the data that a host of equal ones sends at least: that of a rank, in an alltoall of all its ranks.

    The last host of a broadcast sends nothing; here it sends as much as the others, beside them.
    """
    share = BUS_FACTORS[operation](hosts)
    return share * ranks / hosts if operation == "alltoall" else share


def ways(process: Process) -> Ways:
    """Connects the first ranks of all hosts to a ring."""
    names = [address.split(":")[0] for address in process.addresses]
    firsts = [names.index(name) for name in dict.fromkeys(names)]
    if process.rank not in firsts:
        return lambda case: Way(lambda: None, lambda: 0)
    mine = firsts.index(process.rank)
    ring = _Ring([process.addresses[rank] for rank in firsts], mine)

    def way(case: Case) -> Way:
        count = int(case.bytes * _share(case.operation, len(firsts), process.size))
        sent = np.full(count, 1 + mine, "uint8")
        received = np.zeros_like(sent)
        before = 1 + (mine - 1) % len(firsts)
        return Way(
            lambda: ring.exchange(sent, received), lambda: count_wrong(received, np.full(count, before))
        )

    return way


class _Ring:
    """Connections to the next host and from the one before.

    Args:
        addresses: `host:port` for each host.
        mine: The number of this host.
    """

    def __init__(self, addresses: list[str], mine: int):
        port = addresses[mine].split(":")[1]
        with socket.create_server(("", int(port))) as listener:
            self._next = _connect(addresses[(mine + 1) % len(addresses)])
            listener.settimeout(_LIMIT_S)
            self._before, _ = listener.accept()
        for connection in (self._next, self._before):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def exchange(self, sent: np.ndarray, received: np.ndarray) -> None:
        """Sends an array to the next host while another one of the same size arrives."""
        left, room = memoryview(sent.data), memoryview(received.data)
        while left or room:
            reads, writes = [self._before] if room else [], [self._next] if left else []
            readable, writable, _ = select.select(reads, writes, [], _LIMIT_S)
            if not readable and not writable:
                raise TimeoutError(f"no bytes within {_LIMIT_S:.0f} s: look at the network between the hosts")
            if readable:
                count = self._before.recv_into(room)
                if count == 0:
                    raise ConnectionError("the host before has closed the connection: look at its output")
                room = room[count:]
            if writable:
                left = left[self._next.send(left) :]


def _connect(address: str) -> socket.socket:
    """Connects to a process that may not listen yet."""
    host, port = address.split(":")
    for _ in range(int(_LIMIT_S / 0.1)):
        try:
            return socket.create_connection((host, int(port)), timeout=_LIMIT_S)
        except ConnectionRefusedError:
            select.select([], [], [], 0.1)
    raise TimeoutError(f"nobody listens at {address} after {_LIMIT_S:.0f} s: look at the output of that host")
