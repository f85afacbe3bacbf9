"""The connections of one job: of its rank shims, and of processes that have not said yet who they are."""

from __future__ import annotations

from collections.abc import Callable

from tfddl.launch.channel import Link, Listener
from tfddl.launch.supervision.loop import Loop

_HELLO_WITHIN_S = 30.0
_STRANGERS = 16  # connections without a hello, besides one for each rank


class Links:
    """The open connections.

    Args:
        listener: The shims connect to it.
        processes: The number of ranks.
        loop: It watches the connections.
        received: Called when a connection can be read.
        closed: Called after the end of a connection.

    Attributes:
        shims: The connections to shims.
    """

    def __init__(
        self,
        listener: Listener,
        processes: int,
        loop: Loop,
        received: Callable[[Link], None],
        closed: Callable[[Link], None],
    ) -> None:
        self._listener, self._processes, self._loop = listener, processes, loop
        self._received, self._closed = received, closed
        self.shims: set[Link] = set()
        self._strangers: dict[Link, None] = {}  # without a hello yet, the oldest first

    def accept(self) -> None:
        """Accepts the next connection.

        Raises:
            OSError: The limit of open files is too low.
        """
        link = self._listener.accept()
        if link is None:
            return
        self._loop.watch(link, lambda: self._received(link))
        self._strangers[link] = None
        if len(self._strangers) > self._processes + _STRANGERS:
            self.close(next(iter(self._strangers)))
        self._loop.after(_HELLO_WITHIN_S, lambda: self.close(link) if link in self._strangers else None)

    def greeted(self, link: Link) -> None:
        """The connection has turned out to be that of a shim."""
        del self._strangers[link]
        self.shims.add(link)

    def command(self, letter: bytes) -> None:
        """Sends all shims one of the commands of `rank_shim`."""
        for link in self.shims:
            link.command(letter)

    def close(self, link: Link) -> None:
        """Closes a connection, unless it has been closed in this turn already."""
        if link not in self.shims and link not in self._strangers:
            return
        self._loop.forget(link)
        self.shims.discard(link)
        self._strangers.pop(link, None)
        link.close()
        self._closed(link)

    def all(self) -> list[Link]:
        """The shims' connections, then the others."""
        return [*self.shims, *self._strangers]
