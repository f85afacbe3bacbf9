"""The options of tape and optimizer: what travels together, factors, local gradients, and values that have no meaning."""

import inspect
import os
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow

MODES = ("eager", "graph", slow("jit"))


def run(mode, function):
    return function() if mode == "eager" else tf.function(function, jit_compile=mode == "jit")()


def factor(hvd):
    """This rank's own number, and the mean of all."""
    return float(hvd.rank() + 1), (hvd.size() + 1) / 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("compression", ["none", "bf16"])
@on_ranks(2, full=(1, 3))
def test_predivide_keeps_a_sum_finite(hvd, mode, compression):
    """Twice the first factor is above float32's largest number."""
    v, w = tf.Variable([1.0, 1.0]), tf.Variable([1.0])
    large = 2.0**127

    def step(**options):
        with hvd.DistributedGradientTape(
            tf.GradientTape(), compression=getattr(hvd.Compression, compression), **options
        ) as tape:
            y = tf.reduce_sum(v) * large + tf.reduce_sum(w) * float(hvd.rank())
        return tape.gradient(y, [v, w])

    first, second = run(mode, lambda: step(gradient_predivide_factor=4.0))
    np.testing.assert_allclose(first, [large, large])
    np.testing.assert_allclose(second, [(hvd.size() - 1) / 2], rtol=1e-2)
    if hvd.size() > 1:
        assert np.isinf(run(mode, step)[0]).all()


@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2, full=(1, 3))
def test_predivide_of_rows(hvd, mode):
    table = tf.Variable(tf.zeros([4, 1]))
    large = 2.0**127

    def step(**options):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            y = tf.reduce_sum(tf.gather(table, [1])) * large
        return tape.gradient(y, table)

    gradient = run(mode, lambda: step(gradient_predivide_factor=4.0))
    assert isinstance(gradient, tf.IndexedSlices)
    np.testing.assert_allclose(gradient.values, [[large]])
    if hvd.size() > 1:
        assert np.isinf(run(mode, step).values).all()


def requests():
    from tfddl.runtime import stats

    return stats()["requests"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("groups", "expected"),
    [(None, 6), (1, 1), (2, 2), (4, 4), (100, 6), ([], 6), ([[0, 5]], 5), ([[0, 2, 4], [5, 3], []], 3)],
)
@on_ranks(2)
def test_groups_travel_together(hvd, mode, groups, expected):
    """Each gradient alone fills a bucket; what is asked to travel together is one request."""
    own, mean = factor(hvd)
    variables = [tf.Variable(tf.fill([1000], float(i))) for i in range(6)]
    if isinstance(groups, list):
        groups = [[variables[i] for i in group] for group in groups]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), groups=groups) as tape:
            y = tf.add_n([tf.reduce_sum(v * v) for v in variables]) * own
        return tape.gradient(y, variables)

    with mock.patch.dict(os.environ, TFDDL_BUCKET_MB="0.001"):
        before = requests()
        gradients = run(mode, step)
        assert requests() - before == expected
    for i, gradient in enumerate(gradients):
        np.testing.assert_allclose(gradient, np.full(1000, 2 * i * mean))


@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2)
def test_groups_of_several_dtypes_and_of_variables_without_a_gradient(hvd, mode):
    own, mean = factor(hvd)
    wide, narrow, unused = tf.Variable([1.0]), tf.Variable(tf.ones([1], tf.float16)), tf.Variable([1.0])
    layer_variable, other = keras.Variable([1.0]), tf.Variable([1.0])

    def step():
        groups = [[layer_variable, wide, narrow, unused, other]]
        with hvd.DistributedGradientTape(tf.GradientTape(), groups=groups) as tape:
            y = wide * own + tf.cast(narrow, "float32") * own + layer_variable * own
        return tape.gradient(y, [wide, narrow, unused, layer_variable])

    before = requests()
    first, second, none, third = run(mode, step)
    assert requests() - before == 2
    assert none is None
    np.testing.assert_allclose([first, second, third], [[mean]] * 3)


@pytest.mark.parametrize("mode", MODES)
# As in Horovod, each op divides.
@pytest.mark.parametrize(("scale", "op"), [(True, "Sum"), (False, "Average")])
@on_ranks(2, full=(1, 3))
def test_local_sources(hvd, mode, scale, op):
    own, mean = factor(hvd)
    shared, mine, layer = tf.Variable([1.0]), tf.Variable([1.0, 2.0]), keras.layers.Dense(1)
    x = tf.ones([1, 2])

    def step():
        with hvd.PartialDistributedGradientTape(
            tf.GradientTape(persistent=True),
            op=getattr(hvd, op),
            local_layers=layer,
            scale_local_gradients=scale,
        ) as tape:
            tape.register_local_source(mine)
            y = (tf.reduce_sum(shared) + tf.reduce_sum(mine) + tf.reduce_sum(layer(x))) * own
        gradients = tape.gradient(y, [shared, mine, layer.kernel, layer.bias])
        tape.register_local_source(shared)
        return [*gradients, tape.gradient(y, [layer.bias, shared])]

    if mode != "eager":
        layer.build((None, 2))
    first, second, kernel, bias, alone = run(mode, step)
    local = own / hvd.size() if scale else own
    np.testing.assert_allclose(first, [mean * hvd.size() if op == "Sum" else mean])
    np.testing.assert_allclose(second, [local, local])
    np.testing.assert_allclose(kernel, [[local], [local]])
    np.testing.assert_allclose([bias, *alone], [[local]] * 3)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2)
def test_local_rows(hvd, mode):
    table = tf.Variable(tf.zeros([4, 1]))

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            y = tf.reduce_sum(tf.gather(table, [hvd.rank()])) * 3.0
        tape.register_local_source(table)
        return tape.gradient(y, table)

    gradient = run(mode, step)
    assert gradient.indices.numpy().tolist() == [hvd.rank()]
    np.testing.assert_allclose(gradient.values, [[1.5]])


@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2)
def test_different_numbers_of_local_sources(hvd, mode):
    """Each rank owns some tables of a model."""
    own, mean = factor(hvd)
    tables = [tf.Variable(tf.ones([3 + hvd.rank(), 2])) for _ in range(2 - hvd.rank())]
    shared = [tf.Variable([1.0]), tf.Variable([1.0]), tf.Variable(tf.ones([2, 2]))]
    sources = [shared[0], *tables, shared[1], shared[2]]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            y = sum(tf.reduce_sum(each) for each in (shared[0], *tables)) * own
            y += tf.reduce_sum(tf.gather(shared[2], [1])) * own  # sparse, and none for shared[1]
        for table in tables:
            tape.register_local_source(table)
        return [gradient for gradient in tape.gradient(y, sources) if gradient is not None]

    first, *locals_, rows = run(mode, step)
    np.testing.assert_allclose(first, [mean])
    assert len(locals_) == len(tables)
    for table, gradient in zip(tables, locals_, strict=True):
        np.testing.assert_allclose(gradient, np.full(table.shape, own / hvd.size()))
    np.testing.assert_allclose(tf.convert_to_tensor(rows), [[0, 0], [mean, mean]])


@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2)
def test_ranks_that_leave_different_sources_local_get_an_error(hvd, mode):
    variables = [tf.Variable([1.0]), tf.Variable([1.0])]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            y = tf.reduce_sum(variables[0]) + tf.reduce_sum(variables[1])
        tape.register_local_source(variables[hvd.rank()])
        return tape.gradient(y, variables)

    with pytest.raises(tf.errors.FailedPreconditionError, match=r"local ones before \[0\]"):
        run(mode, step)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2, full=(1, 3))
def test_an_embedding_that_is_local_on_one_rank_is_an_error_at_once(hvd, mode):
    """The others would wait for its rows."""
    table, dense = tf.Variable(tf.zeros([2, 1])), tf.Variable([1.0])

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            y = tf.reduce_sum(tf.gather(table, [1])) + tf.reduce_sum(dense)
        if 0 < hvd.rank() == hvd.size() - 1:
            tape.register_local_source(table)
        return tape.gradient(y, [table, dense])

    if hvd.size() == 1:
        run(mode, step)
        return
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"dense gradients \[1\] of 2, sparse \[0\]"):
        run(mode, step)


BAD = {
    "a factor of 0": ({"gradient_predivide_factor": 0}, "Received: gradient_predivide_factor=0"),
    "a negative factor": ({"gradient_predivide_factor": -2.0}, "Received: gradient_predivide_factor=-2.0"),
    "an infinite factor": ({"gradient_predivide_factor": float("inf")}, "factor=inf"),
    "a text for a factor": ({"gradient_predivide_factor": "2"}, "factor='2'"),
    "a factor for a sum": ({"gradient_predivide_factor": 2.0, "op": 1}, "factor=2.0, op=Sum"),
    "no groups": ({"groups": 0}, "Received: groups=0"),
    "fewer groups": ({"groups": -1}, "Received: groups=-1"),
    "a bool": ({"groups": True}, "Received: groups=True"),
    "a flat list": ({"groups": [tf.Variable(1.0)]}, r"Received: groups=\[<tf.Variable"),
    "names": ({"groups": [["kernel"]]}, r"Received: groups=\[\['kernel'\]\]"),
    "both spellings": ({"groups": 2, "num_groups": 3}, "Received: num_groups=3, groups=2"),
    "bad old spelling": ({"num_groups": -3}, "Received: groups=-3"),
    "half a batch": ({"backward_passes_per_step": 2.5}, "Received: backward_passes_per_step=2.5"),
    "a device": ({"device_dense": "/gpu:0"}, "leave device_dense out. Received: device_dense='/gpu:0'"),
    "a sparse device": ({"device_sparse": "/cpu:0"}, "leave device_sparse out"),
}


@pytest.mark.parametrize("what", BAD)
@on_ranks(1)
def test_refusals(hvd, what):
    options, message = BAD[what]
    if "backward_passes_per_step" not in options:
        with pytest.raises(ValueError, match=message):
            hvd.DistributedGradientTape(tf.GradientTape(), **options)
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), **options)


NEITHER = {"sparse_as_dense": "yes", "scale_local_gradients": 2, "average_aggregated_gradients": None}


@pytest.mark.parametrize("option", NEITHER)
@on_ranks(1)
def test_what_is_on_or_off(hvd, option):
    message = rf"{option} is True or False: .* Received: {option}={NEITHER[option]!r}"
    with pytest.raises(TypeError, match=message):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), **{option: NEITHER[option]})
    if option != "average_aggregated_gradients":
        with pytest.raises(TypeError, match=message):
            hvd.DistributedGradientTape(tf.GradientTape(), **{option: NEITHER[option]})
    hvd.DistributedOptimizer(keras.optimizers.SGD(), **{option: np.True_})


@pytest.mark.parametrize("how", ["swapped", "one rank has none", "more"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
@on_ranks(2, full=(1, 3))
def test_ranks_with_other_groups_get_an_error(hvd, mode, how):
    """Of variables of one shape: their buckets look alike, and would be added up crosswise."""
    a, b, c = variables = [tf.Variable([1.0]) for _ in range(3)]
    other = {"swapped": [[b], [a]], "one rank has none": None, "more": [[a], [b], [c]]}[how]
    groups = other if hvd.rank() == hvd.size() - 1 > 0 else [[a], [b]]

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), groups=groups) as tape:
            y = tf.reduce_sum(tf.add_n([v * number for number, v in enumerate(variables)]))
        return tape.gradient(y, variables)

    if hvd.size() == 1:
        np.testing.assert_array_equal(np.ravel(run(mode, step)), [0, 1, 2])
        return
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"ranks? 0.*: .*groups of gradients .*\[0\], \[1\]"
    ):
        run(mode, step)


@on_ranks(1)
def test_more_refusals(hvd):
    v = tf.Variable(1.0)
    with pytest.raises(ValueError, match=r"names a variable twice: .* Received: groups="):
        hvd.DistributedGradientTape(tf.GradientTape(), groups=[[v], [v]])
    for layers in (v, [v], "dense"):
        with pytest.raises(ValueError, match=r"a Keras layer or a list of them: .* Received: local_layers="):
            hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layers)
    with pytest.warns(DeprecationWarning, match="use groups=") as caught:
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)
    assert [each.filename for each in caught] == [__file__]


def test_signatures_list_every_option():
    from tfddl.gradients.gradient_options import GradientKeywords, GradientOptions

    assert list(GradientKeywords.__annotations__) == list(inspect.signature(GradientOptions).parameters)


@on_ranks(1)
def test_an_unknown_option_is_refused_in_the_name_of_the_function(hvd):
    with pytest.raises(TypeError, match=r"DistributedOptimizer\(\) got an unexpected keyword argument 'opp'"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(), opp=hvd.Sum)
    with pytest.raises(TypeError, match=r"DistributedGradientTape\(\) got an unexpected .* 'opp'.* op, "):
        hvd.DistributedGradientTape(tf.GradientTape(), opp=hvd.Sum)
