"""`ShardedOptimizer`: divides the state of the user's optimizer among the ranks."""

from typing import Any, Unpack

from tfddl import _compat
from tfddl.gradients.gradient_options import GradientKeywords, GradientOptions, check_bool
from tfddl.keras.consistency import callback_list
from tfddl.keras.distributed.backward_passes import accumulate, check_passes
from tfddl.keras.distributed.distribute import distribute
from tfddl.keras.distributed.dynamic_subclass import is_subclassed
from tfddl.keras.distributed.settings import Settings
from tfddl.keras.sharded import saving
from tfddl.keras.sharded.elementwise import begins_with_copies, is_elementwise
from tfddl.ops.constants import Adasum


def ShardedOptimizer(
    optimizer: Any,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    **options: Unpack[GradientKeywords],
) -> Any:
    """Makes a Keras optimizer combine its gradients over all ranks, with its state divided among them (ZeRO-1).

    Each of N ranks holds one N-th of the optimizer's slots, such as Adam's two moments: gradients are reduced and divided, a
    rank updates its slice of each variable, and the ranks gather the new weights
    ([ZeRO](https://arxiv.org/abs/1910.02054), section 5.1). The bytes on the network are those of an allreduce, and half as
    many again with `jit_compile`, where an allreduce gathers. Weights are
    those of `tfddl.DistributedOptimizer`, to the last bit on one host without `jit_compile` and without clipping by norms,
    and else within rounding.

    The optimizer is changed in place and returned. Call `model.save`, or a ModelCheckpoint, on all ranks: they collect the
    state and rank 0 writes it. The file loads without tfddl, and on any number of ranks: load it there on all
    ranks, and call `ShardedOptimizer(model.optimizer)`. `hvd.callbacks.ShardedCheckpoint` writes the slices of all ranks.

    Args:
        optimizer: A `keras.optimizers.Optimizer` of Keras 3 that updates each value by itself: SGD, Adam, AdamW, RMSprop,
            Lion, Adagrad and others. A `keras.optimizers.LossScaleOptimizer` may be inside or outside.
        name: See `tfddl.DistributedOptimizer`, as for the other arguments.
        backward_passes_per_step: Accumulated gradients are whole on each rank.
        average_aggregated_gradients: The mean or the sum of these gradients.
        **options: `op` (no Adasum), `compression`, `gradient_predivide_factor`, `process_set` and the others of
            `tfddl.DistributedOptimizer`. Sparse gradients become dense.

    Returns:
        `optimizer` itself.

    Raises:
        TypeError: `optimizer` is none of Keras 3, or a MultiOptimizer.
        ValueError: The optimizer looks at whole tensors, as LAMB, LARS, Muon and Adafactor do, or its slots begin as copies
            of the variables, as those of ScheduleFreeAdamW; no copy of it can be made from its configuration; it is
            distributed already; or `op` is Adasum.

    Example:
        On 2 ranks:

        >>> weight = keras.Variable(tf.zeros([128]))
        >>> optimizer = hvd.ShardedOptimizer(keras.optimizers.Adam(1.0))
        >>> optimizer.apply([tf.ones([128])], [weight])
        >>> weight.numpy()[:2].round(3)
        array([-1., -1.], dtype=float32)
        >>> [int(slot.shape[0]) for slot in optimizer.variables[2:]]  # behind the iteration and the learning rate
        [64, 64]
    """
    gradient_options = GradientOptions.of("ShardedOptimizer", options).with_state()
    passes = check_passes(backward_passes_per_step)
    check_bool("average_aggregated_gradients", average_aggregated_gradients)
    _check_supported(optimizer)
    if gradient_options.op == Adasum:
        raise ValueError(
            "Adasum combines whole gradients, of which ShardedOptimizer has slices: use op=hvd.Average or hvd.Sum. "
            "Received: op=Adasum"
        )
    callback_list.watch()
    saving.watch()
    settings = Settings(
        name or "ShardedOptimizer", gradient_options, passes, average_aggregated_gradients, sharded=True
    )
    inner = _compat.innermost(optimizer)
    state, variables = _taken_apart(inner)
    accumulate(optimizer, passes)
    distribute(optimizer, settings)
    if state is not None:
        inner.build(variables)
        inner.load_own_variables(state)
    return optimizer


def _check_supported(optimizer: Any) -> None:
    if _compat.is_keras_2() or not _compat.is_keras_optimizer(optimizer):
        raise TypeError(
            "ShardedOptimizer takes an optimizer of Keras 3: make one with keras.optimizers.get(name). "
            f"Received: optimizer={optimizer!r} of {type(optimizer).__module__}.{type(optimizer).__name__}"
        )
    inner = _compat.innermost(optimizer)
    if _compat.has_inner_optimizers(inner):
        raise TypeError(
            "ShardedOptimizer takes a single optimizer: use hvd.DistributedOptimizer for a MultiOptimizer. "
            f"Received: optimizer={optimizer!r}"
        )
    if is_subclassed(inner):
        raise ValueError(
            "This optimizer is distributed already: give ShardedOptimizer a plain one, for example of a model that "
            f"keras.models.load_model has loaded. Received: {inner!r}"
        )
    if begins_with_copies(inner):
        raise ValueError(
            "The slots of this optimizer begin as copies of the variables, and a broadcast of the variables would not reach "
            "their slices: use DistributedOptimizer, or an optimizer such as AdamW. "
            f"Received: optimizer={inner!r}"
        )
    if not is_elementwise(inner):
        raise ValueError(
            "ShardedOptimizer divides variables into slices, and this optimizer looks at whole variables: use "
            f"DistributedOptimizer, or an optimizer such as AdamW. Received: optimizer={inner!r}"
        )


def _taken_apart(optimizer: Any) -> tuple[dict[str, Any] | None, list[Any]]:
    """Takes the slots of an optimizer away, so that it can be built anew; returns all values, and its variables."""
    if not optimizer.built:
        return None, []
    state: dict[str, Any] = {}
    optimizer.save_own_variables(state)
    variables = list(optimizer._trainable_variables)
    kept = [_compat.step_variable(optimizer), optimizer._learning_rate]
    for variable in optimizer.variables:
        if not any(variable is each for each in kept):
            optimizer._untrack_variable(variable)
    optimizer._trainable_variables_indices = {}
    optimizer.built = False
    return state, variables
