"""Each gradient's collective runs on every rank, in graphs of constants whose shapes are known.

A session runs an operation only if its result depends on it. A rank whose gradient is zero has to take part as well, or the
other ranks wait. A gradient of second order is the collective's own backward pass once more.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.finite import STEP, differences
from tests.ops.test_adasum import adasum

v1 = tf.compat.v1


def same(reduce):
    """Every rank gets the result."""
    return lambda parts: [reduce(parts)] * len(parts)


def to_first(parts):
    """The first row of each rank goes to rank 0, and no row to others."""
    return [np.concatenate([part[:1] for part in parts]), *[part[:0] for part in parts[1:]]]


def slices(hvd, x):
    return tf.convert_to_tensor(hvd.allreduce(tf.IndexedSlices(x, [1, 1], [3, 2]), op=hvd.Sum))


KINDS = {
    "allreduce": (lambda hvd, x: hvd.allreduce(x), same(lambda parts: sum(parts) / len(parts))),
    "group": (
        lambda hvd, x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)[1],
        same(lambda parts: 2 * sum(parts)),
    ),
    "slices": (slices, same(lambda parts: np.stack([0 * parts[0][0], sum(parts).sum(0), 0 * parts[0][0]]))),
    "broadcast": (lambda hvd, x: hvd.broadcast(x, 0), same(lambda parts: parts[0])),
    "broadcast of the last": (lambda hvd, x: hvd.broadcast(x, hvd.size() - 1), same(lambda parts: parts[-1])),
    "allgather": (
        lambda hvd, x: hvd.allgather(x[:0] if hvd.rank() else x),
        same(lambda parts: parts[0]),
    ),
    "grouped_allgather": (lambda hvd, x: hvd.grouped_allgather([x, 3 * x])[0], same(np.concatenate)),
    "reducescatter": (
        lambda hvd, x: hvd.reducescatter(x[:1], op=hvd.Sum),
        lambda parts: np.array_split(sum(parts)[:1], len(parts)),
    ),
    "alltoall": (lambda hvd, x: hvd.alltoall(x, [1] + [0] * (hvd.size() - 1))[0], to_first),
    "Min": (lambda hvd, x: hvd.allreduce(x, op=hvd.Min), same(lambda parts: np.min(parts, 0))),
    "scaled Max": (
        lambda hvd, x: hvd.allreduce(x, op=hvd.Max, prescale_factor=-2.0),
        same(lambda parts: np.max(-2 * np.stack(parts), 0)),
    ),
    "Product": (lambda hvd, x: hvd.allreduce(x, op=hvd.Product), same(lambda parts: np.prod(parts, 0))),
    "Adasum": (lambda hvd, x: hvd.allreduce(x, op=hvd.Adasum), same(adasum)),
}


def arrays(seed, shapes):
    """An array of each shape; rank 1 and later have the smaller values."""
    generators = [np.random.default_rng([seed, rank]) for rank in range(len(shapes))]
    return [
        generator.uniform(1, 2, shape) - rank
        for rank, (generator, shape) in enumerate(zip(generators, shapes, strict=True))
    ]


@pytest.mark.parametrize("kind", KINDS)
@on_ranks(1, 2, 3, limit=30)
def test_every_rank_takes_part(hvd, kind):
    collective, model = KINDS[kind]
    rank, inputs, seeds = hvd.rank(), arrays(0, [(2, 2)] * hvd.size()), arrays(2, [(2, 2)] * hvd.size())
    cotangents = arrays(1, [part.shape for part in model(inputs)])

    def loss(parts):
        return sum(np.sum(c * y) for c, y in zip(cotangents, model(parts), strict=True))

    def moved(step):
        return model([part + step * seed for part, seed in zip(inputs, seeds, strict=True)])[rank]

    with tf.Graph().as_default(), v1.Session() as session:
        x, cotangent = tf.constant(inputs[rank]), tf.constant(cotangents[rank])
        (gradient,) = tf.gradients(collective(hvd, x), x, cotangent)
        check(session.run(gradient), differences(rank, inputs, loss))
        # The gradient is linear in the cotangent. Therefore its own gradient is the derivative along the seeds.
        (second,) = tf.gradients(gradient, cotangent, tf.constant(seeds[rank]))
        check(session.run(tf.convert_to_tensor(second)), (moved(STEP) - moved(-STEP)) / (2 * STEP))


def check(result, expected):
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@on_ranks(2, limit=30)
def test_a_broadcast_of_infinite_cotangents(hvd):
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant([1.0, 2.0])
        (gradient,) = tf.gradients(hvd.broadcast(x, 0), x, tf.constant([np.inf, np.nan]))
        np.testing.assert_array_equal(session.run(gradient), [0, 0] if hvd.rank() else [np.inf, np.nan])
