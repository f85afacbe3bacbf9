"""All Python code that depends on the version of TensorFlow or Keras."""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.build import support


def is_keras_2() -> bool:
    """Whether `tf.keras`, and so tfddl, uses Keras 2: on TensorFlow 2.15, and with `TF_USE_LEGACY_KERAS=1`."""
    return support.uses_keras_2(tf.__version__)


def restores_after_each_training() -> bool:
    """Whether EarlyStopping restores the best weights at the end of each training: Keras 2.15 does so if it has stopped."""
    return not is_keras_2() or support.major_minor(keras().__version__) >= (2, 16)


@functools.cache
def keras() -> ModuleType:
    """Imports, checks and returns the package behind `tf.keras`: `keras` or `tf_keras`.

    The import is inside the function, so that a program with the tape alone needs no Keras.

    Raises:
        ImportError: Keras is older than 3.4 or does not run on TensorFlow, or `tf_keras` is missing.
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
            "TF_USE_LEGACY_KERAS=1 asks for Keras 2, which is not installed: "
            f"pip install --no-deps tf_keras~={major}.{minor}.0"
        ) from None


def py_dataset() -> Any:
    """The class of datasets that are read by the batch: PyDataset of Keras 3, Sequence of Keras 2."""
    utils = keras().utils
    return utils.Sequence if is_keras_2() else utils.PyDataset


def py_dataset_options(dataset: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a new PyDataset. Those that are None come from `dataset`. Empty in Keras 2, whose `fit` has them.

    Raises:
        ValueError: An argument is given in Keras 2.
    """
    if not is_keras_2():
        return {name: getattr(dataset, name) if value is None else value for name, value in given.items()}
    wrong = {name: value for name, value in given.items() if value is not None}
    if wrong:
        raise ValueError(f"In Keras 2 these are arguments of fit: pass them to fit. Received: {wrong}")
    return {}


def num_batches(dataset: Any) -> int | None:
    """The number of batches of a PyDataset or Sequence. None if it is infinite."""
    if is_keras_2():
        return len(dataset)
    batches: int | None = dataset.num_batches
    return batches


def tells_epoch_begin() -> bool:
    """Whether `fit` calls a PyDataset's `on_epoch_begin` (Keras >= 3.5)."""
    return hasattr(py_dataset(), "on_epoch_begin")


def is_keras_variable(value: object) -> bool:
    """Whether `value` is a variable of Keras 3. In Keras 3.4 variables are no instances of `keras.Variable`."""
    return hasattr(value, "path") and callable(getattr(value, "assign", None))


def is_variable(value: object) -> bool:
    """Whether `value` is a variable of TensorFlow or of Keras."""
    return isinstance(value, tf.Variable) or is_keras_variable(value)


def tf_variable(value: Any) -> Any:
    """The tf.Variable inside a Keras variable. Any other value is returned unchanged."""
    inner = getattr(value, "value", None)  # a method in a tf.Variable
    return value if inner is None or callable(inner) else inner


def path(variable: Any) -> str:
    """The name of a variable, with the names of its layers."""
    return str(getattr(variable, "path", variable.name))


def reference(value: Any) -> Any:
    """A key for a variable or tensor. A Keras variable and the tf.Variable inside it have the same key."""
    return tf_variable(value).ref()


def is_seed_state(variable: Any) -> bool:
    """Whether a variable is the state of a random generator of Keras, such as Dropout's."""
    return path(variable).endswith("seed_generator_state")


def starts_metrics_anew(method: Any) -> bool:
    """Whether a method of Keras' models resets the metrics first: `evaluate`; in newer versions `test_on_batch` too."""
    return "reset_metrics" in inspect.unwrap(method).__code__.co_names


def is_layer(value: object) -> bool:
    """Whether `value` is a layer of Keras 3."""
    return isinstance(value, keras().layers.Layer)


def optimizer_classes() -> tuple[type, ...]:
    """The base classes of the optimizers of the Keras in use."""
    optimizers = keras().optimizers
    return (optimizers.Optimizer, optimizers.legacy.Optimizer) if is_keras_2() else (optimizers.Optimizer,)


def is_keras_optimizer(value: object) -> bool:
    """Whether `value` is an optimizer of the Keras in use."""
    return isinstance(value, optimizer_classes())


def is_legacy_optimizer(value: object) -> bool:
    """Whether `value` is a legacy optimizer of Keras 2, like most optimizers of TensorFlow Addons."""
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
    """The TF1 optimizer inside the wrapper that Keras 2's `compile` makes, which has no public name. Else None."""
    inner = getattr(value, "optimizer", None) if is_keras_2() else None
    return inner if isinstance(inner, tf.compat.v1.train.Optimizer) else None


def is_built(optimizer: Any) -> bool:
    """Whether an optimizer has made its variables. Not for legacy optimizers of Keras 2."""
    return bool(getattr(optimizer, "_built", False) if is_keras_2() else optimizer.built)


def trained_variables(optimizer: Any) -> list[Any]:
    """The variables that an optimizer of Keras 3 was built for; empty before."""
    return list(getattr(optimizer, "_trainable_variables", ()))


def steps_taken(optimizer: Any) -> int:
    """The number of steps of an optimizer, micro-batches too. To read `iterations` of Keras 2 would make the variable."""
    count = step_variable(innermost(optimizer))
    return 0 if count is None else int(tf.convert_to_tensor(count))


def step_variable(optimizer: Any) -> Any:
    """The variable that counts the steps of an optimizer; None if it is not made yet.

    In newer versions of Keras 3 `iterations` is no variable. Keras before 3.5 has no `_iterations`.
    """
    found = getattr(optimizer, "_iterations", None)
    return getattr(optimizer, "iterations", None) if found is None and not is_keras_2() else found


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the variables of an optimizer, unless they exist. A legacy optimizer may have made only some of them."""
    if is_legacy_optimizer(optimizer):
        optimizer._create_all_weights(list(variables))
        inner = innermost(optimizer)
        for spec in inner.optimizer_specs if is_addons_multi_optimizer(inner) else ():
            names = set(spec["weights"])
            build_optimizer(spec["optimizer"], [each for each in variables if each.name in names])
    elif not is_built(optimizer):
        optimizer.build(list(variables))


def innermost(optimizer: Any) -> Any:
    """The optimizer inside all LossScaleOptimizers, which applies the gradients."""
    while is_loss_scale_optimizer(optimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def has_inner_optimizers(value: object) -> bool:
    """Whether `value` is Keras' MultiOptimizer (Keras >= 3.12), which divides variables among several optimizers.

    Some versions have no public name for it, so an attribute decides.
    """
    return hasattr(value, "_inner_optimizers")


def members_of(optimizer: Any) -> list[Any]:
    """The members of a MultiOptimizer of Keras or of TensorFlow Addons; empty for another optimizer.

    A MultiOptimizer of Keras to which a function was given has none before it is built.
    """
    specs = optimizer.optimizer_specs if is_addons_multi_optimizer(optimizer) else ()
    return [*getattr(optimizer, "_inner_optimizers", ()), *(spec["optimizer"] for spec in specs)]


def learning_rate(optimizer: Any) -> float:
    """The current learning rate. float() does not take a variable of Keras 3.4."""
    return float(tf.convert_to_tensor(optimizer.learning_rate))


def settable_learning_rate(optimizer: Any) -> float | None:
    """The learning rate, or None if it cannot be set.

    It cannot be set without an optimizer, in a MultiOptimizer, or if a LearningRateSchedule or a function computes it.
    """
    optimizer = innermost(optimizer)
    if has_inner_optimizers(optimizer) or is_addons_multi_optimizer(optimizer):
        return None
    legacy = is_legacy_optimizer(optimizer)
    rate = getattr(optimizer, "learning_rate" if legacy else "_learning_rate", None)
    return learning_rate(optimizer) if is_variable(rate) else None


def momentum_with_learning_rate(optimizer: Any) -> list[Any]:
    """The slot variables of an optimizer that hold sums of `learning_rate * gradient`, without those of inner optimizers."""
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
    """The number of batches that `fit` runs at once."""
    steps = getattr(model, "_steps_per_execution" if is_keras_2() else "steps_per_execution", None)
    return 1 if steps is None else int(steps)


def batches_done(model: Any, batch: int) -> int:
    """How many batches of an epoch are done, after as many executions as `fit` needs to call on_train_batch_end(batch).

    The number is that of the last batch of the execution, with the oldest Keras 3 that of the first one.
    """
    return batch + (steps_per_execution(model) if _numbers_first_batches() else 1)


@functools.cache
def _numbers_first_batches() -> bool:
    return not is_keras_2() and "end_step" not in inspect.unwrap(keras().Model.fit).__code__.co_varnames


def tunes_steps_per_execution(model: Any) -> bool:
    """Whether Keras 2 changes the number of batches that `fit` runs at once, as their speed suggests."""
    return bool(getattr(model, "autotune_steps_per_execution", False))


def resumed_epoch(model: Any) -> int | None:
    """The epoch at which a BackupAndRestore makes `fit` begin, or None."""
    if not is_keras_2():
        epoch: int | None = getattr(model, "_initial_epoch", None)
        return epoch
    state = getattr(model, "_training_state", None)
    return None if state is None or state._ckpt_saved_epoch < 0 else int(state._ckpt_saved_epoch) + 1


def resume_at(model: Any, epoch: int | None) -> None:
    """Makes `fit` begin with an epoch, as a BackupAndRestore does."""
    if not is_keras_2():
        model._initial_epoch = epoch
    elif epoch != resumed_epoch(model):
        model._training_state = _Resumed(epoch)


class _Resumed:
    """Stands for the object that Keras 2's `fit` asks for its first epoch."""

    def __init__(self, epoch: int | None) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(
        self, steps: Any, initial_epoch: int, mode: Any
    ) -> tuple[int, int]:
        return initial_epoch if self._epoch is None else self._epoch, 0


def fit_params(callback: Any) -> dict[str, Any]:
    """The parameters that `fit` gave a callback by `set_params`, empty before. Keras < 3.5 sets the attribute only then."""
    return getattr(callback, "params", None) or {}


def batch_normalization() -> Any:
    """Keras' BatchNormalization, after a check that it computes its statistics in `_moments`, which subclasses replace.

    Raises:
        ImportError: It has no `_moments`, so a subclass would normalize the batch of each rank separately.
    """
    layer: Any = keras().layers.BatchNormalization
    if not hasattr(layer, "_moments"):
        raise ImportError(
            "tfddl.SyncBatchNormalization does not know this version of Keras, whose BatchNormalization has no `_moments`: "
            "install one that tfddl is tested with, as docs/install.md lists them. "
            f"Received: keras {keras().__version__}"
        )
    return layer


def without_fused_kernel() -> dict[str, Any]:
    """Arguments that make BatchNormalization compute its statistics in `_moments`, not in a fused kernel."""
    return {"fused": False} if is_keras_2() else {}


def moments_arguments(
    layer: Any, arguments: Sequence[Any], mask: Any, options: dict[str, Any]
) -> tuple[list[int], Any, bool]:
    """The arguments of Keras' call of `BatchNormalization._moments`: axes to reduce, mask, and whether to keep the axes.

    Keras 3 passes `(inputs, mask)`, Keras 2 `(inputs, reduction_axes, keep_dims, mask=)`.
    """
    if not is_keras_2():
        return list(layer._reduction_axes), arguments[0] if arguments else mask, False
    given = {**dict(zip(("reduction_axes", "keep_dims"), arguments, strict=False)), **options}
    return list(given["reduction_axes"]), mask, given["keep_dims"]


def build_metrics(model: Any, specs: Any) -> None:
    """Keras 3: makes the variables of the metrics of `compile()`, which Keras else makes while it traces the first step.

    Args:
        model: A compiled model.
        specs: The specs of a batch's tensors, in its structure.
    """
    metrics = model._compile_metrics
    if metrics is None or metrics.built:
        return
    # A model without call(), such as a GAN's, cannot be built so: its train_step has metrics of its own.
    with contextlib.suppress(RuntimeError, ValueError):
        model._symbolic_build(data_batch=specs)


def new_variable(value: np.ndarray, name: str) -> Any:
    """A variable for an optimizer of Keras. The value is no tensor, whose memory Keras might share."""
    if is_keras_2():
        return tf.Variable(value, name=name)
    return keras().Variable(value, dtype=value.dtype.name, name=name)


def variable_like(variable: Any, shape: tuple[int, ...]) -> Any:
    """Keras 3: a variable of another shape, with zeros, and with the dtype and the names of `variable`."""
    made = keras().Variable(
        "zeros", shape=shape, dtype=variable.dtype, name=str(variable.name).split(":")[0].split("/")[-1]
    )
    # Keras names slots by it, those of a tf.Variable, `Variable:0`, with an underscore.
    setattr(made, "path" if "path" in vars(made) else "_path", path(variable).replace(":", "_"))
    made.overwrite_with_gradient = getattr(variable, "overwrite_with_gradient", False)
    return made


def clips_each_batch() -> bool:
    """Whether Keras 3 clips the gradients of each batch, also where the optimizer accumulates them, as 3.4 does."""
    return "_clip_gradients" in keras().optimizers.Optimizer.apply.__code__.co_names


def forget_functions(model: Any) -> None:
    """Makes `fit`, `evaluate` and `predict` trace anew."""
    model.train_function = model.test_function = model.predict_function = None


def epoch_iterator() -> tuple[Any, str]:
    """Keras 3's class of iterators over the batches of an epoch, and its method that begins one; neither is public."""
    kind = importlib.import_module("keras.src.trainers.epoch_iterator").EpochIterator
    if hasattr(kind, "_enumerate_iterator"):
        return kind, "_enumerate_iterator"
    return importlib.import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator, "enumerate_epoch"


def losses_module() -> Any:
    """The module of Keras 3 with the denominators of losses, which has no public name."""
    return importlib.import_module("keras.src.losses.loss")


def compile_loss() -> Any:
    """Keras 3's class of the loss that `compile` makes of the losses it gets, which has no public name."""
    return importlib.import_module("keras.src.trainers.compile_utils").CompileLoss


def saving_module() -> Any:
    """The module of Keras 3 with the functions that save and load, which `Model.save` calls too."""
    return importlib.import_module("keras.src.saving.saving_api")


def unpacks_beside_the_file() -> bool:
    """Whether Keras 3 unpacks the weights of a `.keras` file in the folder of the file; newer ones read them from memory."""
    return not is_keras_2() and not hasattr(
        importlib.import_module("keras.src.saving.saving_lib"), "is_memory_sufficient"
    )


@functools.cache
def divides_activity_losses() -> bool:
    """Whether Keras 3 divides the loss of an `activity_regularizer` by the number of rows, as newer ones do."""
    layer = keras().layers.ActivityRegularization(l1=1.0)
    layer(tf.ones([2, 1]))
    return float(layer.losses[0]) == 1.0


def batches_before_training() -> int:
    """The number of batches that Keras 3 reads from a generator before `fit` begins."""
    utils = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
    number: int = utils.NUM_BATCHES_FOR_TENSOR_SPEC
    return number


def validate_with(model: Any, batches: Callable[[], Iterator[Any]]) -> None:
    """Has the validation of Keras 3's `fit` that begins read from here, in place of its generator."""
    epoch_iterator = model._eval_epoch_iterator
    adapter = epoch_iterator.data_adapter
    adapter.generator = batches if callable(adapter.generator) else batches()  # Keras 3.4 iterates over it
    epoch_iterator._current_iterator = None  # Keras 3.4 would go on with that of the validation before


def comes_with_keras(kind: Any) -> bool:
    """Whether a class or a function comes from `keras` or `tf_keras`."""
    return kind.__module__.startswith(("keras.", "tf_keras."))


def metrics_inside(metric: Any) -> Sequence[Any] | None:
    """The metrics inside a container of Keras 3's `compile`. None for a single metric."""
    return None if is_keras_2() else getattr(metric, "metrics", None)


def inputs_of(model: Any) -> Sequence[Any]:
    """The symbolic inputs of a model; none of a Sequential that is not built, for which Keras 3.4 raises an error."""
    try:
        return model.inputs or ()
    except (AttributeError, ValueError):
        return ()


def aggregates_added_losses() -> bool:
    """Whether Keras adds up the losses of `add_loss` in a method, as Keras 3.8 and newer."""
    return hasattr(keras().Model, "_aggregate_additional_loss")


def metrics_that_hold(metric: Any) -> Sequence[Any]:
    """The metrics inside a metric of Keras 3, if it has no other variables than theirs."""
    if is_keras_2() or getattr(metric, "_variables", None) or any(map(is_variable, vars(metric).values())):
        return ()
    return getattr(metric, "_metrics", ())


def results_of_evaluate(model: Any, logs: dict[str, Any]) -> Any:
    """The return value of `model.evaluate` for these logs, without `return_dict`."""
    if not is_keras_2():
        return model._flatten_metrics_in_order(logs)
    values = [logs[name] for name in model.metrics_names if name in logs]
    return values[0] if len(values) == 1 else values


def tells_weights(model: Any) -> bool:
    """Whether a model tells its weights. A model of Keras 2 does not, while a Sequential inside it is not built."""
    try:
        _ = model.weights
    except ValueError as error:
        if "have not yet been created" not in str(error):
            raise
        return False
    return True


def trains_with_stock_step(model: Any) -> bool:
    """Whether `fit` calls Keras' own `train_step`, which passes the gradients to `model.optimizer`."""
    return getattr(type(model), "train_step", None) is keras().Model.train_step


def sees_gpus() -> bool:
    """Whether TensorFlow may use a GPU, so that XLA compiles for it."""
    return bool(tf.config.get_visible_devices("GPU"))


def eager_device() -> str | None:
    """The device that `tf.device` has chosen for eager operations of this thread; None without one."""
    context = importlib.import_module("tensorflow.python.eager.context").context()
    return str(context.device_name) or None


def is_recorded(tensor: Any) -> bool:
    """Whether a tf.GradientTape would record an operation on this tensor now."""
    record = importlib.import_module("tensorflow.python.eager.record")
    return bool(record.should_record_backprop([tensor]))


def session() -> Any:
    """A session for the current graph of TF1: the default session, that of Keras 2, or a new one."""
    present = tf.compat.v1.get_default_session()
    if present is None and is_keras_2():
        present = tf.compat.v1.keras.backend.get_session(op_input_list=())
    return present or tf.compat.v1.Session()
