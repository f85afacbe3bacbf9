"""BroadcastGlobalVariablesHook tells of variables that come apart in a session of TF1."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tfddl.v1.apart
from tests.harness import on_ranks
from tests.keras import support
from tfddl import runtime

v1 = tf.compat.v1


def plain(hvd, optimizer):
    return optimizer


def wrapped(hvd, optimizer):
    return hvd.DistributedOptimizer(optimizer)


def sgd(rate=0.25):
    return v1.train.GradientDescentOptimizer(rate)


def network(name, hvd, resource=True, **more):
    """Two variables and a loss, whose gradients differ by rank."""
    with v1.variable_scope(name, use_resource=resource):
        weights = v1.get_variable("w", [3], initializer=v1.ones_initializer(), **more)
        bias = v1.get_variable("b", [], initializer=v1.zeros_initializer(), **more)
    return [weights, bias], (tf.reduce_sum(weights**2) + bias) * (hvd.rank() + 1.0)


def train(hvd, steps, graph, variables=()):
    """Runs each of the fetches; returns what is said, and how many collectives each run has asked for."""
    requests = []
    with (
        graph.as_default(),
        support.logged() as said,
        v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session,
    ):
        for fetches in steps:
            before = runtime.stats()["requests"]
            session.run(fetches)
            requests.append(runtime.stats()["requests"] - before)
        values = session.run(list(variables))
    if variables:
        assert (len(set(map(str, hvd.allgather_object(values)))) > 1) == (hvd.size() > 1)
    return said, requests


def told(said, hvd, wanted, received):
    """Whether this is the only warning, on rank 0 alone, and these are the variables in it."""
    assert len(said) == (hvd.size() > 1 and hvd.rank() == 0)
    assert not said or wanted in said[0]
    assert not said or said[0].rsplit("Received: ", 1)[1].split(": ", 1)[1] == received


@pytest.mark.parametrize("resource", [True, False])
@on_ranks(2, full=(1, 3))
def test_a_plain_optimizer(hvd, resource):
    for optimizer in (sgd, v1.train.AdamOptimizer):
        with tf.Graph().as_default() as graph:
            variables, loss = network("net", hvd, resource)
            update = optimizer().minimize(loss, v1.train.get_or_create_global_step())
        said, _ = train(hvd, [loss, update, update], graph, variables if optimizer is sgd else ())
        told(said, hvd, "gradients that are not combined", "net/b:0, net/w:0")


@on_ranks(2, full=(1, 3))
def test_a_plain_optimizer_of_an_embedding(hvd):
    for optimizer in (sgd, v1.train.AdamOptimizer):
        with tf.Graph().as_default() as graph:
            table = v1.get_variable("table", [5, 2])
            update = optimizer().minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2])))
        told(train(hvd, [update], graph)[0], hvd, "gradients that are not combined", "table:0")


@on_ranks(2, full=(1, 3))
def test_a_plain_optimizer_in_a_loss_scale_optimizer(hvd):
    """Which updates in a cond."""
    scaled, scale = v1.mixed_precision.MixedPrecisionLossScaleOptimizer, v1.mixed_precision.DynamicLossScale
    for wrap in (plain, wrapped):
        with tf.Graph().as_default() as graph:
            _, loss = network("net", hvd)
            update = scaled(wrap(hvd, sgd()), scale(8.0)).minimize(loss)
        said, _ = train(hvd, [update] * 3, graph)
        if wrap is plain:
            told(said, hvd, "gradients that are not combined", "net/b:0, net/w:0")
        else:
            assert not said


@on_ranks(2, full=(1, 3))
def test_numbers_of_steps_that_differ(hvd):
    """Without a collective nobody meets anybody: nobody may be waited for."""
    with tf.Graph().as_default() as graph:
        _, loss = network("net", hvd)
        update = sgd().minimize(loss)
    said, _ = train(hvd, [loss] * 3 + [update] * (1 + 3 * hvd.rank()), graph)
    told(said, hvd, "gradients that are not combined", "net/b:0, net/w:0")


@pytest.mark.parametrize("steps", ["together", "in turn", "late"])
@on_ranks(2, full=(1, 3))
def test_one_of_two_is_plain(hvd, steps):
    with tf.Graph().as_default() as graph:
        _, first = network("first", hvd)
        _, second = network("second", hvd)
        a, b = wrapped(hvd, sgd()).minimize(first), sgd().minimize(second)
    order = {"together": [[a, b]] * 3, "in turn": [a, b] * 3, "late": [a] * 6 + [b, a, a, a]}[steps]
    told(train(hvd, order, graph)[0], hvd, "gradients that are not combined", "second/b:0, second/w:0")


@pytest.mark.parametrize("how", ["constant", "default"])
@on_ranks(2, full=(1, 3))
def test_rates_that_differ(hvd, how):
    mine = 0.25 * (hvd.rank() + 1)
    with tf.Graph().as_default() as graph:
        _, loss = network("net", hvd)
        rate = mine if how == "constant" else v1.placeholder_with_default(mine, [])
        update = wrapped(hvd, sgd(rate)).minimize(loss)
    # a rank may have more runs that do not train
    said, _ = train(hvd, [*[loss] * hvd.rank(), update, *[loss] * hvd.rank(), update, update], graph)
    assert len(said) == (hvd.size() > 1 and hvd.rank() == 0)
    # ones less the mean gradient, 2 * (size + 1) / 2, by each rate; and zero less the mean gradient, (size + 1) / 2
    rates = 0.25 * np.array([1.0, hvd.size()])
    norms = {
        "net/w:0": 3**0.5 * np.abs(1 - rates * (hvd.size() + 1)),
        "net/b:0": rates * (hvd.size() + 1) / 2,
    }
    for text in said:
        found = re.findall(r"(\S+) \(norm (\S+) to (\S+)\)", text)
        assert [name for name, *_ in found] == list(norms)
        for name, *values in found:
            np.testing.assert_allclose(
                np.array(values, float), [norms[name].min(), norms[name].max()], rtol=1e-5
            )


@on_ranks(2, full=(1, 3))
def test_no_word_and_no_cost_where_all_is_well(hvd):
    with tf.Graph().as_default() as graph:
        _, first = network("first", hvd)
        _, second = network("second", hvd)
        v1.get_variable("unused", [2])
        a, b = (wrapped(hvd, v1.train.AdamOptimizer()).minimize(loss) for loss in (first, second))
        both = tf.group(a, b)
    several = hvd.size() > 1
    said, requests = train(hvd, [both, first, both, both, both, first], graph)
    assert not said and requests == [2 + 2 * several, 0, 2 + 2 * several, 2, 2, 0]
    # one of a GAN's has its turn late
    with tf.Graph().as_default() as graph:
        _, first = network("first", hvd)
        _, second = network("second", hvd)
        a, b = (wrapped(hvd, sgd()).minimize(loss) for loss in (first, second))
    said, requests = train(hvd, [a, a, a, b, a, a, b, a, b], graph)
    assert not said and requests == [1 + several] * 7 + [1] * 2


@on_ranks(2, full=(1, 3))
def test_runs_that_ranks_divide_otherwise(hvd):
    """Also in the run with the last comparison: one rank has come to the end, when the other has not yet."""
    with tf.Graph().as_default() as graph:
        _, first = network("first", hvd)
        _, second = network("second", hvd)
        a, b = (wrapped(hvd, sgd()).minimize(loss) for loss in (first, second))
    steps = [[a, b]] * 4 if hvd.rank() == 0 else [[a, b], *[a, b] * 3]
    said, requests = train(hvd, steps, graph)
    several = hvd.size() > 1
    assert not said and sum(requests) == 4 * 2 + 2 * 2 * several


@on_ranks(2, full=(3,))
def test_graphs_that_differ(hvd):
    """On one rank a collective comes before a write, on the others it does not."""
    with tf.Graph().as_default() as graph:
        _, loss = network("net", hvd)
        update = wrapped(hvd, sgd()).minimize(loss)
        mean = hvd.allreduce(loss)
        best = v1.get_variable("best", [], initializer=v1.zeros_initializer())
        more = [best.assign(0.0 * mean)] if hvd.rank() == 0 else []
    said, requests = train(hvd, [[update, mean, *more]] * 4, graph)
    assert not said and requests == [3, 3, 2, 2]


@on_ranks(2, full=(1, 3))
def test_two_hooks(hvd):
    with tf.Graph().as_default():
        _, loss = network("net", hvd)
        update = wrapped(hvd, sgd()).minimize(loss)
        hooks = [hvd.BroadcastGlobalVariablesHook(0) for _ in range(2)]
        with support.logged() as said, v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(4):
                session.run(update)
    assert not said


@pytest.mark.parametrize("resource", [True, False])
@on_ranks(2, full=(1, 3))
def test_gradients_that_are_accumulated_by_hand(hvd, resource):
    """The collective is in the runs before the one that updates."""
    for wrap in (plain, wrapped):
        with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=resource):
            variables, loss = network("net", hvd, resource)
            sums = [
                v1.get_variable(f"sum{i}", each.shape, trainable=False) for i, each in enumerate(variables)
            ]
            optimizer = wrap(hvd, sgd())
            pairs = optimizer.compute_gradients(loss, variables)
            add = [v1.assign_add(each, gradient) for each, (gradient, _) in zip(sums, pairs, strict=True)]
            step = optimizer.apply_gradients(list(zip(sums, variables, strict=True)))
            zero = [v1.assign(each, tf.zeros_like(each)) for each in sums]
        said, _ = train(hvd, [zero, add, add, step] * 2, graph)
        if wrap is plain:
            told(said, hvd, "gradients that are not combined", "net/b:0, net/w:0")
        else:
            assert not said


@on_ranks(2, full=(1,))
def test_whatever_a_session_takes(hvd):
    with tf.Graph().as_default():
        (weights, _), loss = network("net", hvd)
        update = wrapped(hvd, sgd()).minimize(loss)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            result = session.run({1: [weights], "update": update, None: "net/w:0"})
    assert list(result) == [1, "update", None]


@on_ranks(2, full=(1, 3))
def test_a_variable_that_never_changes_ends_the_comparisons(hvd):
    """Of which there are ever fewer."""
    looks = []
    look = tfddl.v1.apart.ApartWatch._look
    limit, tfddl.v1.apart._LAST = tfddl.v1.apart._LAST, 8
    tfddl.v1.apart.ApartWatch._look = lambda *arguments: looks.append(0) or look(*arguments)
    try:
        with tf.Graph().as_default() as graph:
            variables, loss = network("net", hvd)
            update = wrapped(hvd, sgd()).minimize(loss + 0 * variables[1] - loss)
        said, requests = train(hvd, [update] * 12, graph)
    finally:
        tfddl.v1.apart._LAST, tfddl.v1.apart.ApartWatch._look = limit, look
    several = hvd.size() > 1
    assert not said and requests == [1 + several] * 9 + [1] * 3
    assert len(looks) == 4 * several


@on_ranks(2, full=(1, 3))
def test_what_is_each_ranks_own(hvd):
    with tf.Graph().as_default() as graph:
        _, first = network("first", hvd)
        keys = [v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.TRAINABLE_VARIABLES]
        variables, second = network("second", hvd, collections=keys)
        update = tf.group(wrapped(hvd, sgd()).minimize(first), sgd().minimize(second))
        third, _ = network("third", hvd)
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(third[0] ** 2 + third[1]) * (hvd.rank() + 1.0)
        tape.register_local_source(third[0])
        pairs = list(zip(tape.gradient(loss, third), third, strict=True))
        more = sgd().apply_gradients(pairs)
    assert not train(hvd, [[update, more]] * 3, graph, variables)[0]


@on_ranks(3)
def test_a_set_and_a_rank_by_itself(hvd):
    """The set's members are compared among themselves, and its first says what differs."""
    pair = hvd.add_process_set([1, 2])
    for differ in (False, True):
        with tf.Graph().as_default() as graph:
            _, loss = network("net", hvd)
            mine = hvd.DistributedOptimizer(sgd(0.25 * (hvd.rank() if differ else 1)), process_set=pair)
            update = mine.minimize(loss)
        said, _ = train(hvd, [update] * 3, graph)
        assert len(said) == (differ and hvd.rank() == 1)
    hvd.remove_process_set(pair)


@pytest.mark.parametrize("joins", ["in this graph", "in another"])
@on_ranks(2, full=(3,))
def test_a_rank_that_joins_and_comes_back(hvd, joins):
    """It has missed updates, which the user has to make up for, and comparisons, which are made later."""
    for differ in (False, True):
        with tf.Graph().as_default() as graph:
            _, loss = network("net", hvd)
            update = wrapped(hvd, sgd(0.25 * (hvd.rank() + 1 if differ else 1))).minimize(loss)
            other = graph if joins == "in this graph" else tf.Graph()
            with other.as_default():
                last = hvd.join()
            again = hvd.broadcast_global_variables(0)
        requests = []
        with (
            support.logged() as said,
            v1.Session(graph=other) as second,
            graph.as_default(),
            v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session,
        ):
            for _ in range(2):
                for _ in range(4 if hvd.rank() == 0 else 1):
                    session.run(update)
                (session if other is graph else second).run(last)
                session.run(again)
            for _ in range(5):
                before = runtime.stats()["requests"]
                session.run(update)
                requests.append(runtime.stats()["requests"] - before)
        assert len(said) == (differ and hvd.rank() == 0)
        assert requests[-1] == 1


@on_ranks(2, full=(1, 3))
def test_the_end_of_data_comes_as_ever(hvd):
    """On all ranks at once, in the run that would have been compared."""
    with tf.Graph().as_default() as graph:
        variables, _ = network("net", hvd)
        rows = v1.data.make_one_shot_iterator(tf.data.Dataset.range(1)).get_next()
        loss = tf.reduce_sum(variables[0] ** 2) * tf.cast(rows, tf.float32) + variables[1]
        update = wrapped(hvd, sgd()).minimize(loss)
    for _ in range(3):
        with (
            graph.as_default(),
            v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session,
        ):
            runs = 0
            while not session.should_stop():
                session.run(update)
                runs += 1
        assert runs == 1
