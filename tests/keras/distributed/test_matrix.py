"""Every optimizer that Keras ships, times what can be switched on: N ranks against one process, pair by pair.

Each pair of options, as Lion with accumulation or jit_compile with mixed_bfloat16, occurs in at least one case.
"""

import keras
import numpy as np
import pytest

from tests.harness import on_ranks
from tests.harness.rows import Combination
from tests.keras import support
from tests.keras.pairwise import all_pairs, pairs_of, pairwise

UPDATES = 3
RATE = 0.02
SHIPPED = sorted(
    name
    for name, value in vars(keras.optimizers).items()
    if isinstance(value, type)
    and issubclass(value, keras.optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")  # Those wrap or are wrapped.
)
CLIPPING = {"none": {}, "clipnorm": {"clipnorm": 0.2}, "clipvalue": {"clipvalue": 0.05}}
CLIPPING["global_clipnorm"] = {"global_clipnorm": 0.3}
EXTRA = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.1},
    "ema": {"use_ema": True, "ema_momentum": 0.5},
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
}
# How far weights may be from those of one process, as a part of the way that they have come.
TOLERANCE = {"float64": 1e-7, "float32": 1e-4, "mixed_float16": 5e-3, "mixed_bfloat16": 6e-2}
REDUCTION = {
    "plain": {},
    "predivide": {"gradient_predivide_factor": 3.0},
    "groups": {"groups": 2, "sparse_as_dense": True},
}
PASSES = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}  # Horovod's words for 2
PARAMETERS = {
    "optimizer": SHIPPED,
    "accumulation": [None, 2, 3, "passes"],
    "clipping": list(CLIPPING),
    "precision": list(TOLERANCE),
    "extra": list(EXTRA),
    "mode": ["eager", "graph", "jit"],
    "reduction": list(REDUCTION),
}
# Keras' Muon mixes float32 into float64 in a graph and raises.
IMPOSSIBLE = {frozenset([("optimizer", "Muon"), ("precision", "float64")])}
CASES = pairwise(PARAMETERS, IMPOSSIBLE)
COMPILED = [case for case in CASES if case["mode"] == "jit"]
TRACED = [case for case in CASES if case["mode"] != "jit"]
# XLA takes seconds for each: of the optimizers few, of the other parameters every value.
FEW_COMPILED = [
    Combination(zip(PARAMETERS, case, strict=True))
    for case in (
        ("SGD", None, "none", "float64", "plain", "jit", "plain"),
        ("Adam", 2, "clipnorm", "float32", "weight_decay", "jit", "predivide"),
        ("RMSprop", 3, "clipvalue", "mixed_float16", "ema", "jit", "groups"),
        ("AdamW", "passes", "global_clipnorm", "mixed_bfloat16", "ema_overwrite", "jit", "plain"),
    )
]


def make(optimizer, accumulation, clipping, precision, extra):
    """A plain optimizer, with loss scaling under mixed_float16 as `compile` would give it."""
    options = {"gradient_accumulation_steps": accumulation, **CLIPPING[clipping], **EXTRA[extra]}
    made = getattr(keras.optimizers, optimizer)(RATE, **options)
    return keras.optimizers.LossScaleOptimizer(made, 256.0) if precision == "mixed_float16" else made


def network(precision):
    return support.model(
        keras.mixed_precision.DTypePolicy(precision) if precision.startswith("mixed") else precision
    )


def train(optimizer, precision, arrays, batch, mode):
    """Trains a new model, and ends as `fit` does; returns it."""
    model = network(precision)
    optimizer.build(model.trainable_variables)  # a function compiled by XLA cannot make variables
    support.loop(model, optimizer, arrays, batch, eager=mode == "eager", jit=mode == "jit")
    optimizer.finalize_variable_values(model.trainable_variables)
    return model


def distance(found, expected, start):
    """Of the weights, as a part of the way that training has moved them."""
    way = np.linalg.norm(expected - start)
    assert np.isfinite(found).all() and way > 0
    return np.linalg.norm(found - expected) / way


def name(case):
    return "-".join(map(str, case.values()))


@pytest.mark.parametrize("case", TRACED, ids=name)
@on_ranks(2, full=(1, 3))
def test_equals_one_process(hvd, case):
    check(hvd, case)


@pytest.mark.parametrize("case", FEW_COMPILED, ids=name)
@on_ranks(2, full=(1, 3))
def test_compiled_equals_one_process(hvd, case):
    check(hvd, case)


@pytest.mark.long
@pytest.mark.parametrize("case", COMPILED, ids=name)
@on_ranks(2)
def test_each_pair_compiled_equals_one_process(hvd, case):
    check(hvd, case)


def check(hvd, case, **more):
    """Trains on shards, and on rank 0 on the whole; `more` are options of DistributedOptimizer."""
    *options, mode, reduction = case.values()
    accumulation, precision = options[1], options[3]
    passes = accumulation == "passes"
    options[1] = 2 if passes else accumulation
    dtype = "float32" if precision.startswith("mixed") else precision
    arrays = support.data(hvd.size(), dtype, UPDATES * (options[1] or 1))
    start = support.weights(network(precision))
    optimizer = make(options[0], None if passes else accumulation, *options[2:])
    hvd.DistributedOptimizer(optimizer, **REDUCTION[reduction], **(PASSES if passes else {}), **more)
    mine = support.shard(arrays, hvd.rank(), hvd.size())
    model = train(optimizer, precision, mine, support.BATCH, mode)
    support.check_equal_on_all_ranks(hvd, [*model.variables, *optimizer.variables])
    if hvd.rank() == 0:
        plain = make(*options)
        # Compiled too: XLA rounds 16-bit numbers elsewhere.
        whole = train(plain, precision, arrays, support.BATCH * hvd.size(), mode)
        assert optimizer.iterations.numpy() == plain.iterations.numpy()
        assert distance(support.weights(model), support.weights(whole), start) < TOLERANCE[precision]


def test_each_pair_of_options_occurs():
    assert set().union(*map(pairs_of, CASES)) == set(all_pairs(PARAMETERS)) - IMPOSSIBLE
    assert {"Adam", "Adadelta", "Lion", "SGD"} <= set(SHIPPED)
    for parameter in set(PARAMETERS) - {"optimizer", "mode"}:
        assert {case[parameter] for case in FEW_COMPILED} == set(PARAMETERS[parameter])


@pytest.mark.long
@pytest.mark.parametrize("precision", list(TOLERANCE))
@on_ranks(2)
def test_the_tolerances_notice_a_missing_reduction(hvd, precision):
    """Guards the matrix: with plain optimizers on each rank no optimizer passes."""
    for optimizer in SHIPPED:
        if frozenset([("optimizer", optimizer), ("precision", precision)]) in IMPOSSIBLE:
            continue
        arrays = support.data(2, "float32" if precision.startswith("mixed") else precision, UPDATES)
        start = support.weights(network(precision))
        if hvd.rank() == 0:
            batches = ((support.shard(arrays, 0, 2), support.BATCH), (arrays, 2 * support.BATCH))
            alone, whole = (
                train(make(optimizer, None, "none", precision, "plain"), precision, *part, "eager")
                for part in batches
            )
            far = distance(support.weights(alone), support.weights(whole), start)
            assert far > TOLERANCE[precision], optimizer


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["SGD", "Adadelta", "Adam"])
@on_ranks(2)
def test_the_matrix_notices_a_sum(hvd, optimizer):
    """Clipping and epsilon tell a sum from an average even where an optimizer divides by the gradient's size."""
    case = dict(zip(PARAMETERS, (optimizer, 2, "none", "float64", "plain", "eager", "plain"), strict=True))
    if hvd.rank() == 1:
        check(hvd, case, op=hvd.Sum)
    else:
        with pytest.raises(AssertionError):
            check(hvd, case, op=hvd.Sum)
