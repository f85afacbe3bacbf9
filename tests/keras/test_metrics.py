"""Metrics of uneven parts: what one process computes from all the data, in fit, in its validation and in evaluate."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support
from tests.sets.support import added

METRICS = keras.metrics
SIZES = [37, 5, 14]
"""Rows of each rank."""


class Largest(keras.metrics.Metric):
    """No sum: the largest prediction of all."""

    def __init__(self, name="largest", **options):
        super().__init__(name=name, **options)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value + 0


class Rows(keras.metrics.Metric):
    """A sum, which says so."""

    additive = True

    def __init__(self, name="rows", **options):
        super().__init__(name=name, **options)
        self.count = self.add_variable((), "zeros", dtype="int32", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.shape(y_true)[0])

    def result(self):
        return self.count + 0


def metrics(few=False):
    """With `few` one metric of each kind of state: tracing takes half a second for each, XLA a second."""
    if few:
        return [
            METRICS.AUC(name="auc"),
            METRICS.BinaryAccuracy(name="accuracy"),
            METRICS.R2Score(name="r2"),
            Rows(),
        ]
    return [
        METRICS.AUC(name="auc"),
        METRICS.AUC(curve="PR", name="pr"),
        METRICS.BinaryAccuracy(name="accuracy"),
        METRICS.BinaryIoU(threshold=0.6, name="iou"),
        METRICS.F1Score(threshold=0.5, name="f1"),
        METRICS.Precision(name="precision"),
        METRICS.R2Score(name="r2"),
        METRICS.RecallAtPrecision(0.6, name="recall"),
        METRICS.RootMeanSquaredError(name="rmse"),
        METRICS.FalsePositives(name="false"),
        Rows(),
    ]


def data(sizes):
    """Rows whose share of ones differs by rank, with weights; all of them, and each rank's part."""
    generator = np.random.default_rng(4)
    x = generator.normal(size=(sum(sizes), support.FEATURES)).astype("float32")
    parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    bias = np.concatenate([np.full(len(part), 0.8 * rank) for rank, part in enumerate(parts)])
    y = (x[:, :1] + generator.normal(size=(len(x), 1)) + bias[:, None] > 0.3).astype("float32")
    weight = generator.uniform(0.5, 2, len(x)).astype("float32")
    return (x, y, weight), parts


def classifier(found, optimizer=None, **options):
    keras.utils.set_random_seed(11)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")]
    network = keras.Sequential([keras.Input((support.FEATURES,)), *layers])
    optimizer = optimizer or keras.optimizers.SGD(0.0)
    network.compile(optimizer, "binary_crossentropy", metrics=found, weighted_metrics=["mae"], **options)
    return network


def check(found, expected, but=()):
    assert found.keys() == expected.keys()
    for key in found.keys() - set(but):
        np.testing.assert_allclose(found[key], expected[key], rtol=2e-6, err_msg=key)


@pytest.mark.parametrize("weighted", [slow(False), True])
@on_ranks(2, full=(1, 3))
def test_evaluate(hvd, weighted):
    (x, y, weight), parts = data(SIZES[: hvd.size()])
    network, part = classifier(metrics()), parts[hvd.rank()]
    weights, mine = ({"sample_weight": w} if weighted else {} for w in (weight, weight[part]))
    first = hvd.evaluate(network, x[part], y[part], batch_size=8, verbose=0, return_dict=True, **mine)
    whole = network.evaluate(x, y, verbose=0, return_dict=True, **weights)
    alone = network.evaluate(x[part], y[part], batch_size=8, verbose=0, return_dict=True, **mine)
    state = [variable.numpy() for variable in network.metrics_variables]
    found = hvd.evaluate(network, x[part], y[part], batch_size=8, verbose=0, return_dict=True, **mine)
    check(found, whole)
    check(first, whole)  # the metrics were not built yet
    assert hvd.size() == 1 or all(alone[key] != found[key] for key in ("auc", "loss", "rows", "mae"))
    for variable, value in zip(
        network.metrics_variables, state, strict=True
    ):  # its own, as evaluate leaves them
        np.testing.assert_array_equal(variable.numpy(), value)
    row = np.concatenate([np.ravel(found[key]) for key in sorted(found)])
    values = hvd.allgather(tf.constant(row[None], tf.float64), name="found").numpy()
    assert (values == values[0]).all()
    as_list = hvd.evaluate(network, x[part], y[part], batch_size=8, verbose=0, **mine)
    for mine, expected in zip(as_list, network.evaluate(x, y, verbose=0, **weights), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-6)


@on_ranks(2, full=(1, 3))
def test_fit_and_its_validation(hvd):
    fit_and_validate(hvd)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 2}]
)
@on_ranks(2)
def test_fit_in_other_ways(hvd, options):
    fit_and_validate(hvd, **options)


def fit_and_validate(hvd, **options):
    """Two epochs, the second with validation; callbacks behind it see the whole job's numbers on each rank.

    A callback in front evaluates, and compiles the model again at the end, so that it has new metrics.
    """
    (x, y, weight), parts = data([24] * hvd.size())
    (other_x, other_y, _), others = data(SIZES[: hvd.size()])
    part, other = parts[hvd.rank()], others[hvd.rank()]
    network = classifier(metrics(few=True), hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), **options)
    trained = network.evaluate(x, y, verbose=0, return_dict=True, sample_weight=weight)
    validated = network.evaluate(other_x, other_y, verbose=0, return_dict=True)
    seen = []

    def in_front(epoch, logs):
        network.evaluate(x[:8], y[:8], verbose=0)
        if epoch == 1:
            network.compile(network.optimizer, "mse", metrics=["mae"])

    history = network.fit(
        x[part],
        y[part],
        sample_weight=weight[part],
        batch_size=8,
        epochs=2,
        verbose=0,
        validation_data=(other_x[other], other_y[other]),
        validation_freq=2,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            keras.callbacks.LambdaCallback(on_epoch_end=in_front),
            hvd.callbacks.MetricAverageCallback(),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs))),
        ],
    ).history
    # The same states as evaluate: the learning rate is zero.
    check(seen[0], trained)
    check(seen[1], {**trained, **{f"val_{key}": value for key, value in validated.items()}})
    assert history["val_auc"] == [seen[1]["val_auc"]] and history["auc"][1] == seen[1]["auc"]


@on_ranks(2)
def test_an_evaluation_after_the_last_step(hvd):
    """Keras' logs are those of the evaluation then, and become those of all rows that the ranks evaluate."""
    (x, y, _), parts = data([24] * 2)
    (other_x, other_y, _), others = data(SIZES[:2])
    part, other = parts[hvd.rank()], others[hvd.rank()]
    network = classifier(metrics(few=True), hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    expected = network.evaluate(other_x, other_y, verbose=0, return_dict=True)
    again = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: network.evaluate(other_x[other], other_y[other], verbose=0)
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        again,
    ]
    history = network.fit(x[part], y[part], batch_size=8, verbose=0, callbacks=callbacks).history
    check({key: value[0] for key, value in history.items()}, expected)


@on_ranks(2)
def test_an_evaluation_in_front_with_a_generator(hvd):
    """A callback in front starts the metrics anew at the end of an epoch whose number of steps nobody knows."""
    (x, y, weight), parts = data([24, 12])
    network = classifier([METRICS.AUC(name="auc")], hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    expected = network.evaluate(x, y, verbose=0, return_dict=True, sample_weight=weight)
    batches = ((x[rows], y[rows], weight[rows]) for rows in np.split(parts[hvd.rank()], 3))
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: network.evaluate(x[:8], y[:8], verbose=0)),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = network.fit(batches, verbose=0, callbacks=callbacks).history
    check({key: value[0] for key, value in history.items()}, expected)


@on_ranks(2)
def test_what_is_no_sum_is_averaged(hvd):
    """A metric with its own update_state; a warning, since the ranks validate different numbers of batches."""
    (x, y, _), parts = data(SIZES[:2])
    part, network = parts[hvd.rank()], classifier([Largest(), METRICS.AUC(name="auc")])
    expected = [network.evaluate(x[part], y[part], verbose=0, return_dict=True)["largest"] for part in parts]
    assert expected[0] != expected[1]
    with support.logged() as said:
        found = hvd.evaluate(network, x[part], y[part], batch_size=4, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["largest"], np.mean(expected), rtol=1e-6)
    check(found, network.evaluate(x, y, verbose=0, return_dict=True), but=["largest"])
    assert len(said) == (hvd.rank() == 0)
    assert not said or ("weight in largest" in said[0] and "rank 0: 10; rank 1: 2" in said[0])


class Range(keras.metrics.Metric):
    """A sum whose result is a dictionary."""

    additive = True

    def __init__(self, name="range", **options):
        super().__init__(name=name, **options)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y_pred))

    def result(self):
        return {"total": self.total + 0, "half": self.total / 2}


@on_ranks(2, full=(1, 3))
def test_a_dictionary_as_result(hvd):
    """Keras puts its entries among the logs."""
    (x, y, _), parts = data(SIZES[: hvd.size()])
    part, network = parts[hvd.rank()], classifier([Range(), METRICS.AUC(name="auc")])
    expected = network.evaluate(x, y, verbose=0, return_dict=True)
    assert {"total", "half"} < set(expected)
    check(hvd.evaluate(network, x[part], y[part], batch_size=4, verbose=0, return_dict=True), expected)


class Steps(keras.Sequential):
    """Returns numbers of its own, and one under a metric's name that is not the metric's."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "auc": keras.ops.ones(()) * float(self.rank), "own": keras.ops.ones((2,)) * self.rank}


@on_ranks(2, full=(3,))
def test_logs_that_are_no_metrics(hvd):
    (x, y, _), parts = data([8] * hvd.size())
    part = parts[hvd.rank()]
    network = Steps([keras.Input((support.FEATURES,)), keras.layers.Dense(1, activation="sigmoid")])
    network.rank = hvd.rank()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    network.compile(optimizer, "binary_crossentropy", metrics=[METRICS.AUC(name="auc")])
    short = tf.constant(hvd.rank(), tf.bfloat16)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: logs.update(short=short)),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = network.fit(x[part], y[part], batch_size=8, verbose=0, callbacks=callbacks).history
    mean = (hvd.size() - 1) / 2
    assert history["short"] == [mean]
    assert history["auc"] == [mean]
    np.testing.assert_array_equal(history["own"], [[mean, mean]])
    np.testing.assert_allclose(history["loss"], network.evaluate(x, y, verbose=0)[0], rtol=1e-5)


@on_ranks(2)
def test_two_outputs_with_metrics_of_one_name(hvd):
    """Keras names them by their outputs, and the second of a name by a number."""
    keras.utils.set_random_seed(2)
    inputs = keras.Input((support.FEATURES,))
    outputs = {key: keras.layers.Dense(1, activation="sigmoid", name=key)(inputs) for key in ("a", "b")}
    network = keras.Model(inputs, outputs)
    network.compile(
        loss="binary_crossentropy",
        metrics={"a": [METRICS.AUC(name="m"), Largest("n")], "b": [METRICS.AUC(name="n")]},
    )
    (x, y, _), parts = data(SIZES[:2])
    part = parts[hvd.rank()]
    found = hvd.evaluate(network, x[part], {"a": y[part], "b": y[part]}, verbose=0, return_dict=True)
    whole = network.evaluate(x, {"a": y, "b": y}, verbose=0, return_dict=True)
    # The names of the n do not tell which of them is a sum. The losses of single outputs are Keras' means over batches.
    check(found, whole, but=["a_n", "b_n", "a_loss", "b_loss"])
    own = [hvd.allgather(tf.constant([found[key]]), name="own").numpy() for key in ("a_n", "a_loss")]
    assert all((values == values[0]).all() for values in own)


@on_ranks(2, full=(3,))
def test_process_set(hvd):
    with added(hvd, *{2: [[0], [1]], 3: [[0, 2], [1]]}[hvd.size()]) as sets:
        mine = next(one for one in sets if one.included())
        (x, y, _), parts = data(SIZES)
        chosen = np.concatenate([parts[rank] for rank in mine.ranks])
        network, part = classifier(metrics(few=True)), parts[hvd.rank()]
        found = hvd.evaluate(network, x[part], y[part], verbose=0, return_dict=True, process_set=mine)
        check(found, network.evaluate(x[chosen], y[chosen], verbose=0, return_dict=True))


@on_ranks(2)
def test_other_metrics_on_one_rank(hvd):
    (x, y, _), _ = data([8])
    network = classifier([METRICS.AUC(num_thresholds=200 + hvd.rank(), name="auc")])
    with pytest.raises(ValueError, match=r"rank 0: metric auc \[\(200,\).*rank 1: metric auc \[\(201,\)"):
        hvd.evaluate(network, x, y, verbose=0)
    network = classifier([["accuracy"], ["accuracy", "mse"]][hvd.rank()])
    with pytest.raises(ValueError, match=r"rank 0: none of these; rank 1: mse"):
        hvd.evaluate(network, x, y, verbose=0)
