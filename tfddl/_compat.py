"""All that depends on the version of TensorFlow or Keras, on the Python side."""

import functools
import importlib
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tfddl.build import support


def is_keras_2() -> bool:
    """Whether `tf.keras`, and so tfddl, is Keras 2: on TensorFlow 2.15, and with `TF_USE_LEGACY_KERAS=1` since."""
    return support.uses_keras_2(tf.__version__)


@functools.cache
def keras() -> ModuleType:
    """The package that is `tf.keras`, once it is known to be one that tfddl works with: `keras` or `tf_keras`.

    Imported here and not at the top of a file, so that a program that uses the tape alone needs no Keras.

    Raises:
        ImportError: If Keras is older than 3.4 or does not run on TensorFlow, or there is no `tf_keras`.
    """
    if is_keras_2():
        return _keras_2()
    import keras

    support.check_keras(keras.__version__, tf.__version__)
    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            "tfddl needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()!r}"
        )
    return keras


def _keras_2() -> ModuleType:
    if support.major_minor(tf.__version__) < (2, 16):
        import keras

        return keras
    try:
        return importlib.import_module("tf_keras")
    except ImportError:
        major, minor = support.major_minor(tf.__version__)
        raise ImportError(
            f"TF_USE_LEGACY_KERAS=1 asks for Keras 2, which is not installed: pip install tf_keras~={major}.{minor}.0"
        ) from None


def py_dataset() -> Any:
    """The class of data that is read by the batch: Keras 3's PyDataset, Keras 2's Sequence."""
    utils = keras().utils
    return utils.Sequence if is_keras_2() else utils.PyDataset


def py_dataset_options(dataset: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments for another PyDataset, those not given taken from `dataset`. In Keras 2 `fit` has them.

    Raises:
        ValueError: In Keras 2, if any is given.
    """
    if not is_keras_2():
        return {name: getattr(dataset, name) if value is None else value for name, value in given.items()}
    wrong = {name: value for name, value in given.items() if value is not None}
    if wrong:
        raise ValueError(f"In Keras 2 these are arguments of fit. Received: {wrong}")
    return {}


def num_batches(dataset: Any) -> int | None:
    """The number of batches of a PyDataset or Sequence; None if it is endless."""
    if is_keras_2():
        return len(dataset)
    batches: int | None = dataset.num_batches
    return batches


def tells_epoch_begin() -> bool:
    """Whether `fit` calls a PyDataset's `on_epoch_begin` (Keras >= 3.5)."""
    return hasattr(py_dataset(), "on_epoch_begin")


def is_keras_variable(value: object) -> bool:
    """Whether `value` is a variable of Keras 3. In Keras 3.4 those are no instances of `keras.Variable`."""
    return hasattr(value, "path") and callable(getattr(value, "assign", None))


def is_variable(value: object) -> bool:
    """Whether `value` is one variable, of TensorFlow or of Keras."""
    return isinstance(value, tf.Variable) or is_keras_variable(value)


def tf_variable(value: Any) -> Any:
    """The tf.Variable inside a Keras variable; anything else as it is."""
    inner = getattr(value, "value", None)  # of a tf.Variable a method
    return value if inner is None or callable(inner) else inner


def path(variable: Any) -> str:
    """What a variable is called, with the layers that it is in."""
    return str(getattr(variable, "path", variable.name))


def reference(value: Any) -> Any:
    """Tells variables and tensors apart: a Keras variable and the tf.Variable inside are the same one."""
    return tf_variable(value).ref()


def is_layer(value: object) -> bool:
    """Whether `value` is a layer of Keras 3."""
    return isinstance(value, keras().layers.Layer)


def optimizer_classes() -> tuple[type, ...]:
    """What optimizers of the Keras in use derive from."""
    optimizers = keras().optimizers
    return (optimizers.Optimizer, optimizers.legacy.Optimizer) if is_keras_2() else (optimizers.Optimizer,)


def is_keras_optimizer(value: object) -> bool:
    """Whether `value` is an optimizer of the Keras in use."""
    return isinstance(value, optimizer_classes())


def is_legacy_optimizer(value: object) -> bool:
    """Whether `value` is an optimizer of Keras 2's older kind, which most of TensorFlow Addons derive from."""
    return is_keras_2() and isinstance(value, keras().optimizers.legacy.Optimizer)


def is_addons_multi_optimizer(value: object) -> bool:
    """Whether `value` is the MultiOptimizer of TensorFlow Addons."""
    return is_legacy_optimizer(value) and hasattr(value, "optimizer_specs")


def is_loss_scale_optimizer(value: object) -> bool:
    """Whether `value` is Keras' LossScaleOptimizer, which wraps another optimizer."""
    home = keras().mixed_precision if is_keras_2() else keras().optimizers
    return isinstance(value, home.LossScaleOptimizer)


def loss_scale_optimizers_2() -> list[Any]:
    """Keras 2's classes behind `keras.mixed_precision.LossScaleOptimizer`, one for each kind of optimizer."""
    kinds = keras().mixed_precision.LossScaleOptimizer.__subclasses__()
    return [kind for kind in kinds if "apply_gradients" in vars(kind)]


def tf1_optimizer(value: Any) -> Any:
    """The TF1 optimizer inside what Keras 2's `compile` makes of one, which has no public name; else None."""
    inner = getattr(value, "optimizer", None) if is_keras_2() else None
    return inner if isinstance(inner, tf.compat.v1.train.Optimizer) else None


def is_built(optimizer: Any) -> bool:
    """Whether an optimizer, none of Keras 2's legacy ones, has made its variables."""
    return bool(getattr(optimizer, "_built", False) if is_keras_2() else optimizer.built)


def steps_taken(optimizer: Any) -> int:
    """How many steps an optimizer has taken; asking a legacy one for its `iterations` would make that variable."""
    count = getattr(innermost(optimizer), "_iterations", None)
    return 0 if count is None else int(tf.convert_to_tensor(count))


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Has an optimizer make its variables, unless it has. A legacy one may have made some of them only."""
    if is_legacy_optimizer(optimizer):
        optimizer._create_all_weights(list(variables))
        inner = innermost(optimizer)
        for spec in inner.optimizer_specs if is_addons_multi_optimizer(inner) else ():
            names = set(spec["weights"])
            build_optimizer(spec["optimizer"], [each for each in variables if each.name in names])
    elif not is_built(optimizer):
        optimizer.build(list(variables))


def innermost(optimizer: Any) -> Any:
    """The optimizer inside all LossScaleOptimizers: the one that applies the gradients."""
    while is_loss_scale_optimizer(optimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def has_inner_optimizers(value: object) -> bool:
    """Whether `value` is Keras' MultiOptimizer (Keras >= 3.12), which spreads variables over several
    optimizers.

    It has no public name in some versions, hence the look at what makes it one.
    """
    return hasattr(value, "_inner_optimizers")


def learning_rate(optimizer: Any) -> float:
    """The learning rate now. A variable of Keras 3.4 does not turn into a float by itself."""
    return float(tf.convert_to_tensor(optimizer.learning_rate))


def settable_learning_rate(optimizer: Any) -> float | None:
    """The learning rate, or None where it cannot be set.

    It cannot where a LearningRateSchedule or a function computes it, in a MultiOptimizer, or without an
    optimizer.
    """
    optimizer = innermost(optimizer)
    if has_inner_optimizers(optimizer) or is_addons_multi_optimizer(optimizer):
        return None
    legacy = is_legacy_optimizer(optimizer)
    rate = getattr(optimizer, "learning_rate" if legacy else "_learning_rate", None)
    return learning_rate(optimizer) if is_variable(rate) else None


def momentum_with_learning_rate(optimizer: Any) -> list[Any]:
    """The slots of an optimizer, none of those inside it, that hold sums of `learning_rate * gradient`."""
    optimizers = keras().optimizers
    if is_legacy_optimizer(optimizer):
        kinds = optimizers.legacy.SGD, optimizers.legacy.RMSprop
        named = optimizer._slots.values() if isinstance(optimizer, kinds) else []
        return [slots["momentum"] for slots in named if "momentum" in slots]
    ours = getattr(optimizer, "momentum_holds_learning_rate", False)
    if not ours and not isinstance(optimizer, (optimizers.SGD, optimizers.RMSprop)):
        return []
    # `momentums` in SGD, `_momentums` in RMSprop; neither before the optimizer is built.
    slots = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [slot for slot in slots if slot is not None]


def steps_per_execution(model: Any) -> int:
    """How many batches `fit` runs at once."""
    steps = getattr(model, "_steps_per_execution" if is_keras_2() else "steps_per_execution", None)
    return 1 if steps is None else int(steps)


def resumed_epoch(model: Any) -> int | None:
    """The epoch that a BackupAndRestore wants `fit` to begin with, or None where there is none."""
    if not is_keras_2():
        epoch: int | None = getattr(model, "_initial_epoch", None)
        return epoch
    state = getattr(model, "_training_state", None)
    return None if state is None or state._ckpt_saved_epoch < 0 else int(state._ckpt_saved_epoch) + 1


def resume_at(model: Any, epoch: int | None) -> None:
    """Has `fit` begin with an epoch, as if a BackupAndRestore had said so."""
    if not is_keras_2():
        model._initial_epoch = epoch
    elif epoch != resumed_epoch(model):
        model._training_state = _Resumed(epoch)


class _Resumed:
    """What Keras 2's `fit` asks for the epoch to begin with."""

    def __init__(self, epoch: int | None) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(
        self, steps: Any, initial_epoch: int, mode: Any
    ) -> tuple[int, int]:
        return initial_epoch if self._epoch is None else self._epoch, 0


def fit_params(callback: Any) -> dict[str, Any]:
    """What `fit` has told a callback by `set_params`: empty before. Keras < 3.5 has no attribute until then."""
    return getattr(callback, "params", None) or {}


def batch_normalization() -> Any:
    """Keras' BatchNormalization, known to compute its statistics in a `_moments` that a subclass may replace.

    Raises:
        ImportError: If it does not, so that a subclass would normalize each rank's batch by itself.
    """
    layer: Any = keras().layers.BatchNormalization
    if not hasattr(layer, "_moments"):
        raise ImportError(
            "tfddl.SyncBatchNormalization does not know this version of Keras, whose BatchNormalization has no `_moments`. "
            f"Received: keras {keras().__version__}"
        )
    return layer


def without_fused_kernel() -> dict[str, Any]:
    """Arguments for a BatchNormalization that computes its statistics by itself."""
    return {"fused": False} if is_keras_2() else {}


def moments_arguments(
    layer: Any, arguments: Sequence[Any], mask: Any, options: dict[str, Any]
) -> tuple[list[int], Any, bool]:
    """What Keras calls `BatchNormalization._moments` with: axes to reduce, mask, and whether these axes stay, of size 1.

    Keras 3 passes `(inputs, mask)`, Keras 2 `(inputs, reduction_axes, keep_dims, mask=)`.
    """
    if not is_keras_2():
        return list(layer._reduction_axes), arguments[0] if arguments else mask, False
    given = {**dict(zip(("reduction_axes", "keep_dims"), arguments, strict=False)), **options}
    return list(given["reduction_axes"]), mask, given["keep_dims"]


def comes_with_keras(kind: type) -> bool:
    """Whether a class is Keras' own, of either package."""
    return kind.__module__.startswith(("keras.", "tf_keras."))


def metrics_inside(metric: Any) -> Sequence[Any] | None:
    """The metrics that Keras 3's `compile` puts into a container; None for a metric itself."""
    return None if is_keras_2() else getattr(metric, "metrics", None)


def results_of_evaluate(model: Any, logs: dict[str, Any]) -> Any:
    """What `model.evaluate` returns where it does not return these logs."""
    if not is_keras_2():
        return model._flatten_metrics_in_order(logs)
    values = [logs[name] for name in model.metrics_names if name in logs]
    return values[0] if len(values) == 1 else values


def trains_with_stock_step(model: Any) -> bool:
    """Whether `fit` calls Keras' own `train_step`, which gives the gradients to `model.optimizer`."""
    return getattr(type(model), "train_step", None) is keras().Model.train_step


def sees_gpus() -> bool:
    """Whether TensorFlow may use a GPU, so that XLA compiles for it."""
    return bool(tf.config.get_visible_devices("GPU"))


def in_xla_context() -> bool:
    """Whether what is being traced goes into a function with `jit_compile=True`."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


_CALLS = re.compile("(Stateful|Stateless)?(If|Case|While|For|PartitionedCall)$")


def op_types(graph: Any) -> set[str]:
    """The types of all operations of a graph, and of the functions that it calls, such as the branches of a cond."""
    operations = graph.get_operations()
    types = {op.type for op in operations}
    waiting = [op.node_def for op in operations if _CALLS.match(op.type)]
    called = {""}
    while waiting:
        node = waiting.pop()
        types.add(node.op)
        names = {
            each.name for value in node.attr.values() for each in (value.func, *value.list.func)
        } - called
        called |= names
        for function in map(graph._get_function, names):
            waiting += [] if function is None else function.definition.node_def
    return types
