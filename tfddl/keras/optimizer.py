"""`DistributedOptimizer`: makes the user's optimizer combine its gradients over all ranks."""

from typing import Any, Unpack

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients.gradient_options import GradientKeywords, GradientOptions, check_bool
from tfddl.gradients.local_sources import check_layers
from tfddl.keras.distributed.backward_passes import accumulate, check_passes
from tfddl.keras.distributed.distribute import distribute
from tfddl.keras.distributed.dynamic_subclass import is_subclassed
from tfddl.keras.distributed.settings import Settings, settings_of
from tfddl.ops.constants import NAMES
from tfddl.v1 import optimizer as v1_optimizer


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    **options: Unpack[GradientKeywords],
) -> Any:
    """Makes a Keras optimizer combine its gradients over all ranks.

    The optimizer is changed in place and returned. Its class, state, learning rate and configuration stay the same, and a
    model saved with it loads in a process without tfddl. Gradients are combined once for each update: after accumulation
    and unscaling, before clipping, weight decay and moving averages. So a job of N ranks computes the same as one process
    with an N times larger batch. If the optimizer's class is yours and defines `apply` or `apply_gradients`, gradients are
    combined before this method, so that it may normalize them; with accumulation once for each batch.

    Gradients from a `tfddl.DistributedGradientTape` are not reduced a second time; its documentation says what happens to
    gradients that were changed in between. A `keras.optimizers.LossScaleOptimizer` may be inside or outside, or come from
    `compile()` under `mixed_float16`: all ranks skip the same steps and have the same scale. The members of a
    `keras.optimizers.MultiOptimizer` are distributed one by one.

    `copy`, `deepcopy` and `pickle` return a distributed optimizer with the state that Keras copies. `deepcopy` and `pickle`
    make new variables, so groups and local variables have to be given again. `keras.models.load_model` returns a plain
    optimizer; `tfddl.load_model` returns a distributed one.

    Args:
        optimizer: A `keras.optimizers.Optimizer` of Keras 3, or a `tf.compat.v1.train.Optimizer`.
        name: Names this optimizer's reductions, in error messages and the flight log. Equal on all ranks.
            Defaults to `"DistributedOptimizer"`.
        compression: The format in which gradients travel: a value of `tfddl.Compression` or a `tfddl.PowerSGD`. Defaults to
            `tfddl.Compression.none`.
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`. Defaults to `tfddl.Average`.
        sparse_as_dense: See `tfddl.DistributedGradientTape`.
        gradient_predivide_factor: See `tfddl.DistributedGradientTape`.
        backward_passes_per_step: Number of batches to accumulate before an update. Sets the optimizer's
            `gradient_accumulation_steps`; 1 does not change it. Defaults to 1.
        average_aggregated_gradients: Whether clipping and the update get the mean of these batches' gradients, as with
            `gradient_accumulation_steps`, or their sum. Defaults to False: the sum, as in Horovod.
        num_groups: Deprecated; use `groups`.
        groups: See `tfddl.DistributedGradientTape`.
        process_set: The ranks that combine their gradients. Another rank trains alone. Defaults to all ranks.
        scale_local_gradients: Whether gradients of local variables (`tfddl.PartialDistributedOptimizer`) are divided by
            the number of ranks, as their share in the mean over the rows of all ranks. With any `op`, as in Horovod: pass
            False with Sum or Adasum, which take no mean. Defaults to True.
        device_dense: Only `""`: gradients are combined on the device that computed them.
        device_sparse: The same.

    Returns:
        `optimizer` itself. If it is distributed already with the same settings, nothing changes.

    Raises:
        TypeError: If `optimizer` is neither; if `name` is no text, `compression` no compressor, `process_set` no
            `ProcessSet`, or a bool neither True nor False; for an unknown argument.
        ValueError: For an `op`, a factor, groups or a device that `tfddl.DistributedGradientTape` refuses; for
            `backward_passes_per_step` below 1, or above 1 for an optimizer that accumulates already or is built; or if
            the optimizer is distributed already with other settings.

    Example:
        On 2 ranks:

        >>> weight = keras.Variable([0.0])
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        >>> optimizer.apply([tf.constant([1.0 + hvd.rank()])], [weight])  # gradients 1 and 2
        >>> weight.numpy()
        array([-1.5], dtype=float32)
    """
    if not isinstance(name, str | None):
        raise TypeError(
            "name is a text that is equal on all ranks: pass a str, and layers as local_layers=... to "
            f"PartialDistributedOptimizer. Received: name={name!r}"
        )
    gradient_options = GradientOptions.of("DistributedOptimizer", options).with_state()
    passes = check_passes(backward_passes_per_step)
    check_bool("average_aggregated_gradients", average_aggregated_gradients)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return v1_optimizer.distribute(
            optimizer, name or Settings.name, gradient_options, passes, average_aggregated_gradients
        )
    # Imported here: the file needs Keras, and an optimizer of TF1 does not.
    from tfddl.keras.consistency import callback_list

    callback_list.watch()
    settings = Settings(name or Settings.name, gradient_options, passes, average_aggregated_gradients)
    _check_supported(optimizer)
    if is_subclassed(_compat.innermost(optimizer)):
        _check_same(settings_of(optimizer), settings)
    elif not _compat.is_keras_2():
        accumulate(optimizer, passes)
    return distribute(optimizer, settings)


def PartialDistributedOptimizer(
    optimizer: Any, name: str | None = None, *, local_layers: Any = None, **options: Any
) -> Any:
    """A `tfddl.DistributedOptimizer` that does not combine the gradients of some layers.

    These layers are local: each rank has its own weights. `optimizer.register_local_var(variable)` makes a single variable
    local. If local variables have to begin with different values, give them to `BroadcastGlobalVariablesCallback` as
    `local_variables`. `global_clipnorm` is refused, since it would make the other weights differ too. Under loss scaling an
    infinity in a local gradient makes all ranks skip the step.

    Args:
        optimizer: See `tfddl.DistributedOptimizer`.
        name: See `tfddl.DistributedOptimizer`.
        local_layers: A Keras layer or a list of them, whose trainable weights are local; they may be built later.
            Defaults to none.
        **options: The other arguments of `tfddl.DistributedOptimizer`.

    Returns:
        `optimizer` itself.

    Raises:
        TypeError: For an optimizer of TF1; and see `tfddl.DistributedOptimizer`.
        ValueError: If `local_layers` is anything else; and see `tfddl.DistributedOptimizer`.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            "TF1 optimizers do not support local layers: give PartialDistributedOptimizer an optimizer of Keras. "
            f"Received: optimizer={optimizer!r}"
        )
    layers = check_layers(local_layers)
    distributed = DistributedOptimizer(optimizer, name, **options)
    settings_of(distributed).local.add_layers(layers)
    return distributed


def _check_supported(optimizer: Any) -> None:
    if not _compat.is_keras_optimizer(optimizer):
        remedy = "make one with keras.optimizers.get(name), or use tfddl.DistributedGradientTape"
        if isinstance(optimizer, type):
            remedy = f"make one of this class, with parentheses: {optimizer.__name__}()"
        elif isinstance(optimizer, _compat.keras().Model):
            remedy = "give it model.optimizer of the compiled model"
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of {_compat.keras().__name__} {_compat.keras().__version__}, which is "
            f"tf.keras here, or a tf.compat.v1.train.Optimizer: {remedy}. "
            f"Received: optimizer={optimizer!r} of {type(optimizer).__module__}.{type(optimizer).__name__}"
        )


def _check_same(present: Settings, wanted: Settings) -> None:
    for field, now in wanted.chosen().items():
        before = present.chosen()[field]
        if before != now:
            names = NAMES if field == "op" else {}
            raise ValueError(
                f"This optimizer is distributed already, with {field}={names.get(before, before)}: call "
                f"DistributedOptimizer once. Received: {field}={names.get(now, now)}"
            )
