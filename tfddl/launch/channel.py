"""tfddlrun's side of the connections to the rank shims.

The shim of every rank connects to tfddlrun over TCP: on 127.0.0.1 if all ranks run on this host, else by any address of
this host that it can reach. So no file system has to be shared, and the output of each rank arrives separately and in
order. A connection that ends without a report means that the rank is lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfddl.launch import rank_shim

_SIOCGIFADDR = 0x8915
_LARGEST_HELLO = 1 << 12
_LARGEST_MESSAGE = 1 << 20
_FIELDS = {"token": str, "rank": int, "host": str}


@dataclass(frozen=True)
class Hello:
    """A rank has started."""

    rank: int
    host: str


@dataclass(frozen=True)
class Output:
    """Bytes that a rank wrote."""

    stream: str  # "stdout" or "stderr"
    data: bytes


@dataclass(frozen=True)
class Waits:
    """A rank waits in `hvd.init()` for all ranks. It says so after `rank_shim.LOOK`."""


@dataclass(frozen=True)
class Leaves:
    """The host of a rank will go away soon."""


@dataclass(frozen=True)
class GoesOn:
    """A rank goes on without ranks that have died."""

    ranks: int  # of the job that goes on


@dataclass(frozen=True)
class Ended:
    """A rank has ended."""

    status: int  # exit code; -n for a death by signal n
    stopped: bool  # tfddlrun had sent it a signal, so its status does not show an error of its own
    frozen: bool = False  # it had been stopped by SIGSTOP or the like when tfddlrun ended it
    handed_over: bool = False  # it has ended so that the job starts again on other hosts
    out_of_memory: bool = False  # it was killed, and its host's kernel has killed for lack of memory


class Link:
    """A connection, of a shim once a hello with the right token has arrived. Until then `rank` is -1.

    Args:
        connection: the socket.
        token: string that only the shims of this job know.
        processes: int, number of ranks.
    """

    def __init__(self, connection: socket.socket, token: str, processes: int):
        self.rank = -1
        self._connection = connection
        self._token = token
        self._processes = processes
        self._buffer = bytearray()
        connection.setblocking(False)
        rank_shim.keep_alive(connection)

    def fileno(self) -> int:
        return self._connection.fileno()

    def receive(self) -> list[Hello | Output | Waits | Leaves | GoesOn | Ended] | None:
        """Reads the data that has arrived. Returns whole messages in order, or None at the end of the connection.

        A message that no shim would send is such an end, so a stranger cannot disturb the job.
        """
        try:
            data = self._connection.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self._buffer += data
        try:
            return list(self._messages())
        except (ValueError, TypeError, RecursionError):  # RecursionError: JSON that is nested too deep
            return None

    def command(self, letter: bytes) -> None:
        """Sends the shim one of the commands of `rank_shim`."""
        with contextlib.suppress(OSError):  # the end of the connection will be read in its turn
            self._connection.send(letter)

    def close(self) -> None:
        self._connection.close()

    def _messages(self) -> Iterator[Hello | Output | Waits | Leaves | GoesOn | Ended]:
        header = rank_shim.HEADER
        while len(self._buffer) >= header.size:
            kind, length = header.unpack_from(self._buffer)
            if length > (_LARGEST_HELLO if self.rank < 0 else _LARGEST_MESSAGE):
                raise ValueError(length)
            end = header.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[header.size : end])
            del self._buffer[:end]
            yield self._decode(kind, payload)

    def _decode(self, kind: bytes, payload: bytes) -> Hello | Output | Waits | Leaves | GoesOn | Ended:
        if self.rank < 0:
            return self._greeted(json.loads(payload) if kind == rank_shim.HELLO else None)
        if kind == rank_shim.ENDED:
            return Ended(**json.loads(payload))
        if kind == rank_shim.WAITS:
            return Waits()
        if kind == rank_shim.LEAVES:
            return Leaves()
        if kind == rank_shim.GOES_ON:
            return GoesOn(int(payload))
        return Output("stderr" if kind == rank_shim.ERROR else "stdout", payload)

    def _greeted(self, hello: object) -> Hello:
        if not isinstance(hello, dict) or {name: type(value) for name, value in hello.items()} != _FIELDS:
            raise ValueError("no hello")
        # Text may hold characters that compare_digest refuses, and halves of characters that UTF-8 refuses.
        if not hmac.compare_digest(hello["token"].encode(errors="replace"), self._token.encode()):
            raise ValueError("wrong token")
        if not 0 <= hello["rank"] < self._processes:
            raise ValueError("unknown rank")
        self.rank = hello["rank"]
        return Hello(hello["rank"], hello["host"])


class Listener:
    """Waits for the shims of one job.

    Args:
        processes: int, number of ranks.
        remote: whether ranks may run on other hosts.
        scratch: directories that the shims remove if tfddlrun has been killed.
        terminal: pair of bools, whether stdout and stderr of the ranks are to be terminals.
        size: pair of ints, columns and rows of those terminals.
    """

    def __init__(
        self,
        processes: int,
        remote: bool,
        scratch: Sequence[str],
        terminal: tuple[bool, bool],
        size: tuple[int, int],
    ):
        self._processes = processes
        self._scratch = scratch
        self._token = secrets.token_hex(16)
        self._job = secrets.token_hex(8)
        self._hosts = [*interface_addresses(), socket.gethostname()] if remote else ["127.0.0.1"]
        self._terminal, self._size = terminal, size
        self._socket = socket.create_server(("" if remote else "127.0.0.1", 0), backlog=1024)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> Link | None:
        """Accepts the next connection. Returns None if there is none.

        Raises:
            OSError: The limit of open files, of this process or of the host, is too low. The connection still waits.
        """
        try:
            return Link(self._socket.accept()[0], self._token, self._processes)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return None

    def environment(self) -> dict[str, str]:
        """The environment variable that tells a shim how to connect."""
        settings = {
            "hosts": self._hosts,
            "port": self._socket.getsockname()[1],
            "token": self._token,
            "job": self._job,
            "scratch": self._scratch,
            "terminal": self._terminal,
            "columns": self._size[0],
            "rows": self._size[1],
        }
        return {rank_shim.VARIABLE: json.dumps(settings)}

    def close(self) -> None:
        self._socket.close()


def interface_addresses() -> list[str]:
    """The IPv4 addresses of this host, without loopback addresses."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an IPv4 address
            addresses.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in addresses if not address.startswith("127.")]
