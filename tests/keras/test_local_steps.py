"""LocalSGD and DiLoCo: the formulas in NumPy, loops and `fit`, on ranks that train alone between exchanges."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tfddl import _compat

ROWS, STEPS = 12, 20


def local_gradient(theta, rank, step):
    """Of 0.5 |theta - target|^2, with a target for each rank and step."""
    return theta - np.sin(np.arange(theta.size, dtype="float32").reshape(theta.shape) + 3 * rank + step)


def in_numpy(size, every, outer_rate, momentum, inner_rate=0.1):
    """Algorithm 1 of arXiv 2311.08105 with SGD inside, and SGD with Nesterov momentum outside."""
    theta = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    velocity = np.zeros_like(theta)
    locals_ = [theta] * size
    for step in range(STEPS):
        locals_ = [w - inner_rate * local_gradient(w, rank, step) for rank, w in enumerate(locals_)]
        if (step + 1) % every == 0 or step + 1 == STEPS:
            gradient = theta - np.mean(locals_, axis=0)
            velocity = momentum * velocity - outer_rate * gradient
            theta = theta + momentum * velocity - outer_rate * gradient
            locals_ = [theta] * size
    return theta


def train(hvd, make, dtype="float32"):
    weight = tf.Variable(np.linspace(-1, 1, 6).reshape(2, 3), dtype=dtype)
    local = make([weight])
    for step in range(STEPS):
        own = tf.cast(weight, tf.float32).numpy()
        weight.assign_sub(tf.cast(0.1 * local_gradient(own, hvd.rank(), step), dtype))
        local.step()
    local.finish()
    found = tf.cast(weight, tf.float32).numpy()
    assert hvd.allgather_object(found.tolist()) == [found.tolist()] * hvd.size()
    assert local.steps == 0
    return found, local


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("every", [1, 6])
def test_diloco_in_numpy(hvd, every):
    import keras

    found, local = train(hvd, lambda variables: hvd.DiLoCo(variables, every))
    np.testing.assert_allclose(found, in_numpy(hvd.size(), every, 0.7, 0.9), rtol=2e-5, atol=1e-6)
    theta, *slots = local.outer_variables
    np.testing.assert_array_equal(np.asarray(theta), found)
    assert any(each.shape == theta.shape for each in slots)

    outer = keras.optimizers.SGD(lambda: 1.0)
    averaged, _ = train(hvd, lambda variables: hvd.LocalSGD(variables, every))
    same, _ = train(hvd, lambda variables: hvd.DiLoCo(variables, every, outer))
    np.testing.assert_allclose(averaged, in_numpy(hvd.size(), every, 1.0, 0.0), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(same, averaged, rtol=2e-5, atol=1e-6)


def streaming_in_numpy(size, every, delay, mixing):
    """Algorithm 2 of arXiv 2501.18512 for two fragments, the rows of the weights, and one exchange of all at the end."""
    theta = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    velocity = np.zeros_like(theta)
    locals_ = [theta.copy() for _ in range(size)]
    under_way = {}

    def outer_step(row, gradient, mixing):
        velocity[row] = 0.9 * velocity[row] - 0.7 * gradient
        theta[row] += 0.9 * velocity[row] - 0.7 * gradient
        for own in locals_:
            own[row] = mixing * own[row] + (1 - mixing) * theta[row]

    def gradient_of(row):
        return theta[row] - np.mean([own[row] for own in locals_], axis=0)

    for step in range(1, STEPS + 1):
        for rank, own in enumerate(locals_):
            own -= 0.1 * local_gradient(own, rank, step - 1)
        if step in under_way:
            outer_step(*under_way.pop(step), mixing)
        if step % (every // 2) == 0:
            row = (step // (every // 2) - 1) % 2
            under_way[step + delay] = row, gradient_of(row)
            if not delay:
                outer_step(*under_way.pop(step), mixing)
    for row, gradient in under_way.values():
        outer_step(row, gradient, mixing)
    for row in range(2):
        outer_step(row, gradient_of(row), 0.0)
    return theta


@on_ranks(1, 2, 3)
@pytest.mark.parametrize(("delay", "mixing"), [(0, 0.5), (2, 0.5), (2, 0.0)])
def test_streaming_in_numpy(hvd, delay, mixing):
    rows = [tf.Variable(row) for row in np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)]
    local = hvd.DiLoCo(rows, 6, fragments=2, delay=delay, mixing=mixing)
    for step in range(STEPS):
        own = np.stack([np.array(row) for row in rows])
        gradient = local_gradient(own, hvd.rank(), step)
        for row, change in zip(rows, gradient, strict=True):
            row.assign_sub(0.1 * change)
        local.step()
    local.finish()
    found = np.stack([row.numpy() for row in rows])
    assert hvd.allgather_object(found.tolist()) == [found.tolist()] * hvd.size()
    expected = streaming_in_numpy(hvd.size(), 6, delay, mixing)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    assert len(local.outer_variables) >= 4


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [([4, 4, 4, 4], 2, [2, 2]), ([100, 1, 1], 3, [1, 1, 1]), ([1, 1, 100], 2, [2, 1]), ([5, 5, 5], 1, [3])],
)
def test_fragments_have_about_equally_many_values(sizes, parts, expected):
    from tfddl.keras.fragments import divided

    variables = [np.zeros(size) for size in sizes]
    found = divided(variables, parts)
    assert [len(part) for part in found] == expected
    assert [id(each) for part in found for each in part] == list(map(id, variables))


@on_ranks(2)
def test_what_travels(hvd):
    """Compression rounds the outer gradient, not theta; variables of 16 bits have a theta of 32. Frozen weights stay."""
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        found, _ = train(hvd, lambda variables, one=compression: hvd.DiLoCo(variables, 6, compression=one))
        np.testing.assert_allclose(found, in_numpy(2, 6, 0.7, 0.9), atol=0.02)
    _, local = train(hvd, lambda variables: hvd.DiLoCo(variables, 6), "bfloat16")
    assert tf.as_dtype(local.outer_variables[0].dtype) == tf.float32

    frozen, one, two = (tf.Variable([value]) for value in (2.0**127, 0.0, 0.0))
    count = tf.Variable([3 + hvd.rank()])
    local = hvd.LocalSGD([tf.Variable([0.0])], 1, statistics=[frozen, one, two, count])
    for differs in (0, 1):
        one.assign([1.0 + differs * hvd.rank()])
        two.assign([1.0 + hvd.rank()])
        local.step()
        found = [float(each.numpy()[0]) for each in (frozen, one, two, count)]
        assert found == [2.0**127, 1.0 + differs / 2, 1.5, 3 + hvd.rank()]  # 2 * 2**127 is infinite


@on_ranks(2)
@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo", "streaming"])
def test_constraints(hvd, kind):
    """Weights, and theta, meet the constraints of their layer after each exchange, and are equal on all ranks."""
    import keras

    layer = keras.layers.Dense(2, kernel_constraint="unit_norm", bias_constraint="non_neg")
    layer.build((None, 3))
    kernel, bias = layer.trainable_variables
    kernel.assign(np.full((3, 2), 3**-0.5))
    bias.assign([1.0, 1.0])
    options = {"fragments": 2, "mixing": 0.5} if kind == "streaming" else {}
    make = hvd.LocalSGD if kind == "LocalSGD" else hvd.DiLoCo
    local = make(layer.trainable_variables, every=2, **options)
    for _ in range(4):
        kernel.assign(np.roll(np.eye(3, 2), hvd.rank(), axis=0))
        bias.assign([0.0, 2.0])  # the outer momentum would move it below 0
        for _ in range(2):
            local.step()
        for weights in (kernel, *getattr(local, "outer_variables", ())[:1]):
            np.testing.assert_allclose(np.linalg.norm(weights, axis=0), 1.0, rtol=1e-5)
        assert np.min(bias) >= 0.0
    local.finish()
    found = [np.array(each).tolist() for each in (kernel, bias)]
    assert hvd.allgather_object(found) == [found] * hvd.size()


@on_ranks(1, 2, 3)
def test_int8(hvd):
    """Each rounding is wrong by less than a scale, the same on all ranks, and right in the mean of many."""
    from tfddl.gradients import quantized

    shapes, set_ = [(700,), (3, 5), ()], hvd.global_process_set
    ranks = [
        [np.random.default_rng((rank, each)).normal(size=shape) for each, shape in enumerate(shapes)]
        for rank in range(hvd.size())
    ]
    mine = [tf.constant(each, tf.float32) for each in ranks[hvd.rank()]]
    exact = [np.mean(each, axis=0) for each in zip(*ranks, strict=True)]
    largest = max(np.abs(each).max() for one in ranks for each in one) / 127
    runs = []
    for seed in range(40):
        found = quantized.mean(mine, "int8", set_, seed)
        assert [each.shape for each in found] == [tf.TensorShape(shape) for shape in shapes]
        text = [each.numpy().tobytes() for each in found]
        assert hvd.allgather_object(text) == [text] * hvd.size()
        for one, expected in zip(found, exact, strict=True):
            assert np.abs(one - expected).max() < 2.001 * largest
        runs.append(found)
    for each, expected in zip(zip(*runs, strict=True), exact, strict=True):
        assert np.abs(np.mean(each, axis=0) - expected).max() < 0.8 * largest
    assert len({run[0].numpy().tobytes() for run in runs}) == 40

    bad = quantized.mean([tf.constant([1.0, np.inf]), tf.zeros([600])], "int8", set_, 0)
    assert np.isnan(bad[0]).any() and not np.asarray(bad[1][-256:]).any()
    for int8 in (hvd.Compression.int8, hvd.Compression.int8()):
        found, _ = train(hvd, lambda variables, one=int8: hvd.DiLoCo(variables, 6, compression=one))
        np.testing.assert_allclose(found, in_numpy(hvd.size(), 6, 0.7, 0.9), atol=0.05)
    with pytest.raises(ValueError, match=r"Compression\.int8 keeps errors from step to step: give it to"):
        hvd.allreduce(tf.ones([2]), compression=hvd.Compression.int8)


@on_ranks(2)
@pytest.mark.parametrize("streams", [False, True])
def test_a_second_run_and_a_late_rank_have_the_same_bits(hvd, streams):
    found = []
    for late in (0.0, 0.0, 0.03):
        rows = [tf.Variable(np.linspace(each, 1, 700, dtype="float32")) for each in range(2)]
        options = {"fragments": 2, "delay": 2, "mixing": 0.5} if streams else {}
        local = hvd.DiLoCo(rows, 6, compression=hvd.Compression.int8, **options)
        for step in range(STEPS):
            if hvd.rank() == 1:
                time.sleep(late)
            for row in rows:
                row.assign_sub(0.1 * local_gradient(row.numpy(), hvd.rank(), step))
            local.step()
        local.finish()
        found.append([row.numpy().tobytes() for row in rows])
    assert found[0] == found[1] == found[2]


def model_and_data(hvd):
    import keras

    keras.utils.set_random_seed(1 + hvd.rank())
    layers = [
        keras.Input((3,)),
        keras.layers.Dense(4, use_bias=False),  # a bias would follow rounding alone, by Adam
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1),
    ]
    x = np.random.default_rng(hvd.rank()).normal(size=(ROWS, 3)).astype("float32")
    return keras.Sequential(layers), x, x.sum(axis=1)


@on_ranks(1, 2, 3)
@pytest.mark.parametrize("first", [False, True])
def test_fit_and_a_loop_agree(hvd, first):
    """In either order with the broadcast; what is left at the end of `fit` is exchanged."""
    import keras

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.DiLoCo(every=5),
        hvd.callbacks.MetricAverageCallback(),
    ]
    model, x, y = model_and_data(hvd)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    listed = [callbacks[1], callbacks[0], callbacks[2]] if first else callbacks
    model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=listed)  # 12 steps
    found = model.get_weights()
    same = [each.tolist() for each in found]
    assert hvd.allgather_object(same) == [same] * hvd.size()

    other, x, y = model_and_data(hvd)
    other.compile(keras.optimizers.Adam(0.01), "mse")
    hvd.broadcast_variables(other.variables, root_rank=0)
    local = hvd.DiLoCo(other.trainable_variables, 5, statistics=other.non_trainable_weights)
    for step in range(12):
        begin = 2 * step % ROWS
        other.train_on_batch(x[begin : begin + 2], y[begin : begin + 2])
        local.step()
    local.finish()
    for one, expected in zip(found, other.get_weights(), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo", "streaming"])
@pytest.mark.parametrize(("first", "sends"), [(False, True), (True, True), (False, False)])
@on_ranks(2)
def test_the_best_weights_are_restored(hvd, first, sends, kind):
    """Each rank restores its own of the best epoch, between two exchanges, and all end with the mean."""
    import keras

    model, x, y = model_and_data(hvd)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    kept = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kept.append(model.get_weights())
            logs["own"] = [0.0, -1.0, 2.0][epoch]

    options = {"every": 10, "fragments": 2, "delay": 1} if kind == "streaming" else {"every": 5}
    local = getattr(hvd.callbacks, "LocalSGD" if kind == "LocalSGD" else "DiLoCo")(**options)
    patience = 1 if _compat.is_keras_2() else 9  # Keras 2 restores only where it stops
    stopping = keras.callbacks.EarlyStopping("own", mode="min", patience=patience, restore_best_weights=True)
    pair = [stopping, local] if first else [local, stopping]
    hvd.broadcast_variables(model.variables, root_rank=0)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if sends else []
    callbacks += [Look(), *pair]
    model.fit(x, y, batch_size=2, epochs=3, verbose=0, callbacks=callbacks)
    best = hvd.allgather_object(kept[1])
    assert not np.array_equal(best[0][0], best[1][0])
    for weight, *owns in zip(model.get_weights(), *best, strict=True):
        np.testing.assert_allclose(weight, np.mean(owns, axis=0), rtol=1e-6, atol=1e-6)
    model.fit(x, y, batch_size=2, verbose=0, callbacks=[local])  # nothing is restored: an exchange follows
    found = model.get_weights()[0].tolist()
    assert hvd.allgather_object(found) == [found] * 2


@on_ranks(2)
@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo"])
def test_moving_averages_of_weights(hvd, kind):
    """Keras ends `fit` with averages of each rank; all ranks get their mean, also if the last step had an exchange."""
    import keras

    model, x, y = model_and_data(hvd)
    optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, "mse")
    local = getattr(hvd.callbacks, kind)(every=3)
    hvd.broadcast_variables(model.variables, root_rank=0)
    for first in (0, 1):  # Keras does the same without a step
        model.fit(x, y, batch_size=2, initial_epoch=first, verbose=0, callbacks=[local])
        averages = hvd.allgather_object(
            [np.array(each) for each in optimizer._model_variables_moving_average]
        )
        assert not np.array_equal(averages[0][0], averages[1][0])
        for weight, *owns in zip(model.trainable_variables, *averages, strict=True):
            np.testing.assert_allclose(weight, np.mean(owns, axis=0), rtol=1e-6)
    found = [each.tolist() for each in model.get_weights()]
    assert hvd.allgather_object(found) == [found] * 2
    if kind == "DiLoCo":
        theta = local.outer_variables[0]
        np.testing.assert_array_equal(theta, np.array(model.trainable_variables[0]))


@on_ranks(2)
def test_executions_of_different_lengths(hvd):
    """An exchange follows the execution within which it was due, as at the end of an epoch with Keras 2."""
    import keras

    weights = [tf.Variable([0.0]), tf.Variable([0.0])]
    one = hvd.DiLoCo(weights, every=4, outer_optimizer=keras.optimizers.SGD(1.0))
    seen = []
    for steps in (2, 1, 2, 2, 1, 2, 2):  # together 2, 3, 5, 7, 8, 10, 12
        for weight in weights:
            weight.assign_add([float(steps * hvd.rank())])
        one.step(steps)
        seen.append(one.progress()["exchanges"])
    assert seen == [0, 0, 1, 1, 2, 2, 3] and one.steps == 0
    assert [weight.numpy().tolist() for weight in weights] == [[6.0], [6.0]]
    options = {"fragments": 2, "delay": 2, "outer_optimizer": keras.optimizers.SGD(1.0)}
    parts = hvd.DiLoCo(weights, every=6, **options)
    seen.clear()
    for steps in (2, 2, 1, 2, 2, 1, 2, 2, 3, 1):  # together 2, 4, 5, 7, 9, 10, 12, 14, 17, 18
        for weight in weights:
            weight.assign_add([float(steps * hvd.rank())])
        parts.step(steps)
        seen.append(
            parts.progress()["under_way"]
        )  # the number of a fragment, and the step at which it counts
    assert seen == [None, [0, 6], [0, 6], [1, 3], [0, 5], [0, 5], [1, 2], None, [0, 7], [1, 2]]
    parts.finish()
    # 6 and, of what rank 1 adds, 5.5 and 7: steps during an exchange do not count.
    assert [weight.numpy().tolist() for weight in weights] == [[11.5], [13.0]]


@on_ranks(2)
def test_steps_of_a_loop_without_fit(hvd):
    """Without `fit` Keras gives callbacks no parameters."""
    import keras

    model, x, y = model_and_data(hvd)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    local = hvd.callbacks.LocalSGD(every=2)
    callbacks = keras.callbacks.CallbackList([local], model=model)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    for step in range(3):
        callbacks.on_train_batch_begin(step)
        model.train_on_batch(x, y)
        callbacks.on_train_batch_end(step)
    assert local.current.steps == 1


@on_ranks(2)
def test_steps_beside_a_state_that_has_begun_the_epoch(hvd):
    import keras

    model, x, y = model_and_data(hvd)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    local, seen = hvd.callbacks.LocalSGD(every=5), []
    batch = hvd.elastic.UpdateBatchStateCallback(hvd.elastic.KerasState(model, batch=3))
    notes = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(local.current.steps))
    model.fit(x, y, batch_size=2, verbose=0, callbacks=[batch, local, notes])  # 6 steps
    assert seen == [1]


@on_ranks(2)
def test_weights_that_change_between_two_fits(hvd):
    """The outer gradient is that of the second fit; another model begins with an outer state of its own."""
    import keras

    model, x, y = model_and_data(hvd)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    diloco = hvd.callbacks.DiLoCo(every=3)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), diloco]
    model.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks)
    first = [np.ones_like(each) for each in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, first, strict=True):
        variable.assign(value)
    model.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks)
    for variable, value in zip(model.trainable_variables, first, strict=True):
        np.testing.assert_allclose(variable, value)
    outer = diloco.outer_variables
    other, *_ = model_and_data(hvd)
    other.compile(keras.optimizers.SGD(0.1), "mse")
    other.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks)
    assert diloco.outer_variables[0] is not outer[0]
    np.testing.assert_allclose(model.trainable_variables[0], first[0])


@on_ranks(2)
@pytest.mark.parametrize(
    ("kind", "within"), [("LocalSGD", True), slow("DiLoCo", True), slow("LocalSGD", False), ("DiLoCo", False)]
)
def test_variables_that_change_within_a_fit_or_between_two(hvd, kind, within):
    """A layer that was frozen stays, and the ranks agree on layers that were added, with their statistics."""
    import keras

    model, x, y = model_and_data(hvd)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        getattr(hvd.callbacks, kind)(every=3),
    ]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks)

    def change():
        model.layers[0].trainable = False
        keras.utils.set_random_seed(hvd.rank())
        model.add(keras.layers.BatchNormalization())
        model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.make_train_function(force=True)

    if within:
        between = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epoch == 1 and change())
        model.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=[*callbacks, between])
    else:
        change()
        frozen = model.layers[0].get_weights()
        model.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks)
        for weight, expected in zip(model.layers[0].get_weights(), frozen, strict=True):
            np.testing.assert_array_equal(weight, expected)
    found = [each.tolist() for each in model.get_weights()]
    assert hvd.allgather_object(found) == [found] * 2


@pytest.mark.parametrize(
    ("rows", "differs"),
    # With five batches the last execution of an epoch has one step.
    [(12, [True, False] * 3), (10, [True, False, True, True, False, True])],
)
@on_ranks(2)
def test_every_callback_and_mixed_precision(hvd, rows, differs):
    """Local SGD with a scaled loss and several steps at once; the weights of the ranks differ between exchanges."""
    import keras

    model, x, y = model_and_data(hvd)
    optimizer = keras.optimizers.SGD(0.01)
    if not _compat.is_keras_2():
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse", steps_per_execution=2)
    differ = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights = model.get_weights()[0].tolist()
            differ.append(len(set(map(str, hvd.allgather_object(weights)))) > 1)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LocalSGD(every=4),
        Look(),
    ]
    model.fit(x[:rows], y[:rows], batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    assert differ == differs


@on_ranks(1, 2)
def test_errors(hvd):
    import keras

    with pytest.raises(ValueError, match=r"whole number of 1 or more\. Received: every=0"):
        hvd.callbacks.DiLoCo(every=0)
    for compression in (hvd.PowerSGD, hvd.PowerSGD(rank=2)):
        with pytest.raises(TypeError, match=r"DiLoCo rounds what travels: .* Received: .*PowerSGD"):
            hvd.callbacks.DiLoCo(every=2, compression=compression)
    with pytest.raises(TypeError, match=r"not a compressor: .* Received: compression='int8'"):
        hvd.callbacks.LocalSGD(every=2, compression="int8")
    with pytest.raises(ValueError, match="needs the variables that are trained"):
        hvd.LocalSGD([], 2)
    with pytest.raises(TypeError, match=r"takes an optimizer of Keras: .* Received: 'sgd'"):
        hvd.callbacks.DiLoCo(2, outer_optimizer="sgd")
    for options, words in (
        ({"fragments": 4}, "divides every"),
        ({"delay": 6}, "choose a delay from 0 to 5"),
        ({"mixing": 1.0}, "less than 1"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.callbacks.DiLoCo(6, **options)
    with pytest.raises(ValueError, match="use at most 1 fragments"):
        hvd.DiLoCo([tf.Variable([0.0])], 6, fragments=2)
    model, x, y = model_and_data(hvd)
    with pytest.raises(
        TypeError, match=r"pass model\.trainable_variables, and in fit use hvd\.callbacks\.LocalSGD"
    ):
        hvd.LocalSGD(model, 2)
    two = [hvd.callbacks.LocalSGD(every=2), hvd.callbacks.DiLoCo(every=4)]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(ValueError, match=r"once; .* Received: callbacks=\['LocalSGD', 'DiLoCo'\]"):
        model.fit(x, y, verbose=0, callbacks=two)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(ValueError, match="compile the model with a plain optimizer"):
        model.fit(x, y, verbose=0, callbacks=[hvd.callbacks.LocalSGD(every=2)])
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2)
    with pytest.raises(ValueError, match=r"multiples of steps_per_execution\. Received: every=3"):
        model.fit(x, y, verbose=0, callbacks=[hvd.callbacks.LocalSGD(every=3)])
