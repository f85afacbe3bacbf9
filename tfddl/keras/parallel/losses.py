"""Losses over a part of a global batch, such that their weighted mean over ranks is the loss over the global batch.

With n of N rows on this rank the optimizer weights this rank's loss by `n / N` (`Part.weight`). This is right for a mean
over rows. The other denominators of the losses that `compile` gets are those of the global batch here. A loss that is one
number for the whole batch counts as a mean over rows, with a warning; so does a sum that the program itself asks of a loss.
"""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.keras.parallel import part as parts
from tfddl.ops import names
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Sum
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import global_process_set, id_of

_NAME = "DataParallel.loss"
_CALLED: ContextVar[tuple[Any, ...]] = ContextVar("losses", default=())
"""The losses that are being called, the outermost first."""


def with_callers_known(call: Callable[..., Any]) -> Callable[..., Any]:
    """`__call__` of a loss, which notes that a loss inside of it is called by this one."""

    @functools.wraps(call)
    def compute(loss: Any, *arguments: Any, **options: Any) -> Any:
        token = _CALLED.set((*_CALLED.get(), loss))
        try:
            return call(loss, *arguments, **options)
        finally:
            _CALLED.reset(token)

    return compute


def with_global_sums(reduce_values: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' `reduce_values` for `reduction="sum"` and `"mean_with_sample_weight"` of a part."""
    signature = inspect.signature(reduce_values)

    @functools.wraps(reduce_values)
    def reduce(*arguments: Any, **options: Any) -> Any:
        result = reduce_values(*arguments, **options)
        part = parts.current()
        if part is None or result.shape.rank != 0:
            return result
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        reduction, weights = given.arguments["reduction"], given.arguments.get("sample_weight")
        if given.arguments["values"].shape.rank == 0:
            _warn("a loss function of this program returns")
            return result
        if reduction == "sum":
            caller, loss = (None, None, *_CALLED.get())[-2:]
            if isinstance(caller, _compat.compile_loss()):
                return result * part.inverse_share(result.dtype)
            _warn_of_sum(loss)
            return result
        if reduction == "mean_with_sample_weight" and weights is not None:
            own = tf.reduce_sum(tf.cast(weights, tf.float64))
            (total,) = _sums(part, own)
            factor = tf.math.divide_no_nan(own, total) * part.inverse_share(tf.float64)
            return result * tf.cast(factor, result.dtype)
        return result

    return reduce


def with_global_masks(apply_mask: Callable[..., Any]) -> Callable[..., Any]:
    """Keras' `apply_mask`, whose mean over unmasked entries is one over those of all ranks."""
    signature = inspect.signature(apply_mask)

    @functools.wraps(apply_mask)
    def apply(*arguments: Any, **options: Any) -> Any:
        result = apply_mask(*arguments, **options)
        part = parts.current()
        given = signature.bind(*arguments, **options)
        mask, reduction = given.arguments["mask"], given.arguments["reduction"]
        if part is None or mask is None or reduction not in ("mean", "sum_over_batch_size"):
            return result
        valid = tf.reduce_sum(tf.cast(mask, tf.float64))
        size = tf.cast(tf.size(mask), tf.float64)
        all_valid, all_size = _sums(part, valid, size)
        factor = tf.math.divide_no_nan(all_size * valid, all_valid * size)
        return result * tf.cast(factor, result.dtype)

    return apply


def with_global_additions(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """`Model._aggregate_additional_loss`, which adds up the numbers that a layer has passed to `add_loss`.

    One number for each row makes a sum over the rows of all ranks. The dimension of rows is unknown while a step is traced.
    """

    @functools.wraps(aggregate)
    def add(model: Any, loss: Any) -> Any:
        result = aggregate(model, loss)
        part, loss = parts.current(), tf.convert_to_tensor(loss)
        if part is None or not _may_be_by_row(loss):
            return result
        return result * _factor_of_rows(part, loss, result.dtype)

    return add


def with_rows_added(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """`tf.GradientTape.gradient`: a loss with one number for each row is a sum over the rows of all ranks.

    This holds for the gradients of variables. Gradients of other tensors, as in a gradient penalty, stay on this rank. The
    caller's own `output_gradients` count as they are: inside of `tf.recompute_grad` they come from a loss that is scaled.
    """

    @functools.wraps(gradient)
    def compute(
        tape: Any, target: Any, sources: Any, output_gradients: Any = None, *rest: Any, **options: Any
    ) -> Any:
        part = parts.current() if output_gradients is None else None
        targets = tf.nest.flatten(target)
        to_variables = any(hasattr(source, "assign") for source in tf.nest.flatten(sources))
        if part is not None and to_variables and any(map(_may_be_by_row, targets)):
            warn_once(
                "DataParallel: a tape gets the gradient of a loss with one number for each row, which counts as a sum "
                "over rows: the processes add their sums up. For a mean over rows write tf.reduce_mean(loss). Reduce "
                "a tensor of any other kind, such as that of tf.boolean_mask, to a mean over rows."
            )
            output_gradients = [
                _of_all_ranks(part, each) if _may_be_by_row(each) else None for each in targets
            ]
        return gradient(tape, target, sources, output_gradients, *rest, **options)

    return compute


def _of_all_ranks(part: parts.Part, loss: tf.Tensor) -> tf.Tensor:
    """The output gradients of a loss with one number for each row."""
    return tf.ones_like(loss) * _factor_of_rows(part, loss, loss.dtype)


def _may_be_by_row(loss: Any) -> bool:
    """Whether a tensor may have one number for each row. The dimension of rows is unknown while a step is traced."""
    if not isinstance(loss, tf.Tensor) or not loss.shape.rank:
        return False
    return loss.shape[0] is None or tf.executing_eagerly()


def _factor_of_rows(part: parts.Part, loss: tf.Tensor, dtype: Any) -> tf.Tensor:
    """The factor that makes a sum over the rows of the part one over the rows of all ranks; 1 without such rows."""
    is_by_row = tf.equal(tf.shape(loss, tf.int64)[0], part.rows)
    return tf.where(is_by_row, part.inverse_share(dtype), tf.ones([], dtype))


def with_rows_as_weight(update_state: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.metrics.Mean.update_state`, to which a number for a part counts as the part's share of a batch.

    One process counts a number for a batch as one: the loss of an output, of a `train_step` of the user's, or a metric that
    is a function with a scalar result.
    """

    @functools.wraps(update_state)
    def update(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        part = parts.current()
        if part is not None and sample_weight is None and tf.convert_to_tensor(values).shape.rank == 0:
            if isinstance(metric, _compat.keras().metrics.MeanMetricWrapper):
                _warn("a metric function of this program returns")
            sample_weight = 1 / part.inverse_share(metric.dtype)
        return update_state(metric, values, sample_weight)

    return update


def with_numbers_of_a_step(update_state: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.metrics.Sum.update_state`, to which a Python number for a part counts as the part's share of a batch.

    So `update_state(1)` counts steps. A scalar tensor is a sum over rows, which the ranks add up.
    """

    @functools.wraps(update_state)
    def update(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        part = parts.current()
        if part is not None and tf.convert_to_tensor(values).shape.rank == 0:
            if not tf.is_tensor(values):
                values = values / part.inverse_share(metric.dtype)
            else:
                warn_once(
                    "DataParallel: keras.metrics.Sum gets one tensor for a batch, which counts as a sum over rows: the "
                    "processes add their sums up. For a mean over rows use keras.metrics.Mean; to count steps, pass a "
                    f"Python number: update_state(1.0). Received: metric {metric.name!r}"
                )
        return update_state(metric, values, sample_weight)

    return update


def warn_of_added(model: Any) -> None:
    """Warns if a layer of the model has called `add_loss` in the step that is being traced, unless rows are divided well."""
    layers = [layer for layer in model._flatten_layers() if layer.activity_regularizer is None]
    added = [tf.convert_to_tensor(loss) for layer in layers for loss in layer._losses]
    if any(loss.shape.rank == 0 for loss in added):
        _warn("a layer of this program passes to add_loss")
    elif added and not _compat.aggregates_added_losses():
        warn_once(
            "DataParallel: Keras adds up what a layer of this program passes to add_loss over the rows of each process: "
            f"pass a mean over rows, or use Keras 3.8 or newer. Received: Keras {_compat.keras().__version__}"
        )


def _warn(origin: str) -> None:
    warn_once(
        f"DataParallel: {origin} one number for a batch, which counts as a mean over rows. Use one number for each row, "
        "unless it is a mean over rows: a sum, a root or a ratio differs from that of one process."
    )


def _warn_of_sum(loss: Any) -> None:
    warn_once(
        "DataParallel: this program itself calls a loss with reduction='sum', as in a train_step. Each process adds up its "
        "own rows, and the sum counts as a mean over rows: divide it by tf.shape(x)[0], the number of these rows. To "
        "silence this warning, write reduction='sum_over_batch_size', or reduction='none' and tf.reduce_mean. "
        f"Received: {getattr(loss, 'name', loss)!r}"
    )


def _sums(part: parts.Part, *values: tf.Tensor) -> list[tf.Tensor]:
    """The sums over the rows of the global batch of float64 scalars."""
    name = names.unique(_NAME, id_of(global_process_set, _NAME))
    total = allreduce(tf.stop_gradient(tf.stack(values)), op=Sum, name=name)
    copies = tf.where(part.is_whole, tf.cast(global_process_set.size(), tf.float64), 1.0)
    return tf.unstack(total / copies)
