"""The methods of Keras that tfddl replaces or overrides at run time, for which Keras has no hook.

`compat/horovod/keras2_spellings.py` has the methods that it replaces only in programs with `import horovod`.

Keras 3 means 3.4 to 3.15, Keras 2 means 2.15 to 2.21. This file replaces these methods in Keras' own classes. They do the
same as before for programs without tfddl's optimizers and callbacks:

| method of Keras | Keras | reason |
|---|---|---|
| `CallbackList.__init__` | 2, 3 | `fit` makes the list; the callback that stops all ranks together has to be last in it |
| `Optimizer.apply`; in Keras 2 `.apply_gradients` | 2, 3 | a program that has sharded its data is warned if it combines \
no gradient |
| `LossScaleOptimizer.__init__` | 3 | `compile()` makes one under mixed_float16, around a distributed optimizer |
| `LossScaleOptimizer.apply` | 3 | the optimizer inside may be distributed later than this one was made |
| `LossScaleOptimizer.apply_gradients` | 2 | it drops the variables without a gradient before the hook for combining |
| `Model.fit`, `.train_on_batch`, `.evaluate`, `.test_on_batch`, `.predict`, `.predict_on_batch`, \
`._maybe_symbolic_build` | 3 | `DataParallel` divides batches |
| `Model.fit` | 2, 3 | `ElasticCallback` says with which epoch and with which rows it begins, and begins \
again after a loss; `ShardedCheckpoint` restores first; caches that ranks share are refused |
| `EpochIterator._enumerate_iterator`; before Keras 3.7 `TFEpochIterator.enumerate_epoch` | 3 | \
the epoch that goes on is shorter than the others |
| `reduce_values` and `apply_mask` of losses, `Model._aggregate_additional_loss` | 3 | their denominators are those of the \
whole batch |
| `Loss.__call__` | 3 | a loss that compares rows has a warning |
| `Loss.__call__`, `CompileLoss.__call__` | 3 | the sum of a loss of `compile` is that of the whole batch, unlike the sum \
of a loss that the program itself calls |
| `tf.GradientTape.gradient` | 3 | under `DataParallel` a loss with one number for each row is a sum over \
those of all ranks |
| `BatchNormalization._moments` | 3 | so are its statistics |
| `metrics.Mean.update_state`, `metrics.Sum.update_state` | 3 | a number for the whole batch counts by rows |
| `random.SeedGenerator.next` | 3 | under `DataParallel` each rank draws numbers of its own in a step |
| `keras.saving.save_model`, `.save_weights`; `Model.export`; `keras.utils.get_file` | 3 | under `DataParallel` one rank \
writes |
| `keras.saving.load_model`, `.load_weights` | 3 | in callbacks they wait for this rank |
| `keras.saving.save_model`, `.save_weights` | 3 | the state of a `ShardedOptimizer` is collected, and one rank writes |

The subclass that `dynamic_subclass.py` makes for the class of an optimizer overrides these methods:

| method of Keras | by | reason |
|---|---|---|
| `Optimizer.scale_loss` | `base_optimizer.Distributed`, `loss_scale_optimizer` | a part of a batch has a weight |
| `Optimizer.apply`, `.apply_gradients`, `._clip_gradients` | `base_optimizer.Distributed` | gradients are combined before \
they are clipped, and before a method of the user's gets them |
| `Optimizer.build`, `.add_variable`, `.add_variable_from_reference`, `._backend_update_step`, \
`._update_model_variables_moving_average`, `._overwrite_model_variables_with_average_value` | \
`sharded_optimizer.Sharded` | Keras updates slices |
| `Optimizer.save_own_variables`, `.load_own_variables`, `._trackable_children` | `sharded_optimizer.Sharded` | \
files hold whole variables |
| `MultiOptimizer.build`, `.apply` | `distribute.DistributedMulti` | members that a function makes are distributed too |
| `LossScaleOptimizer.apply`, `.check_finite` | `loss_scale_optimizer.DistributedLossScale` | all ranks skip the same steps |
| Keras 2: `apply_gradients`, `aggregate_gradients`, `_aggregate_gradients`, `_create_all_weights`, `_create_slots` | \
`keras2/aggregation.py` | Keras 2's hook for combining |
| `__class__`, `__reduce__` | `DynamicSubclass`, `distribute` | saved as the user's class; a copy is distributed again |
"""

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfddl import _compat
from tfddl.runtime.rank_queries import asking_again


@functools.cache
def watch_callback_lists(complete: Callable[[Any], None]) -> None:
    """Calls `complete` with every `CallbackList` that Keras makes."""
    _after_init(_compat.keras().callbacks.CallbackList, complete)


@functools.cache
def watch_optimizers(note: Callable[[], None]) -> None:
    """Calls `note` whenever an optimizer applies gradients, before."""
    kind, name = _compat.keras().optimizers.Optimizer, "apply_gradients" if _compat.is_keras_2() else "apply"
    plain = getattr(kind, name)

    @functools.wraps(plain)
    def apply(self: Any, *arguments: Any, **options: Any) -> Any:
        note()
        return plain(self, *arguments, **options)

    setattr(kind, name, apply)


@functools.cache
def watch_loss_scale_optimizers(subclass: Callable[[Any], bool], check: Callable[[Any], None]) -> None:
    """Keras 3: each LossScaleOptimizer around a distributed optimizer gets a subclass.

    Args:
        subclass: Called with each new LossScaleOptimizer, and with each one that is applied. Returns whether it has given
            it another class just now.
        check: Called with each one that is applied. May raise.
    """
    original = _compat.keras().optimizers.LossScaleOptimizer
    plain_apply = original.apply

    @functools.wraps(plain_apply)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        check(self)
        if subclass(self):
            return self.apply(grads, trainable_variables)
        return plain_apply(self, grads, trainable_variables)

    _after_init(original, subclass)
    original.apply = apply


@functools.cache
def watch_loss_scale_optimizers_2(
    around: Callable[[Any, list[tuple[Any, Any]]], AbstractContextManager[None]],
) -> None:
    """Keras 2: runs `apply_gradients` of each LossScaleOptimizer inside `around(optimizer, grads_and_vars)`."""
    for kind in _compat.loss_scale_optimizers_2():
        kind.apply_gradients = _inside(kind.apply_gradients, around)


@functools.cache
def divide_training(parallel: Any) -> None:
    """Keras 3: `Model.fit`, `evaluate`, `predict` and the methods for one batch go through those of `parallel`."""
    model = _compat.keras().Model
    model.fit = parallel.fit(model.fit)
    model.train_on_batch = parallel.train_on_batch(model.train_on_batch)
    for name in ("evaluate", "test_on_batch", "predict", "predict_on_batch"):
        setattr(model, name, parallel.whole(getattr(model, name)))
    model.export = parallel.writes(model.export)
    _replace_everywhere(_compat.keras().utils.get_file, parallel.downloads)
    saving = _compat.saving_module()
    for name in ("save_model", "save_weights"):
        _replace_everywhere(getattr(saving, name), parallel.writes)
    for name in ("load_model", "load_weights"):
        _replace_everywhere(getattr(saving, name), parallel.reads)
    if hasattr(model, "_maybe_symbolic_build"):
        model._maybe_symbolic_build = parallel.build(model._maybe_symbolic_build)


@functools.cache
def write_together(writes: Callable[[Any], Any]) -> None:
    """Keras 3: the functions that save models and weights become what `writes` makes of them."""
    saving = _compat.saving_module()
    for name in ("save_model", "save_weights"):
        _replace_everywhere(getattr(saving, name), writes)


@functools.cache
def prepare_fits(prepare: Callable[[Any, dict[str, Any]], None]) -> None:
    """`Model.fit` calls `prepare(model, arguments)` first, which may change its arguments."""
    model = _compat.keras().Model
    plain = model.fit
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def fit(self: Any, *arguments: Any, **options: Any) -> Any:
        known = {name: value for name, value in options.items() if name in signature.parameters}
        call = signature.bind(self, *arguments, **known)
        prepare(self, call.arguments)
        # Options that Keras 3 has no more: `tfddl.compat` may take them.
        return plain(*call.args, **call.kwargs, **{name: options[name] for name in options.keys() - known})

    model.fit = fit


@functools.cache
def repeat_fits(may_repeat: Callable[[Any], bool]) -> None:
    """`Model.fit` runs again after an exception, if `may_repeat(model)`."""
    model = _compat.keras().Model
    plain = model.fit

    @functools.wraps(plain)
    def fit(self: Any, *arguments: Any, **options: Any) -> Any:
        while True:
            try:
                with asking_again():
                    return plain(self, *arguments, **options)
            except Exception:
                if not may_repeat(self):
                    raise

    model.fit = fit


@functools.cache
def prepare_epochs(prepare: Callable[[Any], None]) -> None:
    """Keras 3: calls `prepare` with each iterator over the batches of an epoch, before it begins."""
    kind, method = _compat.epoch_iterator()
    plain = getattr(kind, method)

    @functools.wraps(plain)
    def begin(self: Any) -> Any:
        prepare(self)
        return plain(self)

    setattr(kind, method, begin)


@functools.cache
def divide_losses(
    compute: Callable[[Any], Any],
    reduce_values: Callable[[Any], Any],
    apply_mask: Callable[[Any], Any],
    add: Callable[[Any], Any],
) -> None:
    """Keras 3: the calls of losses, and the functions with their denominators, become what these make of them."""
    home, model = _compat.losses_module(), _compat.keras().Model
    for kind in (home.Loss, _compat.compile_loss()):
        kind.__call__ = compute(kind.__call__)
    home.reduce_values = reduce_values(home.reduce_values)
    home.apply_mask = apply_mask(home.apply_mask)
    if _compat.aggregates_added_losses():
        model._aggregate_additional_loss = add(model._aggregate_additional_loss)


@functools.cache
def add_rows(gradient: Callable[[Any], Any]) -> None:
    """`tf.GradientTape.gradient` becomes what `gradient` makes of it."""
    tf.GradientTape.gradient = gradient(tf.GradientTape.gradient)


@functools.cache
def try_losses(compute: Callable[[Any], Any]) -> None:
    """Keras 3: `losses.Loss.__call__` becomes what `compute` makes of it."""
    kind = _compat.keras().losses.Loss
    kind.__call__ = compute(kind.__call__)


@functools.cache
def divide_metrics(update_mean: Callable[[Any], Any], update_sum: Callable[[Any], Any]) -> None:
    """Keras 3: `update_state` of `metrics.Mean` and of `metrics.Sum` become what these make of them."""
    home = _compat.keras().metrics
    home.Mean.update_state = update_mean(home.Mean.update_state)
    home.Sum.update_state = update_sum(home.Sum.update_state)


@functools.cache
def synchronize_batch_normalization(moments: Callable[..., Any]) -> None:
    """Keras 3: `BatchNormalization._moments` becomes `moments(layer, plain, inputs, mask)`."""
    layer = _compat.batch_normalization()
    plain = layer._moments

    @functools.wraps(plain)
    def replaced(self: Any, inputs: Any, mask: Any = None) -> Any:
        return moments(self, plain, inputs, mask)

    layer._moments = replaced


@functools.cache
def draw_seeds(draw: Callable[[Any], Any]) -> None:
    """Keras 3: `random.SeedGenerator.next` becomes what `draw` makes of it."""
    generator = _compat.keras().random.SeedGenerator
    generator.next = draw(generator.next)


def _replace_everywhere(plain: Any, make: Callable[[Any], Any]) -> None:
    """Replaces a function in all modules of Keras that have imported it."""
    function, replaced = plain.__name__, make(plain)
    for name, module in list(sys.modules.items()):
        if name.startswith("keras.") and vars(module).get(function) is plain:
            setattr(module, function, replaced)


def _inside(plain: Any, around: Callable[[Any, list[tuple[Any, Any]]], AbstractContextManager[None]]) -> Any:
    @functools.wraps(plain)
    def apply_gradients(self: Any, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)
        with around(self, pairs):
            return plain(self, pairs, *arguments, **options)

    return apply_gradients


def _after_init(kind: Any, call: Callable[[Any], Any]) -> None:
    plain_init = kind.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        plain_init(self, *arguments, **options)
        call(self)

    kind.__init__ = init
