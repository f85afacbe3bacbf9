"""DistributedOptimizer: the user's Keras optimizer, taught to combine gradients over all ranks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients import reduction
from tfddl.gradients.compression import Compression, Compressor, check_compression
from tfddl.keras import loss_scale
from tfddl.keras.adoption import Adopted, Settings, adopt, is_adopted, set_settings, settings_of
from tfddl.keras.handover import complete, reduce_as_set
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet, check_type, global_process_set


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    *,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes a Keras optimizer combine its gradients over all ranks.

    The optimizer is changed in place and returned: its class, state, learning rate and configuration stay as
    they are, and a model saved with it loads in a process without tfddl. Gradients are combined once for each
    update, after accumulation and unscaling, before clipping, weight decay and moving averages, so that a job
    of N ranks computes what one process would with the N-times batch.

    Gradients from a `tfddl.DistributedGradientTape` are not reduced a second time; see there for what
    happens to those that were changed on the way. A `keras.optimizers.LossScaleOptimizer` may be inside or
    outside, or come from `compile()` under `mixed_float16`: all ranks skip the same steps and hold the same
    scale.

    `copy`, `deepcopy` and `pickle` give a distributed optimizer, with the state that Keras keeps in them.
    `keras.models.load_model` gives a plain one, to be passed through this function again.

    Args:
        optimizer: A `keras.optimizers.Optimizer` of Keras 3.
        name: Names this optimizer's reductions, in error messages and the flight log. Equal on all ranks.
            Defaults to `"DistributedOptimizer"`.
        compression: What gradients travel as. Defaults to `tfddl.Compression.none`.
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`. Defaults to `tfddl.Average`.
        process_set: Whose ranks combine their gradients; another rank trains on its own. Defaults to all.

    Returns:
        `optimizer` itself. If it is distributed already with the same settings, nothing changes.

    Raises:
        TypeError: If `optimizer` is not an optimizer of Keras 3, or is a `MultiOptimizer`; if `compression` is no
            compressor or `process_set` no `ProcessSet`.
        ValueError: For another `op`, or if the optimizer is distributed already with other settings.
    """
    from tfddl.keras.callbacks import callback_list  # which imports this module

    callback_list.watch()
    settings = Settings(
        name or Settings.name, reduction.check_op(op), check_compression(compression), check_type(process_set)
    )
    _check_supported(optimizer)
    if is_distributed(optimizer):
        _check_same(settings_of(optimizer), settings)
    return distribute(optimizer, settings)


def is_distributed(optimizer: Any) -> bool:
    """Whether the gradients given to `optimizer` get combined over all ranks."""
    if _compat.has_inner_optimizers(optimizer):
        return all(is_adopted(inner) for inner in optimizer._inner_optimizers)
    return is_adopted(optimizer) or is_adopted(getattr(optimizer, "inner_optimizer", None))


def distribute(optimizer: Any, settings: Settings) -> Any:
    """Adopts `optimizer`, and the one inside a loss scale optimizer, unless that has been done."""
    loss_scale.watch_loss_scale_optimizers()
    if _compat.is_loss_scale_optimizer(optimizer):
        distribute(optimizer.inner_optimizer, settings)
        loss_scale.adopt_loss_scale(optimizer)
    elif not is_adopted(optimizer):
        set_settings(optimizer, settings)
        adopt(optimizer, Distributed)
    return optimizer


class Distributed(Adopted):
    """Reduces where Keras clips: once for each real update, on accumulated and unscaled gradients.

    Keras 3.4 clips, and so reduces, once for each micro-batch.
    """

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """See `keras.optimizers.Optimizer.apply`."""
        plain: Any = super()
        settings = settings_of(self)
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        _refuse_overwritten(trainable_variables)
        if not settings.done:
            grads = complete(settings, grads, trainable_variables)
        with _applying(settings, settings.done or reduction.all_reduced(grads)):
            result = plain.apply(grads, trainable_variables)
            _check_asked(self, settings, grads)
        return result

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        plain: Any = super()
        settings = settings_of(self)
        settings.asked = True
        if not settings.done:
            grads = reduce_as_set(settings, grads)
        return plain._clip_gradients(grads)


@contextmanager
def _applying(settings: Settings, done: bool) -> Iterator[None]:
    """Remembers for the time of one `apply` whether its gradients are reduced already."""
    before = settings.done, settings.asked
    settings.done, settings.asked = done, False
    try:
        yield
    finally:
        settings.done, settings.asked = before


def _check_asked(optimizer: Any, settings: Settings, grads: Sequence[Any]) -> None:
    """Notices an optimizer class with an `apply` of its own, which would train unreduced."""
    # In eager mode an accumulating optimizer comes to its update, and to us, only every N-th time.
    waits = optimizer.gradient_accumulation_steps and tf.executing_eagerly()
    if not (settings.asked or settings.done or waits or not grads):
        raise RuntimeError(
            f"{type(optimizer).__name__} never calls `_clip_gradients`, where DistributedOptimizer combines "
            "gradients: use tfddl.DistributedGradientTape with the plain optimizer instead."
        )


def _refuse_overwritten(variables: Any) -> None:
    """float8 scales are assigned from their gradient, past the place where we reduce."""
    for variable in variables or ():
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                "DistributedOptimizer does not support float8 training yet: use the mixed_bfloat16 or the "
                f"mixed_float16 policy. Received: variable {getattr(variable, 'path', variable.name)!r}, "
                "which is overwritten by its gradient"
            )


def _check_supported(optimizer: Any) -> None:
    if not _compat.is_keras_optimizer(optimizer):
        raise TypeError(
            "DistributedOptimizer takes an optimizer of Keras 3, an instance of keras.optimizers.Optimizer; "
            "with any other use tfddl.DistributedGradientTape. "
            f"Received: optimizer={optimizer!r} of {type(optimizer).__module__}.{type(optimizer).__name__}"
        )
    if _compat.has_inner_optimizers(optimizer):
        raise TypeError(
            "DistributedOptimizer does not take a MultiOptimizer yet: use tfddl.DistributedGradientTape "
            f"with it. Received: optimizer={optimizer!r}"
        )


def _check_same(present: Settings, wanted: Settings) -> None:
    for field in ("op", "compression", "process_set"):
        if getattr(present, field) != getattr(wanted, field):
            raise ValueError(
                f"This optimizer is distributed already, with {field}={getattr(present, field)!r}: call "
                f"DistributedOptimizer once. Received: {field}={getattr(wanted, field)!r}"
            )
