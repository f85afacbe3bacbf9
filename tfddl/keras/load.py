"""`load_model`: loads a model from a file and distributes its optimizer."""

import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py  # type: ignore[import-untyped]

from tfddl import _compat
from tfddl.keras.optimizer import DistributedOptimizer
from tfddl.ops.compression import Compression, Compressor


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    **options: Any,
) -> Any:
    """Loads a model that Keras has saved, and distributes its optimizer.

    The optimizer keeps its slots and its iteration, so training continues where it stopped. Call this on all ranks, or on
    the root alone if a `tfddl.callbacks.BroadcastGlobalVariablesCallback` follows. A model that was saved without being
    compiled has no optimizer and is returned unchanged.

    Args:
        filepath: A `.keras` or `.h5` file, as `keras.models.load_model` takes it.
        custom_optimizers: Optimizer classes of your own that the file may name. Defaults to none.
        custom_objects: Other names in the file, as `keras.models.load_model` takes them. Defaults to none.
        compression: See `tfddl.DistributedOptimizer`.
        **options: The other arguments of `tfddl.DistributedOptimizer`. The file does not contain them.

    Returns:
        The model, compiled as it was.

    Raises:
        TypeError: If `custom_optimizers` holds anything but optimizer classes; and see `tfddl.DistributedOptimizer`.
        ValueError: If Keras cannot load the file; and see `tfddl.DistributedOptimizer`.
    """
    keras = _compat.keras()
    _register_own_classes()
    objects = {each.__name__: each for each in _checked_classes(custom_optimizers)}
    with _own_copy(filepath) as path:
        model = keras.models.load_model(path, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        # Keras 2 restores the slots of an .h5 file by itself.
        if not _compat.is_keras_2() and model.optimizer.built and not model.optimizer._trainable_variables:
            _restore_from_h5(model, filepath)
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model


def _register_own_classes() -> None:
    """Registers tfddl's layer and optimizers with Keras, as a file may name them."""
    importlib.import_module("tfddl.keras.sync_batch_normalization")
    if not _compat.is_keras_2():
        importlib.import_module("tfddl.keras.optimizers")


@contextmanager
def _own_copy(filepath: Any) -> Iterator[Any]:
    """The path of this rank's copy, where Keras unpacks a file's weights in the folder of the file, and ranks would meet."""
    if not (
        _compat.unpacks_beside_the_file() and str(filepath).endswith(".keras") and os.path.isfile(filepath)
    ):
        yield filepath
        return
    with tempfile.TemporaryDirectory() as folder:
        yield shutil.copy(filepath, folder)


def _restore_from_h5(model: Any, filepath: Any) -> None:
    """Makes the model's optimizer again, with the slots of an .h5 file.

    Keras builds it without variables, so that it can neither restore its slots nor train.
    """
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    with h5py.File(filepath, "r") as file:
        group = file["optimizer_weights"]
        # h5 cuts a long list of names in pieces, weight_names0, weight_names1, ...
        pieces = [attribute for attribute in group.attrs if attribute.startswith("weight_names")]
        pieces.sort(key=lambda attribute: int(attribute.removeprefix("weight_names") or 0))
        names = [name for piece in pieces for name in group.attrs[piece]]
        values = [group[name][()] for name in names]
    # Equal if the model was saved before its optimizer had slots.
    if len(values) != len(optimizer.variables):
        optimizer.build(model.trainable_variables)
    for variable, value in zip(optimizer.variables, values, strict=True):
        variable.assign(value)
    model.optimizer = optimizer


def _checked_classes(classes: Any) -> list[type]:
    listed = (
        list(classes) if isinstance(classes, (list, tuple, set)) else [] if classes is None else [classes]
    )
    bases = _compat.optimizer_classes()
    if not all(isinstance(each, type) and issubclass(each, bases) for each in listed):
        raise TypeError(
            "custom_optimizers is a list of classes, subclasses of keras.optimizers.Optimizer: pass [MyOptimizer], not an "
            "instance or a name. "
            f"Received: custom_optimizers={classes!r}"
        )
    return listed
