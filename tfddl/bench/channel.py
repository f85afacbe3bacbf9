"""The connections between `tfddl bench` and its workers, which may run on other hosts.

The driver, `tfddl bench`, listens; a variable of the job tells its workers where, and a secret. A worker whose threads never
rest has a keeper, a small process on the same host that stops the worker, and lets it go on, when the driver says so.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import signal
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any

from tfddl.launch import rank_shim
from tfddl.launch.channel import interface_addresses

VARIABLE = "TFDDL_BENCH"
_HELLO_LIMIT_S = 10


class Listener:
    """Waits for the workers of one job and their keepers.

    Args:
        remote: Whether workers may run on other hosts.
    """

    def __init__(self, remote: bool):
        self._token = secrets.token_hex(16)
        self._hosts = [*interface_addresses(), socket.gethostname()] if remote else ["127.0.0.1"]
        self._socket = socket.create_server(("" if remote else "127.0.0.1", 0), backlog=1024)

    def environment(self) -> dict[str, str]:
        """The variable that tells the workers how to connect."""
        settings = {"hosts": self._hosts, "port": self._socket.getsockname()[1], "token": self._token}
        return {VARIABLE: json.dumps(settings)}

    def accept(self, seconds: float) -> tuple[Any, Connection] | None:
        """Waits for the next worker or keeper. Returns its first message and its connection; None if none came in time."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return None
        accepted, _ = self._socket.accept()
        rank_shim.keep_alive(accepted)
        _limit_reads(accepted, _HELLO_LIMIT_S)
        connection = Connection(accepted.detach())
        try:
            if hmac.compare_digest(connection.recv_bytes(len(self._token)), self._token.encode()):
                hello = connection.recv()
                with socket.socket(fileno=os.dup(connection.fileno())) as same:
                    _limit_reads(same, 0)
                return hello, connection
        except (OSError, EOFError):
            pass  # a stranger
        connection.close()
        return None

    def close(self) -> None:
        """Stops listening."""
        self._socket.close()


def connect(settings: dict[str, Any], hello: object) -> Connection:
    """Connects to the driver. Exits with an error if it cannot be reached.

    Args:
        settings: The content of `VARIABLE`.
        hello: The first message.
    """
    connection = Connection(rank_shim.connect(settings).detach())
    connection.send_bytes(settings["token"].encode())
    connection.send(hello)
    return connection


def start_keeper(settings: dict[str, Any], hello: object) -> None:
    """Starts the keeper of this process, which has no other threads yet. The arguments are those of `connect`."""
    worker = os.getpid()
    if os.fork() == 0:
        try:
            rank_shim.end_with_parent(signal.SIGKILL)
            _keep(worker, connect(settings, hello))
        finally:
            os._exit(0)


def _keep(worker: int, driver: Connection) -> None:
    while True:
        try:
            number = driver.recv()
        except (EOFError, OSError):
            os.kill(worker, signal.SIGCONT)  # it notices that the driver is gone
            return
        os.kill(worker, number)
        driver.send(True)


def free_port() -> int:
    """A free port of this host."""
    with socket.create_server(("", 0)) as one:
        return int(one.getsockname()[1])


def _limit_reads(connection: socket.socket, seconds: int) -> None:
    """Makes a read fail after some seconds; 0 for no limit."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
