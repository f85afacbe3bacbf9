"""Compressions that keep their errors, against the papers in NumPy: tapes, optimizers, skipped steps, and what is refused."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks, slow
from tests.keras import support

STEPS = 20
SHAPES = [(12, 10), (3, 3, 2, 6), (10,), (2, 2), ()]


def gradients_of(rank, step, shapes=SHAPES):
    """What differs by rank, and a part that all steps have."""
    return [
        np.random.default_rng([rank, step, slot]).normal(size=shape)
        + 2 * np.random.default_rng([rank, slot]).normal(size=shape)
        for slot, shape in enumerate(shapes)
    ]


class PowerSGDInNumpy:
    """Algorithms 1 and 2 of arXiv 1905.13727 for all ranks, in float64."""

    def __init__(self, size, rank, shapes=SHAPES):
        self.size, self.shapes, self.q, self.e = size, shapes, {}, {}
        for slot, shape in enumerate(shapes):
            n, m = (int(np.prod(shape[:-1])), shape[-1]) if len(shape) > 1 else (1, 1)
            if len(shape) > 1 and (n + m) * min(rank, n, m) < n * m:
                self.q[slot] = np.random.default_rng([0, slot]).normal(size=[m, min(rank, n, m)])
                self.e[slot] = np.zeros([size, n, m])

    def step(self, ranks):
        """The combined gradients of `ranks[rank][slot]`."""
        results = list(np.mean(each, axis=0) for each in zip(*ranks, strict=True))
        for slot, q in self.q.items():
            matrices = [ranks[rank][slot].reshape(e.shape) + e for rank, e in enumerate(self.e[slot])]
            p, _ = np.linalg.qr(np.mean([each @ q for each in matrices], axis=0))
            self.q[slot] = np.mean([each.T @ p for each in matrices], axis=0)
            product = p @ self.q[slot].T
            self.e[slot] = np.stack([each - product for each in matrices])
            results[slot] = product.reshape(self.shapes[slot])
        return results


def tape_step(hvd, variables, jit=False, eager=False, **options):
    """A function from this rank's gradients to the combined ones."""

    def step(*given):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(variables, given, strict=True)])
        return tape.gradient(loss, variables)

    return step if eager else tf.function(step, jit_compile=jit or None)


def constants(arrays):
    return [tf.constant(each, tf.float32) for each in arrays]


def check_same_bits(hvd, tensors):
    text = [np.asarray(each).tobytes() for each in tensors]
    assert hvd.allgather_object(text) == [text] * hvd.size()


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@on_ranks(1, 2, 3)
def test_power_sgd_is_the_paper(hvd, mode):
    compression = hvd.PowerSGD(rank=2)
    assert compression.variables == []
    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    step = tape_step(hvd, variables, mode == "jit", mode == "eager", compression=compression)
    paper = PowerSGDInNumpy(hvd.size(), 2)
    assert list(paper.q) == [0, 1]
    for number in range(STEPS):
        ranks = [gradients_of(rank, number) for rank in range(hvd.size())]
        found = step(*constants(ranks[hvd.rank()]))
        check_same_bits(hvd, found)
        for one, expected in zip(found, paper.step(ranks), strict=True):
            np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-3)
    errors = compression.variables[:2]
    for error, slot in zip(errors, paper.q, strict=True):
        np.testing.assert_allclose(error, paper.e[slot][hvd.rank()], rtol=1e-3, atol=2e-3)
    check_same_bits(hvd, compression.variables[2:])
    ways = 2 * (hvd.size() - 1) / hvd.size()
    sent, uncompressed = compression.bytes_per_step()
    assert sent == pytest.approx(ways * 4 * (2 * (12 + 10 + 18 + 6) + 10 + 4 + 1))
    assert uncompressed == pytest.approx(ways * 4 * sum(int(np.prod(shape)) for shape in SHAPES))


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@on_ranks(1, 2, 3)
def test_int8_keeps_what_it_has_not_sent(hvd, mode):
    """e is g + e - sent, and the sum of all results is the sum of all gradients, less what the residuals hold."""
    shapes = [(700,), (3, 5), ()]
    compression = hvd.Compression.int8()
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    step = tape_step(hvd, variables, mode == "jit", mode == "eager", compression=compression)
    mean, results = np.zeros(716), np.zeros(716)
    for number in range(STEPS):
        ranks = [gradients_of(rank, number, shapes) for rank in range(hvd.size())]
        found = step(*constants(ranks[hvd.rank()]))
        check_same_bits(hvd, found)
        flat = [np.concatenate([each.ravel() for each in reversed(one)]) for one in ranks]
        mean += np.mean(flat, axis=0)  # a bucket begins with the last gradient
        result = np.concatenate([np.ravel(each) for each in reversed(found)])
        results += result
    count, error, slice_error = compression.variables
    assert count.numpy() == STEPS
    everything = hvd.allgather_object((error.numpy().ravel(), slice_error.numpy().ravel()))
    left = np.mean([one for one, _ in everything], axis=0) + np.concatenate([one for _, one in everything])
    assert 0 < np.abs(left).max() < 0.5
    np.testing.assert_allclose(results + left[:716], mean, rtol=1e-4, atol=1e-4)
    assert not left[716:].any()
    sent, uncompressed = compression.bytes_per_step()
    assert uncompressed == pytest.approx(2 * (hvd.size() - 1) / hvd.size() * 4 * 716)
    assert sent == pytest.approx(2 * (hvd.size() - 1) / hvd.size() * 260 * {1: 3, 2: 4, 3: 3}[hvd.size()])
