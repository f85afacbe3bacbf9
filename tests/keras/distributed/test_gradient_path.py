"""The files that a gradient passes between an optimizer's `apply` and the op."""

import sys
from itertools import groupby
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from tests.harness import on_ranks

MAKERS = {
    "optimizer": lambda: keras.optimizers.SGD(0.1),
    "accumulating": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    "multi": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), {})
    ),
}


def calls_of_the_op(run):
    """For each call of a native op: the tfddl files on the stack, outermost first, each run of calls in a file once."""
    import tfddl

    package = str(Path(tfddl.__file__).parent)
    found = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename == f"{package}/ops/native.py":
            stack = []
            while frame is not None:
                stack.append(frame.f_code.co_filename)
                frame = frame.f_back
            ours = [file.removeprefix(f"{package}/") for file in reversed(stack) if file.startswith(package)]
            found.append([file for file, _ in groupby(ours)])

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("kind", MAKERS)
@on_ranks(1)
def test_at_most_six_files_and_none_twice(hvd, kind):
    if kind == "multi" and not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("This Keras has no MultiOptimizer.")
    optimizer = hvd.DistributedOptimizer(MAKERS[kind]())
    variables = [keras.Variable([1.0, 2.0], name="a"), keras.Variable([3.0], name="b")]
    optimizer.build(variables)
    grads = [tf.constant([1.0, 1.0]), None]
    paths = calls_of_the_op(lambda: [optimizer.apply(grads, variables) for _ in range(2)])
    ways = [path for path in paths if "gradients/reduction.py" in path]
    assert ways, paths
    for way in ways:
        assert way[0].startswith("keras/distributed/") and way[-1] == "ops/native.py"
        assert len(way) <= 6 and len(set(way)) == len(way), way


def test_the_table_of_patches_names_every_overridden_method():
    from tfddl.keras.distributed import base_optimizer, distribute, loss_scale_optimizer, patches

    optimizers = keras.optimizers
    classes = {
        base_optimizer.Distributed: optimizers.Optimizer,
        distribute.DistributedMulti: optimizers.Optimizer,
        loss_scale_optimizer.DistributedLossScale: optimizers.LossScaleOptimizer,
    }
    for ours, original in classes.items():
        overridden = [
            name for name, value in vars(ours).items() if callable(value) and hasattr(original, name)
        ]
        assert overridden and all(f".{name}`" in patches.__doc__ for name in overridden), overridden
