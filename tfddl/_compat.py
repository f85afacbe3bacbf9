"""All that depends on the version of TensorFlow or Keras, on the Python side."""

import functools
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

OLDEST_KERAS = (3, 4)


@functools.cache
def keras() -> ModuleType:
    """The `keras` package, once it is known to be one that tfddl works with.

    Imported here and not at the top of a file, so that a program that uses the tape alone needs no Keras.

    Raises:
        ImportError: If Keras is older than 3.4 or does not run on TensorFlow.
    """
    import keras

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version < OLDEST_KERAS:
        raise ImportError(
            f"tfddl needs Keras >= 3.4: pip install -U keras. Received: keras {keras.__version__}"
        )
    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            "tfddl needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()!r}"
        )
    return keras


def tells_epoch_begin() -> bool:
    """Whether `fit` calls a PyDataset's `on_epoch_begin` (Keras >= 3.5)."""
    return hasattr(keras().utils.PyDataset, "on_epoch_begin")


def is_keras_variable(value: object) -> bool:
    """Whether `value` is a variable of Keras 3. In Keras 3.4 those are no instances of `keras.Variable`."""
    return hasattr(value, "path") and callable(getattr(value, "assign", None))


def is_variable(value: object) -> bool:
    """Whether `value` is one variable, of TensorFlow or of Keras."""
    return isinstance(value, tf.Variable) or is_keras_variable(value)


def reference(value: Any) -> Any:
    """Tells variables and tensors apart: a Keras variable and the tf.Variable inside are the same one."""
    inner = getattr(value, "value", None)  # of a tf.Variable a method
    return (value if inner is None or callable(inner) else inner).ref()


def is_layer(value: object) -> bool:
    """Whether `value` is a layer of Keras 3."""
    return isinstance(value, keras().layers.Layer)


def is_keras_optimizer(value: object) -> bool:
    """Whether `value` is an optimizer of Keras 3."""
    return isinstance(value, keras().optimizers.Optimizer)


def is_loss_scale_optimizer(value: object) -> bool:
    """Whether `value` is Keras' LossScaleOptimizer, which wraps another optimizer."""
    return isinstance(value, keras().optimizers.LossScaleOptimizer)


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
    if has_inner_optimizers(optimizer) or not is_keras_variable(getattr(optimizer, "_learning_rate", None)):
        return None
    return learning_rate(optimizer)


def momentum_with_learning_rate(optimizer: Any) -> list[Any]:
    """The slots of an optimizer that hold sums of `learning_rate * gradient`."""
    optimizers = keras().optimizers
    optimizer = innermost(optimizer)
    ours = getattr(optimizer, "momentum_holds_learning_rate", False)
    if not ours and not isinstance(optimizer, (optimizers.SGD, optimizers.RMSprop)):
        return []
    # `momentums` in SGD, `_momentums` in RMSprop; neither before the optimizer is built.
    slots = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [slot for slot in slots if slot is not None]


def fit_params(callback: Any) -> dict[str, Any]:
    """What `fit` has told a callback by `set_params`: empty before. Keras < 3.5 has no attribute until then."""
    return getattr(callback, "params", None) or {}


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
