"""States: what a program keeps in commits. This file has the base class, and states of Python objects."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfddl.elastic import hand_over
from tfddl.elastic.commits import Commits, pickled
from tfddl.elastic.errors import HostsUpdatedInterrupt
from tfddl.ops.objects import allgather_object, broadcast_object
from tfddl.runtime import basics
from tfddl.runtime.rank_queries import may_survive


class State:
    """A point that training has reached. The base class, for states of your own.

    Args:
        bcast_object: Function that sends an object from rank 0 to all. Defaults to `tfddl.broadcast_object`.
        get_rank: Function that returns the rank. Defaults to `tfddl.rank`.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = basics.rank,
    ) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits: Sequence[Commits] = ()
        self._number = 0

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Adds functions that are called when the number of ranks has changed, for example to scale a learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the ranks have changed, before training goes on."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, and keeps it outside of the processes of a job of `tfddlrun --elastic`. All ranks call it.

        It copies the weights. A lost rank costs the steps since the last commit.

        Raises:
            HostsUpdatedInterrupt: The hosts of the job have changed.
        """
        self._keep()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Ends this start of the job if its hosts have changed, so that tfddlrun starts it again on the new ones.

        All ranks call it, and `commit` does. Under `tfddlrun --elastic` it takes one small allreduce, else it does nothing.

        Raises:
            HostsUpdatedInterrupt: The hosts have changed. The state is kept, and `tfddl.elastic.run` ends the process.
        """
        if self._commits and hand_over.agree():
            self._keep()
            raise HostsUpdatedInterrupt

    def _keep(self) -> None:
        self.save()
        self._number += 1
        written = [commits for commits in self._commits if commits.are_written_here]
        content = (basics.size(), self.content()) if written else None
        for commits in written:
            commits.write(self._number, content)

    def restore_from(self, commits: Sequence[Commits]) -> bool:
        """Takes the newest commit of all hosts. All ranks call it, before anything else of the state.

        Args:
            commits: Where commits are kept.

        Returns:
            Whether there was one.
        """
        self._commits = commits
        found = {each: each.newest_number() for each in commits}
        # If two numbers are equal, `max` takes the first: memory, which is faster than a disk.
        source = max(commits, key=lambda each: found[each])
        own = found[source]
        numbers = allgather_object(own, name="elastic.numbers")
        self._number = max(numbers)
        if self._number == 0:
            return False
        content: Any = source.read(own) if own == self._number else None
        if min(numbers) < self._number:
            content = broadcast_object(content, numbers.index(self._number), name="elastic.content")
        for each in commits:  # the host that has it alone may be the next one that is lost
            if found[each] < self._number:
                each.write(self._number, content)
        size, saved = content
        self.load(saved)
        if basics.rank() == 0:
            print(f"tfddl: going on from commit {self._number}...", file=sys.stderr)
        if size != basics.size():
            self.on_reset()
        return True

    def go_on(self) -> None:
        """Goes back to the last commit, after the loss of other ranks. All ranks that are left call it."""
        self.restore()
        # A rank may have made one commit more than the others. Parts that `sync` leaves alone come from that of rank 0 too.
        numbers = allgather_object(self._number, name="elastic.numbers")
        self._number = max(numbers)
        if min(numbers) < self._number:
            self._take_commit_of_rank_0()
        if basics.rank() == 0:
            where = f"commit {self._number}" if self._number else "the beginning"
            print(f"tfddl: going on from {where}...", file=sys.stderr)
        self.on_reset()

    def _take_commit_of_rank_0(self) -> None:
        """Takes the parts that `sync` leaves alone from the commit of rank 0. All ranks call it."""

    @property
    def adapts(self) -> bool:
        """Whether the program was written for Horovod's elastic jobs: it is told when the number of ranks changes."""
        return bool(self._reset_callbacks) and "horovod" in sys.modules

    @property
    def is_kept(self) -> bool:
        """Whether `commit` keeps the state outside of the processes."""
        return bool(self._commits)

    def kind(self) -> str:
        """Tells the commits of this state from those of the program's other states."""
        return type(self).__qualname__

    def content(self) -> Any:
        """Returns the copy of the last `save`, for a file. A class of your own returns what cloudpickle takes.

        Raises:
            NotImplementedError: The class has no such method.
        """
        raise NotImplementedError(f"{type(self).__name__} needs content() and load(content): add them.")

    def load(self, content: Any) -> None:
        """Takes what `content` has returned in a process before.

        Raises:
            NotImplementedError: The class has no such method.
        """
        raise NotImplementedError(f"{type(self).__name__} needs content() and load(content): add them.")

    def save(self) -> None:
        """Saves the state in the memory of this process."""
        raise NotImplementedError(f"{type(self).__name__} needs save(): add it.")

    def restore(self) -> None:
        """Goes back to what `save` has saved."""
        raise NotImplementedError(f"{type(self).__name__} needs restore(): add it.")

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError(f"{type(self).__name__} needs sync(): add it.")

    def reset(self) -> None:
        """Called by `on_reset` before the registered functions."""


class ObjectState(State):
    """A state of Python objects, which are its attributes.

    Args:
        bcast_object: See `State`.
        get_rank: See `State`.
        **kwargs: The attributes and their first values, which cloudpickle takes. Without `tfddlrun --elastic`, `save` keeps
            a list or dict itself, not a copy: assign a new one, `state.log = [*state.log, loss]`, in place of an append.

    Raises:
        ValueError: A class of states has an attribute of that name.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = broadcast_object,
        get_rank: Callable[[], int] = basics.rank,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        taken = [name for name in kwargs if hasattr(self, name)]
        if taken:
            raise ValueError(
                f"{type(self).__name__} has these names itself: choose others. Received: {', '.join(taken)}"
            )
        self._saved_state = _copy(kwargs)
        self._set_attributes()

    def save(self) -> None:
        """Saves the attributes."""
        self._saved_state = _copy({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        """Takes the saved attributes."""
        self._set_attributes()

    def sync(self) -> None:
        """Takes the attributes of rank 0, and saves them."""
        if self._saved_state:
            attributes = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = self._bcast_object(attributes)
            self._set_attributes()

    def kind(self) -> str:
        """The class and the names of the attributes."""
        return f"{super().kind()} {sorted(self._saved_state)}"

    def content(self) -> Any:
        """The saved attributes."""
        return self._saved_state

    def load(self, content: Any) -> None:
        """Takes the attributes that this program has too."""
        self._saved_state |= {name: value for name, value in content.items() if name in self._saved_state}
        self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in _copy(self._saved_state).items():
            setattr(self, name, value)


def _copy(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes as they are now, where the process may go back to them after a loss: programs append to lists."""
    copied: dict[str, Any] = pickle.loads(pickled(attributes)) if may_survive() else attributes
    return copied
