"""DistributedOptimizer: the user's Keras optimizer, taught to combine gradients over all ranks."""

from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.gradients.gradient_options import check_bool, checked
from tfddl.gradients.local_sources import check_layers
from tfddl.keras.distributed.adoption import is_adopted
from tfddl.keras.distributed.backward_passes import accumulate, check_passes
from tfddl.keras.distributed.distribute import distribute
from tfddl.keras.distributed.settings import Settings, settings_of
from tfddl.ops.compression import Compression, Compressor
from tfddl.ops.constants import NAMES, Average
from tfddl.runtime.process_sets import ProcessSet, global_process_set
from tfddl.v1 import optimizer as v1_optimizer


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    *,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    device_dense: str = "",
    device_sparse: str = "",
) -> Any:
    """Makes a Keras optimizer combine its gradients over all ranks.

    The optimizer is changed in place and returned: its class, state, learning rate and configuration stay as
    they are, and a model saved with it loads in a process without tfddl. Gradients are combined once for each
    update, after accumulation and unscaling, before clipping, weight decay and moving averages, so that a job
    of N ranks computes what one process would with the N-times batch.

    Gradients from a `tfddl.DistributedGradientTape` are not reduced a second time; see there for what
    happens to those that were changed on the way. A `keras.optimizers.LossScaleOptimizer` may be inside or
    outside, or come from `compile()` under `mixed_float16`: all ranks skip the same steps and hold the same
    scale. The members of a `keras.optimizers.MultiOptimizer` are distributed one by one.

    `copy`, `deepcopy` and `pickle` give a distributed optimizer, with the state that Keras keeps in them; but
    `deepcopy` and `pickle` make new variables, so that groups and local variables have to be told again.
    `keras.models.load_model` gives a plain one, to be passed through this function again; `tfddl.load_model` does that.

    Args:
        optimizer: A `keras.optimizers.Optimizer` of Keras 3, or a `tf.compat.v1.train.Optimizer`.
        name: Names this optimizer's reductions, in error messages and the flight log. Equal on all ranks.
            Defaults to `"DistributedOptimizer"`.
        compression: What gradients travel as. Defaults to `tfddl.Compression.none`.
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`. Defaults to `tfddl.Average`.
        sparse_as_dense: See `tfddl.DistributedGradientTape`.
        gradient_predivide_factor: See `tfddl.DistributedGradientTape`.
        backward_passes_per_step: Batches to accumulate before an update: sets the optimizer's
            `gradient_accumulation_steps`. Defaults to 1, which leaves that as it is.
        average_aggregated_gradients: Whether an update sees the mean of those batches' gradients, as with
            `gradient_accumulation_steps`; else their sum, which clipping sees too. Defaults to False, as in Horovod.
        num_groups: Deprecated; use `groups`.
        groups: See `tfddl.DistributedGradientTape`.
        process_set: Whose ranks combine their gradients; another rank trains on its own. Defaults to all.
        scale_local_gradients: Whether gradients of local variables (`tfddl.PartialDistributedOptimizer`) are divided by
            the number of ranks, so that they belong to the mean over the rows of all ranks. Defaults to True.
        device_dense: Only `""`: gradients are combined on the device that has computed them.
        device_sparse: The same.

    Returns:
        `optimizer` itself. If it is distributed already with the same settings, nothing changes.

    Raises:
        TypeError: If `optimizer` is neither; if `compression` is no compressor, `process_set` no `ProcessSet`, or what is
            on or off neither True nor False.
        ValueError: For another `op`, a factor, groups or a device that `tfddl.DistributedGradientTape` refuses; for
            `backward_passes_per_step` below 1, or above it for an optimizer that accumulates by itself or has its
            variables already; or if the optimizer is distributed already with other settings.
    """
    options = checked(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    passes = check_passes(backward_passes_per_step)
    check_bool("average_aggregated_gradients", average_aggregated_gradients)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return v1_optimizer.distribute(
            optimizer, name or Settings.name, options, passes, average_aggregated_gradients
        )
    # Imported here: the file needs Keras, and an optimizer of TF1 does not.
    from tfddl.keras.consistency import callback_list

    callback_list.watch()
    settings = Settings(name or Settings.name, options, passes, average_aggregated_gradients)
    _check_supported(optimizer)
    if is_adopted(_compat.innermost(optimizer)):
        _check_same(settings_of(optimizer), settings)
    elif not _compat.is_keras_2():
        accumulate(optimizer, passes)
    return distribute(optimizer, settings)


def PartialDistributedOptimizer(
    optimizer: Any, name: str | None = None, *, local_layers: Any = None, **options: Any
) -> Any:
    """A `tfddl.DistributedOptimizer` that leaves some layers to each rank.

    The gradients of local layers and variables are not combined, so that each rank has weights of its own there. Single
    variables are registered with `optimizer.register_local_var(variable)`. Give a `BroadcastGlobalVariablesCallback`
    their variables as `local_variables` if they are to begin with different values. `global_clipnorm` is refused, since
    it would make the other weights differ too. Under loss scaling an infinity in a local gradient makes all ranks skip
    the step.

    Args:
        optimizer: See `tfddl.DistributedOptimizer`.
        name: See `tfddl.DistributedOptimizer`.
        local_layers: A Keras layer or a list of them, whose trainable weights are local; they may be built later.
            Defaults to none.
        **options: The other arguments of `tfddl.DistributedOptimizer`.

    Returns:
        `optimizer` itself.

    Raises:
        TypeError: As `tfddl.DistributedOptimizer` does, and for an optimizer of TF1.
        ValueError: As that does, or if `local_layers` is anything else.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise TypeError(
            "PartialDistributedOptimizer takes an optimizer of Keras, for optimizers of TF1 know no local layers. "
            f"Received: optimizer={optimizer!r}"
        )
    layers = check_layers(local_layers)
    distributed = DistributedOptimizer(optimizer, name, **options)
    settings_of(distributed).local.add_layers(layers)
    return distributed


def _check_supported(optimizer: Any) -> None:
    if not _compat.is_keras_optimizer(optimizer):
        raise TypeError(
            f"DistributedOptimizer takes an optimizer of {_compat.keras().__name__} {_compat.keras().__version__}, which is "
            "tf.keras here, or a tf.compat.v1.train.Optimizer: make one with keras.optimizers.get(name), or "
            "use tfddl.DistributedGradientTape. "
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
