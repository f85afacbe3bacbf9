"""reduce_gradients and its marks."""

import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks

MODES = ("eager", "graph")


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2)
def test_none_passes_and_results_are_marked(hvd, mode):
    from tfddl.gradients import reduced_marks, reduction
    from tfddl.gradients.gradient_options import GradientOptions

    def step(x):
        assert not reduced_marks.all_reduced([None, x]) and not reduced_marks.all_reduced([None])
        results = reduction.reduce_gradients(
            [None, x, None], owner="marks", options=GradientOptions(op=hvd.Sum)
        )
        assert results[0] is None and results[2] is None and reduced_marks.all_reduced(results)
        assert not reduced_marks.is_reduced(results[1] * 2)
        return results[1]

    step = tf.function(step) if mode == "graph" else step
    np.testing.assert_allclose(step(tf.constant([1.0, 2.0])), [2.0, 4.0])


@on_ranks(2)
def test_only_what_is_not_marked_is_reduced(hvd):
    from tfddl.gradients import reduction
    from tfddl.gradients.gradient_options import GradientOptions

    first = reduction.reduce_gradients(
        [tf.constant(1.0 + hvd.rank())], owner="some", options=GradientOptions(op=hvd.Sum)
    )
    both = reduction.reduce_missing(
        [first[0], None, tf.constant(1.0)], None, owner="some", options=GradientOptions(op=hvd.Sum)
    )
    assert both[0] is first[0] and both[1] is None
    np.testing.assert_allclose([both[0], both[2]], [3.0, 2.0])


@on_ranks(1)
def test_nothing_to_reduce_asks_for_nothing(hvd):
    from tfddl.gradients import reduction
    from tfddl.runtime import stats

    before = stats()["requests"]
    assert reduction.reduce_gradients([None, None], owner="nothing") == [None, None]
    assert reduction.reduce_gradients([], owner="nothing") == []
    assert stats()["requests"] == before


@on_ranks(1)
def test_gradients_computed_from_reduced_ones_are_recognised(hvd):
    from tfddl.gradients import reduced_marks, reduction

    @tf.function
    def step(x):
        (reduced,) = reduction.reduce_gradients([x], owner="near")
        clipped, _ = tf.clip_by_global_norm([reduced], 1.0)
        assert reduced_marks.comes_from_a_reduction(clipped)
        assert reduced_marks.comes_from_a_reduction([tf.clip_by_norm(reduced * 3 + 1, 2.0)])
        assert not reduced_marks.comes_from_a_reduction([x * 2]) and not reduced_marks.comes_from_a_reduction(
            [reduced]
        )
        return clipped

    step(tf.ones([2]))


@on_ranks(2)
def test_many_buckets_keep_their_order(hvd):
    from tfddl.gradients import reduction

    gradients = [tf.fill([100 + i], float(i) * (hvd.rank() + 1)) for i in range(20)]
    with mock.patch.dict(os.environ, TFDDL_BUCKET_MB="0.001,0.002"):
        results = tf.function(lambda: reduction.reduce_gradients(gradients, owner="many"))()
    for i, result in enumerate(results):
        np.testing.assert_allclose(result, np.full(100 + i, 1.5 * i))


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2, full=(1, 3))
def test_empty_tensors(hvd, mode):
    from tfddl.gradients import reduction

    def step():
        alone = reduction.reduce_gradients([tf.zeros([0, 3])], owner="empty")
        return alone + reduction.reduce_gradients([tf.zeros([0]), tf.ones([2]), tf.zeros([0])], owner="mixed")

    results = (tf.function(step) if mode == "graph" else step)()
    assert [result.shape.as_list() for result in results] == [[0, 3], [0], [2], [0]]
    np.testing.assert_allclose(results[2], [1.0, 1.0])
