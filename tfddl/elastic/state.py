"""States: what a program keeps in commits."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.elastic import hand_over
from tfddl.elastic.beside_variables import BesideVariables
from tfddl.elastic.commits import Commits, pickled
from tfddl.elastic.errors import HostsUpdatedInterrupt
from tfddl.keras.consistency.model_contents import optimizers_of, state_of, variable_id
from tfddl.ops.objects import allgather_object, broadcast_object
from tfddl.ops.variables import broadcast_variables, whole_of
from tfddl.runtime import basics
from tfddl.runtime.asked import may_survive


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
        **kwargs: The attributes and their first values, which cloudpickle takes.

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
        """Takes the saved attributes of rank 0."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
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


class TensorFlowState(ObjectState):
    """A state of TensorFlow or Keras variables, and of Python objects.

    Args:
        variables: The variables, in the same order on all ranks.
        session: Only None: there are no elastic jobs in sessions of TF1.
        local_steps: A `tfddl.LocalSGD` or `tfddl.DiLoCo`, with which each rank trains alone for some steps. After a loss the
            outer state goes on, and all ranks go on from the weights of rank 0.
        compression: A `tfddl.PowerSGD` or `tfddl.Compression.int8` that tapes use. A commit then takes an allreduce of the
            residuals, whose mean all ranks have after a loss.
        **kwargs: See `ObjectState`.

    Raises:
        ValueError: There are no variables, or a session is given.
        TypeError: `local_steps` or `compression` is something else.

    Example:
        On 2 ranks:

        >>> weight = tf.Variable([1.0 + hvd.rank()])
        >>> state = hvd.elastic.TensorFlowState([weight], step=0)
        >>> state.sync()
        >>> weight.numpy()
        array([1.], dtype=float32)
    """

    def __init__(
        self,
        variables: Sequence[Any] | None = None,
        session: Any = None,
        *,
        local_steps: Any = None,
        compression: Any = None,
        **kwargs: Any,
    ) -> None:
        if session is not None or not tf.executing_eagerly():
            raise ValueError(
                "Elastic states need eager execution: leave the session out, and do not disable eager execution. "
                f"Received: session={session!r}"
            )
        self.variables = list(variables or ())
        if not self.variables:
            raise ValueError(
                "TensorFlowState keeps variables: pass a list, or use ObjectState. Received: none"
            )
        self._beside = BesideVariables(local_steps, compression, self._optimizers())
        self._save_variables()
        super().__init__(**kwargs)

    def save(self) -> None:
        """Copies the variables, and saves the attributes."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """Assigns the copies, and takes the saved attributes."""
        self.restore_variables()
        super().restore()

    def restore_variables(self) -> None:
        """Assigns the copies."""
        for variable, value in zip(self.variables, self._values, strict=True):
            (whole_of(variable) or variable).assign(value)
        self._beside.restore()

    def sync(self) -> None:
        """Takes the variables, and the saved attributes, of rank 0."""
        broadcast_variables(self.variables, root_rank=0)
        self._beside.sync(self._bcast_object)
        self._save_variables()
        super().sync()

    def kind(self) -> str:
        """The class, the names of the attributes, and the shapes of the variables."""
        return f"{super().kind()} {self._shapes()}"

    def content(self) -> Any:
        """The saved attributes, the copies as NumPy arrays, and the values beside the variables."""
        return super().content(), [np.asarray(value) for value in self._values], self._beside.content()

    def load(self, content: Any) -> None:
        """Takes attributes and variables.

        Raises:
            ValueError: The variables have other shapes: the program has changed.
        """
        attributes, values, beside = content
        shapes = self._shapes()
        if shapes != [value.shape for value in values]:
            raise ValueError(
                "The commit has other variables than this program: start the job without it. "
                f"Received: shapes {[value.shape for value in values]} for {shapes}"
            )
        self._values = values
        self._beside.load(beside)
        super().load(attributes)
        TensorFlowState.restore(self)

    def _optimizers(self) -> list[Any]:
        return []

    def _take_commit_of_rank_0(self) -> None:
        self._beside.take_residuals_of_rank_0(self._bcast_object)

    def _save_variables(self) -> None:
        values = list(map(_copied, self.variables))
        self._beside.save()  # the last that fails if a rank is lost: a commit is taken as a whole, or not at all
        self._values = values

    def _shapes(self) -> list[tuple[int, ...]]:
        return [tuple((whole_of(variable) or variable).shape) for variable in self.variables]


def _copied(variable: Any) -> Any:
    """A copy on the variable's device, GPUs too; a whole of which each rank has a slice is copied to the host's memory."""
    whole = whole_of(variable)
    return tf.identity(_compat.tf_variable(variable)) if whole is None else whole.value()


class TensorFlowKerasState(TensorFlowState):
    """A state of a Keras model and its optimizer, and of Python objects.

    The state of random layers, such as Dropout's, stays each rank's own, and begins anew when a job starts again.

    Args:
        model: A model that is built.
        optimizer: Its optimizer. Defaults to that of `compile`.
        backend: Taken as in Horovod, and not used.
        local_steps: See `TensorFlowState`.
        compression: See `TensorFlowState`; those of optimizers are found.
        **kwargs: See `ObjectState`; for example `epoch=0, batch=0`.

    Raises:
        ValueError: The model is not built, or there is no optimizer.
        TypeError: `local_steps` or `compression` is something else.

    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> model.compile(keras.optimizers.SGD(0.1), "mse")
        >>> state = hvd.elastic.KerasState(model, epoch=0)
        >>> state.epoch = 5
        >>> state.restore()
        >>> state.epoch
        0
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        backend: Any = None,
        *,
        local_steps: Any = None,
        compression: Any = None,
        **kwargs: Any,
    ) -> None:
        if not getattr(model, "built", True):
            raise ValueError(
                f"The model of a state must be built: call model.build(input_shape) first. Received: {model!r}"
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is None:
            raise ValueError("A state needs the optimizer: compile the model first, or pass optimizer=.")
        variables = _variables(model, self._optimizers())
        super().__init__(variables, local_steps=local_steps, compression=compression, **kwargs)

    def _optimizers(self) -> list[Any]:
        return list({id(each): each for each in (self.optimizer, *optimizers_of(self.model))}.values())


KerasState = TensorFlowKerasState


def _variables(model: Any, optimizers: Iterable[Any]) -> list[Any]:
    """The variables of the model and its optimizers, each once, less the states of random layers."""
    found = [each for each in model.variables if not _compat.is_seed_state(each)]
    for each in optimizers:
        _compat.build_optimizer(each, model.trainable_variables)
        found += state_of(each, model.variables)
    return list({variable_id(variable): variable for variable in found}.values())
