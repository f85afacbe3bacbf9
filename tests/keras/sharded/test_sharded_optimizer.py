"""ShardedOptimizer: the weights are those of DistributedOptimizer, and each rank holds a part of the state."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tfddl import _compat

pytestmark = pytest.mark.skipif(_compat.is_keras_2(), reason="ShardedOptimizer is for Keras 3")
SHAPES = (37, 11), (130,), (), (2, 64)
STEPS = 4


def new(hvd, sharded, kind="Adam", wrapped=None, **options):
    """The optimizer; `wrapped` are options of the wrapper."""
    import keras

    wrap = hvd.ShardedOptimizer if sharded else hvd.DistributedOptimizer
    return wrap(getattr(keras.optimizers, kind)(0.01, **options), **(wrapped or {}))


def variables_of(dtypes=("float32",)):
    import keras

    random = np.random.default_rng(5)
    return [
        keras.Variable(random.normal(size=shape), dtype=dtypes[index % len(dtypes)], name=f"v{index}")
        for index, shape in enumerate(SHAPES)
    ]


def gradients_of(hvd, variables, step):
    random = np.random.default_rng((hvd.rank(), step))
    return [tf.cast(random.normal(size=each.shape), each.dtype) for each in variables]


def trained(hvd, optimizer, jit_compile=False, dtypes=("float32",), steps=STEPS):
    variables = variables_of(dtypes)
    optimizer.build(variables)

    @tf.function(jit_compile=jit_compile)
    def train(*gradients):
        optimizer.apply(gradients, variables)

    for step in range(steps):
        train(*gradients_of(hvd, variables, step))
    return variables


def values(variables):
    return [tf.convert_to_tensor(each).numpy() for each in variables]


def check_equal(hvd, found, expected, tolerance=0.0):
    found, expected = values(found), values(expected)
    text = [each.tobytes() for each in found]
    assert hvd.allgather_object(text) == [text] * hvd.size()
    for one, other in zip(found, expected, strict=True):
        if tolerance:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(one, other)


@on_ranks(1, 2, 3)
@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", "RMSprop", "Adagrad", "Nadam", "Lion", "Ftrl", "Adadelta", "Adamax"]
)
def test_each_kind_has_the_same_bits(hvd, kind):
    options = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
    optimizer = new(hvd, True, kind, **options)
    check_equal(hvd, trained(hvd, optimizer), trained(hvd, new(hvd, False, kind, **options)))
    slots = [slot for slot in optimizer.variables if slot.shape.rank]
    whole = sum(int(np.prod(shape)) for shape in SHAPES) * len(slots) // len(SHAPES)
    mine = sum(slot.shape[0] for slot in slots)
    counts = hvd.allgather_object(mine)
    assert sum(counts) == whole
    assert max(counts) <= whole / hvd.size() + 64 * len(slots)


@on_ranks(2, 3)
@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"clipvalue": 0.5},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
        {"gradient_accumulation_steps": 2},
        {"wrapped": {"backward_passes_per_step": 2}},
        {"wrapped": {"op": "Sum", "gradient_predivide_factor": 1.0}},
        {"wrapped": {"gradient_predivide_factor": 2.0}},
        {"wrapped": {"compression": "bf16"}},
        {"wrapped": {"compression": "int8"}},
        {"wrapped": {"compression": "PowerSGD"}},
    ],
    ids=str,
)
def test_each_option_has_the_same_bits(hvd, options):
    wrapped = dict(options.get("wrapped", {}))
    if "op" in wrapped:
        wrapped["op"] = hvd.Sum
    if "compression" in wrapped:
        name = wrapped["compression"]
        wrapped["compression"] = getattr(hvd.Compression, name) if name.islower() else hvd.PowerSGD(rank=1)
    options = {**options, "wrapped": wrapped}
    sharded, plain = new(hvd, True, **options), new(hvd, False, **options)
    found, expected = trained(hvd, sharded), trained(hvd, plain)
    check_equal(hvd, found, expected)
    sharded.finalize_variable_values(found)  # with use_ema the average
    plain.finalize_variable_values(expected)
    check_equal(hvd, found, expected)


@on_ranks(2, 3)
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_norms_are_those_of_whole_gradients(hvd, clip, jit_compile):
    options = {clip: 0.3, "kind": "SGD"}
    if hvd.rank() == 1:
        new(hvd, False, "SGD")  # the next optimizer of this rank has another name
    found = trained(hvd, new(hvd, True, **options), jit_compile)
    check_equal(hvd, found, trained(hvd, new(hvd, False, **options), jit_compile), 1e-6)
    unclipped = values(trained(hvd, new(hvd, False, "SGD")))
    assert not np.allclose(values(found)[0], unclipped[0], atol=1e-3)


@on_ranks(2)
def test_dtypes_and_exclusions(hvd):
    """Several dtypes at once; weight decay leaves a variable out by its name."""
    dtypes = ("bfloat16", "float32", "float64", "float16")
    options = {"kind": "AdamW", "weight_decay": 0.1}
    found = []
    for sharded in (True, False):
        optimizer = new(hvd, sharded, **options)
        optimizer.exclude_from_weight_decay(var_names=["v1"])
        found.append(trained(hvd, optimizer, dtypes=dtypes))
    check_equal(hvd, *found)
    names = [
        [slot.path.split("/")[-1] for slot in optimizer.variables[2:]]
        for optimizer in (new(hvd, each) for each in (True, False))
        if optimizer.build(variables_of()) is None
    ]
    assert names[0] == names[1]


@on_ranks(2)
def test_variables_of_tensorflow_that_are_built_in_a_function(hvd):
    found, names = [], []
    for sharded in (True, False):
        variables = [tf.Variable(np.ones(shape, "float32")) for shape in SHAPES]
        optimizer = new(hvd, sharded)

        @tf.function
        def train(*gradients, optimizer=optimizer, variables=variables):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        for step in range(STEPS):
            train(*gradients_of(hvd, variables, step))
        found.append(variables)
        names.append([slot.path.split("/")[-1] for slot in optimizer.variables[2:]])
    check_equal(hvd, *found)
    assert names[0] == names[1]


@on_ranks(1, 2)
def test_missing_sparse_and_reduced_gradients(hvd):
    import keras

    found = []
    for sharded in (True, False):
        table, weight, unused = (keras.Variable(np.ones(shape)) for shape in ((50, 3), (5,), (2,)))
        optimizer = new(hvd, sharded)
        for step in range(STEPS):
            with tf.GradientTape() as tape:
                rows = tf.gather(tf.convert_to_tensor(table.value), [1 + hvd.rank(), 2, step])
                loss = tf.reduce_sum(rows * (step + 1.0)) + tf.reduce_sum(weight.value * hvd.rank())
            gradients = tape.gradient(loss, [table.value, weight.value, unused.value])
            gradients[0] = tf.IndexedSlices(
                tf.gather(gradients[0], [1, 2, step + 5]), [1, 2, step + 5], [50, 3]
            )
            optimizer.apply(gradients, [table, weight, unused])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(weight.value)) * (1.0 + hvd.rank())
        reduced = hvd.DistributedGradientTape(tape).gradient(loss, [weight.value])
        optimizer.apply(reduced, [weight])
        found.append([table, weight, unused])
    check_equal(hvd, *found, tolerance=1e-6)


@on_ranks(2)
@pytest.mark.parametrize("passes", [None, 2])
def test_scaled_losses(hvd, passes):
    """An infinity on one rank makes all skip the step; the scale is the same."""
    import keras

    found = []
    for sharded in (True, False):
        inner = keras.optimizers.Adam(0.01, gradient_accumulation_steps=passes)
        wrap = hvd.ShardedOptimizer if sharded else hvd.DistributedOptimizer
        optimizer = wrap(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0))
        variables = variables_of()
        optimizer.build(variables)
        for step in range(STEPS):
            gradients = gradients_of(hvd, variables, step)
            if step == 1 and hvd.rank() == 1:
                gradients[0] = gradients[0] * np.inf
            optimizer.apply(gradients, variables)
        assert float(np.asarray(optimizer.dynamic_scale)) == 4.0
        found.append(variables)
    check_equal(hvd, *found)


@on_ranks(3)
def test_a_process_set(hvd):
    """Its members share the state; a rank outside holds all of it and trains alone."""
    pair = hvd.add_process_set([0, 2])
    options = {"wrapped": {"process_set": pair}}
    optimizer = new(hvd, True, **options)
    found = values(trained(hvd, optimizer))
    for one, other in zip(found, values(trained(hvd, new(hvd, False, **options))), strict=True):
        np.testing.assert_array_equal(one, other)
    assert hvd.allgather_object(optimizer.variables[2].shape[0]) == [256, 407, 151]
    hvd.remove_process_set(pair)


@on_ranks(2)
def test_broadcasts_leave_slices_alone(hvd):
    optimizer = new(hvd, True)
    trained(hvd, optimizer)
    before = values(optimizer.variables)
    optimizer.learning_rate.assign(0.5 + hvd.rank())
    hvd.broadcast_variables(optimizer.variables, root_rank=1)
    before[1] = np.float32(1.5)
    for one, other in zip(values(optimizer.variables), before, strict=True):
        np.testing.assert_array_equal(one, other)


@on_ranks(2)
def test_rates_and_classes_of_ones_own(hvd):
    """Keras would need classes and configurations for a copy that it makes by itself; the optimizer is tried without."""
    import keras

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.01 / (1.0 + tf.cast(step, "float32"))

    class Doubled(keras.optimizers.SGD):
        def __init__(self, base):
            super().__init__(2 * base)

    for rate in (lambda: 0.01, Schedule()):
        both = [
            wrap(keras.optimizers.Adam(rate)) for wrap in (hvd.ShardedOptimizer, hvd.DistributedOptimizer)
        ]
        check_equal(hvd, *(trained(hvd, each, steps=2) for each in both))
    with pytest.raises(ValueError, match=r"let its get_config\(\) return .* with TypeError: .*__init__"):
        hvd.ShardedOptimizer(Doubled(0.1))


@on_ranks(2)
def test_refusals(hvd, tmp_path):
    import keras

    for kind in ("Lamb", "Adafactor", "Muon"):
        if hasattr(keras.optimizers, kind):
            with pytest.raises(ValueError, match="looks at whole variables: use DistributedOptimizer"):
                new(hvd, True, kind)
    if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
        with pytest.raises(ValueError, match="slots of this optimizer begin as copies"):
            new(hvd, True, "ScheduleFreeAdamW")
    with pytest.raises(ValueError, match=r"Received: op=Adasum"):
        new(hvd, True, wrapped={"op": hvd.Adasum})
    optimizer = new(hvd, True)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.ShardedOptimizer(optimizer)
    with pytest.raises(ValueError, match="sharded=True: call DistributedOptimizer once"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(TypeError, match=r"takes an optimizer of Keras 3: .* Received: optimizer='adam'"):
        hvd.ShardedOptimizer("adam")
    variables = variables_of()
    optimizer.build(variables)
    with pytest.raises(ValueError, match=r"PartialDistributedOptimizer\. Received: register_local_var\(v0\)"):
        optimizer.register_local_var(variables[0])
    weight = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = weight * 2.0
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(weight)
    with pytest.raises(ValueError, match="the gradient of a local source"):
        optimizer.apply(tape.gradient(loss, [weight]), [weight])
    with pytest.raises(
        ValueError, match=r"needs all ranks, as each updates a slice .*hvd\.data\.steps_per_epoch"
    ):
        hvd.join()
    with pytest.raises(ValueError, match=r"hold the slices of one rank: use hvd\.callbacks\.Sharded"):
        tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "file"))
