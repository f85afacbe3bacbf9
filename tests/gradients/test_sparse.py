"""Embeddings: the gradients of all ranks together are those of one process with the N-times batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks

WORDS, WIDTH, BATCH = 12, 3, 4
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.1),
    "clipnorm": lambda: keras.optimizers.Adam(0.1, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(1.0, momentum=0.9, global_clipnorm=0.05),
    "accumulating": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, clipvalue=0.02),
}


def make_model():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), dtype="int32")
    hidden = keras.layers.Embedding(WORDS, WIDTH)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(hidden)))


def data(size, step):
    """Batches of all ranks, full of repetitions: five of few words each."""
    generator = np.random.default_rng(step)
    return generator.integers(0, 5, (size, BATCH, 5)), generator.standard_normal((size, BATCH, 1)).astype("f")


def train(optimizer, tape_type, choose, dense):
    model = make_model()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tape_type() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        if dense:  # Keras does not add up rows of one index, so that the reference must not have any
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        else:
            assert isinstance(gradients[0], tf.IndexedSlices)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for number in range(6):
        step(*choose(number))
    return [np.array(weight) for weight in model.get_weights()]


@pytest.mark.parametrize("by", ["tape", "optimizer"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@on_ranks(2, full=(1, 3))
def test_training_equals_one_process(hvd, optimizer, by):
    size = hvd.size()

    def mine(step):
        x, y = data(size, step)
        return tf.constant(x[hvd.rank()]), tf.constant(y[hvd.rank()])

    def everybodys(step):
        x, y = data(size, step)
        return tf.constant(x.reshape(-1, 5)), tf.constant(y.reshape(-1, 1))

    expected = train(OPTIMIZERS[optimizer](), tf.GradientTape, everybodys, dense=True)
    ours = OPTIMIZERS[optimizer]()
    if by == "tape":
        weights = train(ours, lambda: hvd.DistributedGradientTape(tf.GradientTape()), mine, dense=False)
    else:
        weights = train(hvd.DistributedOptimizer(ours), tf.GradientTape, mine, dense=False)
    for ours_, reference in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours_, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@on_ranks(2, full=(1,))
def test_mixed_precision_through_fit(hvd, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = make_model()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = data(hvd.size(), 0)
    history = model.fit(x[hvd.rank()], y[hvd.rank()], epochs=30, verbose=0).history["loss"]
    assert history[-1] < history[0]
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    for other in np.split(hvd.allgather(weights).numpy(), hvd.size()):
        np.testing.assert_array_equal(other, weights)


@on_ranks(2)
def test_a_tape_and_an_optimizer_reduce_once(hvd):
    v = tf.Variable(tf.zeros([4, 1]))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.build([v])

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            y = tf.reduce_sum(tf.gather(v, [0, 0, 2]))
        gradients = [tape.gradient(y, v)]
        optimizer.apply_gradients(zip(gradients, [v], strict=True))

    step()
    tf.function(step)()
    np.testing.assert_allclose(v, [[-8.0], [0.0], [-4.0], [0.0]])


@on_ranks(2)
def test_clipped_slices_come_from_a_reduction(hvd):
    from tfddl.gradients import reduced_marks, reduction

    @tf.function
    def step(rows):
        (reduced,) = reduction.reduce_gradients([tf.IndexedSlices(rows, [0, 0], [4, 1])], owner="clip")
        assert reduced_marks.is_reduced(reduced)
        clipped, _ = tf.clip_by_global_norm([reduced], 1.0)
        assert not reduced_marks.is_reduced(clipped[0]) and reduced_marks.comes_from_a_reduction(clipped)
        return clipped[0].values

    step(tf.ones([2, 1]))


@on_ranks(2)
def test_missing_gradients_of_different_variables(hvd):
    """Of the same shape, so that only their slot tells them apart."""
    from tfddl.gradients import reduction

    x = tf.ones([2])
    gradients = [None, x] if hvd.rank() == 0 else [x, None]

    def step():
        return reduction.reduce_gradients(gradients, owner="slots")[hvd.rank()]

    for run in (step, tf.function(step)):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"dense gradients \[1\] of 2"):
            run()


@on_ranks(2)
def test_tables_with_different_numbers_of_rows(hvd):
    """Rank 0 cannot use the other rank's row 4."""
    tables = [tf.Variable(tf.ones((rows, 2))) for rows in (8, 4 + 4 * hvd.rank())]

    def step(table):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.gather(table, [0, 4 * hvd.rank()]))
        return tape.gradient(loss, table)

    for run in (step, tf.function(step)):
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"rank 0: number 0 of 1, variable of 4 rows; rank 1: number 0 of 1, variable of 8 rows",
        ):
            run(tables[1])
        np.testing.assert_array_equal(run(tables[0]).indices, [0, 4])


@on_ranks(2, full=(3,))
def test_sparse_here_and_dense_there(hvd):
    """The same error on all, in eager mode too, where the gradients of a step go one after the other."""
    table, weight = tf.Variable(tf.ones((4, 2))), tf.Variable(tf.ones((2,)))

    def step(choose):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(choose(table) * weight)
        return tape.gradient(loss, [table, weight])

    def rows(x):
        return tf.gather(x, [0, 1])

    mixed = rows if hvd.rank() == 0 else (lambda x: x)
    for run in (step, tf.function(step)):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"dense gradients \[1\] of 2"):
            run(mixed)
        sparse, dense = step(rows)
        assert isinstance(sparse, tf.IndexedSlices)
        np.testing.assert_array_equal(dense, [2.0, 2.0])
