"""States of TensorFlow variables and of Keras models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl import _compat
from tfddl.elastic.extra_state import ExtraState
from tfddl.elastic.state import ObjectState
from tfddl.gradients import reduced_marks
from tfddl.keras.consistency.model_contents import (
    finalize_layers,
    named_optimizers,
    optimizers_of,
    state_of,
    variable_id,
)
from tfddl.keras.consistency.setup_check import local_slots_of
from tfddl.keras.keras2.accumulation import drop_sums
from tfddl.ops.variables import broadcast_variables, whole_of, whole_values


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
        self._extra = ExtraState(local_steps, compression, self._optimizers())
        self._save_variables()
        super().__init__(**kwargs)

    def save(self) -> None:
        """Copies the variables, and saves the attributes.

        Raises:
            ValueError: A tape, or `local_variables` of BroadcastGlobalVariablesCallback, has left some of the variables to
                each rank.
        """
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
        drop_sums(self.variables)
        self._extra.restore()

    def sync(self) -> None:
        """Takes the variables, and the saved attributes, of rank 0."""
        broadcast_variables(self.variables, root_rank=0)
        self._extra.sync(self._bcast_object)
        self._save_variables()
        super().sync()

    def kind(self) -> str:
        """The class, the names of the attributes, and the shapes of the variables."""
        return f"{super().kind()} {self._shapes()}"

    def content(self) -> Any:
        """The saved attributes, the copies as NumPy arrays, and the values beside the variables."""
        return super().content(), [np.asarray(value) for value in self._values], self._extra.content()

    def load(self, content: Any) -> None:
        """Takes attributes and variables.

        Raises:
            ValueError: The variables have other shapes: the program has changed.
        """
        attributes, values, extra = content
        shapes = self._shapes()
        if shapes != [value.shape for value in values]:
            raise ValueError(
                "The commit has other variables than this program: start the job without it. "
                f"Received: shapes {[value.shape for value in values]} for {shapes}"
            )
        self._values = values
        self._extra.load(extra)
        super().load(attributes)
        TensorFlowState.restore(self)

    def _optimizers(self) -> list[Any]:
        return []

    def _take_commit_of_rank_0(self) -> None:
        self._extra.take_residuals_of_rank_0(self._bcast_object)

    def _save_variables(self) -> None:
        refuse_local([each for each in self.variables if reduced_marks.is_own(_compat.tf_variable(each))])
        values = list(whole_values(self.variables, _copied))
        self._extra.save()  # the last that fails if a rank is lost: a commit is taken as a whole, or not at all
        self._values = values

    def _shapes(self) -> list[tuple[int, ...]]:
        return [tuple((whole_of(variable) or variable).shape) for variable in self.variables]


def _copied(variable: Any) -> Any:
    """A copy on the variable's device, GPUs too."""
    return tf.identity(_compat.tf_variable(variable))


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
        ValueError: The model is not built, or there is no optimizer, or the optimizer has local layers; or the model holds
            another optimizer, as a GAN does, which has `use_ema` and is not built. In `save` and `commit`: the model has
            other weights or another optimizer now.
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
        self._follows_model = optimizer is None
        if self.optimizer is None:
            raise ValueError("A state needs the optimizer: compile the model first, or pass optimizer=.")
        optimizers = self._optimizers()
        slots = local_slots_of(optimizers, model.variables)
        refuse_local([model.variables[slot] for slot in sorted(slots)])
        _build_optimizers(model, self.optimizer)
        found = [each for each in model.variables if not _compat.is_seed_state(each)]
        found += [variable for each in optimizers for variable in state_of(each, model.variables)]
        variables = list({variable_id(variable): variable for variable in found}.values())
        super().__init__(variables, local_steps=local_steps, compression=compression, **kwargs)

    def _save_variables(self) -> None:
        known = set(map(variable_id, self.variables))
        new = [each for each in self.model.trainable_variables if variable_id(each) not in known]
        if new or (self._follows_model and self.model.optimizer is not self.optimizer):
            what = f"new weights {', '.join(map(_compat.path, new))}" if new else "another optimizer"
            raise ValueError(
                "The state of a model keeps the weights and the optimizer that the model had when the state was made: make "
                "a new KerasState after compile; with ElasticCallback, change the model between two calls of fit. "
                f"Received: a model with {what}"
            )
        super()._save_variables()

    def _optimizers(self) -> list[Any]:
        return list({id(each): each for each in (self.optimizer, *optimizers_of(self.model))}.values())

    def restore_variables(self) -> None:
        """Assigns the copies."""
        super().restore_variables()
        finalize_layers(self.model)

    def sync(self) -> None:
        """Takes the variables and the attributes of rank 0, and saves them."""
        super().sync()
        finalize_layers(self.model)


KerasState = TensorFlowKerasState


def refuse_local(variables: Sequence[Any]) -> None:
    """Refuses variables that are each rank's own.

    Raises:
        ValueError: There are some.
    """
    if variables:
        raise ValueError(
            "An elastic job keeps one copy of the model, which all ranks would take from rank 0: leave local layers and "
            f"local_variables out. Received: local variables {', '.join(map(_compat.path, variables))}"
        )


class CannotBuildError(ValueError):
    """The variables of a model or of an optimizer cannot be made before the first step."""


def _build_optimizers(model: Any, optimizer: Any) -> None:
    """Builds an optimizer and `model.optimizer` for all weights that are trained.

    Raises:
        CannotBuildError: Another optimizer of the model has `use_ema` and is not built. It may train some of the weights,
            and would keep averages of all.
    """
    _compat.build_optimizer(optimizer, model.trainable_variables)
    missing = []
    for name, each in named_optimizers(model):
        inner = _compat.innermost(each)
        if name != "optimizer" and getattr(inner, "use_ema", False) and not _compat.is_built(inner):
            missing.append(name)
        else:
            _compat.build_optimizer(each, model.trainable_variables)
    if missing:
        raise CannotBuildError(
            "An elastic job keeps the state of each optimizer. With use_ema=True, build an optimizer of a single network "
            "before fit and before a KerasState is made, as in "
            "model.critic_optimizer.build(model.critic.trainable_variables). "
            f"Received: {', '.join(missing)}, not built"
        )
