"""What ElasticCallback keeps of the calls of `fit` for each model: a state, and which call is under way."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.elastic.commits import Commits
from tfddl.elastic.variables_state import CannotBuildError, TensorFlowKerasState
from tfddl.keras.local_steps import LocalSGD
from tfddl.ops.objects import allgather_object
from tfddl.runtime import basics
from tfddl.runtime.agreement import by_rank


class _State(TensorFlowKerasState):
    """A state whose random layers go on too: each rank with its own seed, all with the count of rank 0."""

    def save(self) -> None:
        self.counts = [int(np.asarray(each)[1]) for each in self._streams()]
        super().save()

    def load(self, content: Any) -> None:
        super().load(content)
        self.set_counts()

    def watch(self, local_steps: LocalSGD, *, restore: bool) -> None:
        """See `ExtraState.watch`."""
        self._extra.watch(local_steps, restore=restore)

    @property
    def saved_fit(self) -> int:
        """The call of `fit` in which the state was saved."""
        return int(self._saved_state["fit"])

    def free(self) -> None:
        """Keeps the newest commit alone, until the state is saved again."""
        if not self._values:
            return
        self._values = []
        for commits in self._commits:
            commits.keep_newest()

    def set_counts(self) -> None:
        """Gives the random layers the saved counts."""
        for variable, count in zip(self._streams(), self.counts, strict=False):
            variable.assign([int(np.asarray(variable)[0]), count])

    def _streams(self) -> list[Any]:
        return [each for each in self.model.variables if _compat.is_seed_state(each)]


class Training:
    """All calls of `fit` for one model and optimizer.

    Attributes:
        state: Their state: `fit` is the number of the call, `seed` determines its orders, `histories` are the metrics of all
            calls.
    """

    def __init__(self, model: Any) -> None:
        self.state: Any = _State(
            model,
            fit=0,
            epoch=0,
            done=0,
            order=0,
            seed=0,
            size=basics.size(),
            over=False,
            stopped=False,
            histories={},
            callbacks={},
            counts=[],
        )
        self.model, self.optimizer = model, model.optimizer
        self._number, self._fits = len(trainings), 0
        self._restored = self.state.restore_from(Commits.of_state(f"ElasticCallback {self.state.kind()}"))
        self.state.sync()

    @property
    def is_over(self) -> bool:
        """Whether the call that is under way had ended before, or has ended."""
        return self._fits < self.state.fit or bool(self.state.over)

    @property
    def is_newest(self) -> bool:
        """Whether the newest commit is of the call that is under way."""
        return self._fits == self.state.fit

    @property
    def can_go_on(self) -> bool:
        """Whether the state has been saved in the call that is under way, and this call has not ended."""
        return self.state.saved_fit == self._fits and not self.state.over

    def go_on(self) -> None:
        """Goes back to the last commit, so that the call that is under way begins there."""
        self.state.go_on()
        self.state.sync()
        self.state.set_counts()
        self._fits -= 1
        self._restored = True

    def begin_fit(self, first: int, seeds: tuple[int, ...]) -> bool:
        """Counts a call of `fit`.

        Args:
            first: The first epoch.
            seeds: Numbers for the orders of all calls. The seed of a call also depends on its number, and goes on with the
                commit: a program that starts again may have drawn other numbers.

        Returns:
            Whether a commit of this or a later call has been restored.
        """
        for other in trainings.values():
            if other is not self and other.is_newest and other.state.over:
                other.state.free()
        self._fits += 1
        if self._restored and self._fits <= self.state.fit:
            self.state.restore_variables()  # the program may have changed them between two calls
            return True
        self._restored = False
        state = self.state
        state.fit, state.epoch, state.done = self._fits, first, 0
        state.seed = int(np.random.SeedSequence((*seeds, self._number, self._fits)).generate_state(1)[0])
        state.over = state.stopped = False
        state.callbacks = {}
        return False

    def note(self, epoch: int, logs: dict[str, Any]) -> None:
        """Keeps the metrics of an epoch of this call, as Keras' History does, which comes later."""
        epochs, values = self.state.histories.get(self._fits, ([], {}))
        values = values | {name: [*values.get(name, []), value] for name, value in logs.items()}
        self.state.histories = self.state.histories | {self._fits: ([*epochs, epoch], values)}

    def fill_history(self, history: Any) -> None:
        """Gives Keras' History the metrics that were kept for this call."""
        epochs, values = self.state.histories.get(self._fits, ([], {}))
        history.epoch = list(epochs)
        history.history = {name: list(each) for name, each in values.items()}


trainings: dict[tuple[int, int], Training] = {}
"""By the ids of the model and its optimizer."""


def training_of(model: Any, data: Any) -> Training:
    """The calls of `fit` for a model and its optimizer. All ranks call it, with data that may build the model.

    Raises:
        CannotBuildError: On all ranks: the model is not built, and the data of a rank cannot build it; or an optimizer
            beside `model.optimizer` has `use_ema` and is not built.
    """
    key = (id(model), id(model.optimizer))
    if key not in trainings:
        error = _build(model, data)
        text = "" if error is None else f"{type(error).__name__}: {error}"
        texts = dict(enumerate(allgather_object(text, name="elastic.build")))
        if any(texts.values()):
            raise CannotBuildError(
                "ElasticCallback restores the model before the first batch: call model.build(input_shape) before fit. "
                f"Received: {model!r}, {by_rank({rank: each for rank, each in texts.items() if each})}"
            ) from error
        trainings[key] = Training(model)
    return trainings[key]


def _build(model: Any, data: Any) -> Exception | None:
    """Makes the variables of a model before its first step.

    Returns:
        The error: the data has no first batch that can be read without losing it, or the model takes none.
    """
    if model.built:
        return None
    try:
        if isinstance(data, tf.data.Dataset):
            batch = next(iter(data))
        elif hasattr(data, "num_batches"):
            batch = data[0]
        else:
            batch = (tf.nest.map_structure(lambda each: each[:1], data),)
        inputs = batch[0] if isinstance(batch, (list, tuple)) else batch
        if isinstance(model, _compat.keras().Sequential):
            model.build((None, *inputs.shape[1:]))  # called with a batch, it would keep the size of the batch
        else:
            model(inputs)
    except Exception as error:
        return error
    return None
