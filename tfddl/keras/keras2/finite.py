"""One decision of all ranks about a step with an infinity in it."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfddl.keras.distributed.settings import Settings
from tfddl.ops import names
from tfddl.ops.allreduce import allreduce
from tfddl.ops.constants import Min
from tfddl.runtime.process_sets import id_of


def finite_everywhere(settings: Settings, grads: Sequence[Any]) -> list[Any]:
    """Returns the gradients if they are finite on all ranks; else NaNs, on all ranks.

    Args:
        settings: The optimizer's.
        grads: Tensors, `tf.IndexedSlices` or None.
    """
    process_set = settings.options.process_set
    if process_set.included() is False:
        return list(grads)
    values = [
        grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads if grad is not None
    ]
    mine = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
    name = names.unique(f"{settings.owner}.finite", id_of(process_set, settings.name))
    everywhere = allreduce(tf.cast(mine, tf.int32), op=Min, name=name, process_set=process_set)
    addend = tf.where(everywhere > 0, 0.0, float("nan"))
    return [grad if grad is None else _plus(grad, addend) for grad in grads]


def _plus(grad: Any, addend: tf.Tensor) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_plus(grad.values, addend), grad.indices, grad.dense_shape)
    return grad + tf.cast(addend, grad.dtype)
