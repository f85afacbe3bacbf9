"""broadcast and broadcast_variables against the root's own values."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.ops.support import DTYPES, MODES, SHAPES, array, call, check


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@on_ranks(1, 2, 3)
def test_every_root(hvd, dtype, mode):
    for root in range(hvd.size()):
        for shape in SHAPES:
            inputs = array(hvd.rank(), dtype, shape)
            result = call(mode, lambda x, root=root: hvd.broadcast(x, root), inputs)
            check(result, array(root, dtype, shape))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@on_ranks(2, 3)
def test_more_than_any_chunk(hvd, dtype):
    shape = (3_000_017,)
    check(hvd.broadcast(array(hvd.rank(), dtype, shape), 1), array(1, dtype, shape))


@on_ranks(2)
def test_every_bit_arrives(hvd):
    bits = np.random.default_rng(7).integers(0, 2**32, 4096, dtype="uint32").view("float32")  # NaNs too
    result = hvd.broadcast(bits if hvd.rank() == 0 else np.zeros_like(bits), 0)
    np.testing.assert_array_equal(result.numpy().view("uint32"), bits.view("uint32"))


@on_ranks(2)
def test_the_input_is_left_alone(hvd):
    x = tf.constant([float(hvd.rank())] * 4)
    hvd.broadcast(x, 0)
    check(x, np.full(4, hvd.rank(), "float32"))


@pytest.mark.parametrize("graph", [False, True])
@on_ranks(1, 2)
def test_the_result_stays_when_the_variable_changes(hvd, graph):
    """On the root the result shares memory with the variable."""
    variable = tf.Variable(tf.fill([5000], float(hvd.rank())))

    def step():
        result = hvd.broadcast(variable, 0)
        variable.assign_add(tf.ones([5000]))
        variable.scatter_add(tf.IndexedSlices(tf.ones([2]), tf.constant([0, 4999])))
        return result

    kept = (tf.function(step) if graph else step)()
    variable.assign_add(tf.ones([5000]))
    check(kept, np.zeros(5000, "float32"))
    assert variable[0] == hvd.rank() + 3


@pytest.mark.parametrize("root", [0.5, 1.0, "0", None])
@on_ranks(2)
def test_a_root_that_is_no_int_is_refused(hvd, root):
    with pytest.raises(TypeError, match="root_rank="):
        hvd.broadcast(tf.ones([2]), root)


@on_ranks(2)
def test_one_variable_is_no_list(hvd):
    for variable in (tf.Variable([1.0, 2.0]), tf.Variable(1.0)):
        with pytest.raises(TypeError, match="list of variables"):
            hvd.broadcast_variables(variable, 0)


@on_ranks(1, 2, 3)
def test_variables(hvd):
    root = hvd.size() - 1
    variables = [tf.Variable(array(hvd.rank(), dtype, (3, 2))) for dtype in DTYPES]
    hvd.broadcast_variables(variables, root_rank=root)
    for variable, dtype in zip(variables, DTYPES, strict=True):
        check(variable.read_value(), array(root, dtype, (3, 2)))


@on_ranks(1, 2, 3)
def test_many_variables_wait_together(hvd):
    """On a slow network each wait for the other ranks takes long. On a busy machine some may wait alone."""
    for _ in range(10):
        variables = [tf.Variable(array(hvd.rank(), "float32", (3, 2)) + number) for number in range(100)]
        before = hvd.stats()["votes"]
        hvd.broadcast_variables(variables, root_rank=0)
        votes = hvd.stats()["votes"] - before
        for number, variable in enumerate(variables):
            check(variable.read_value(), array(0, "float32", (3, 2)) + number)
        if int(hvd.allreduce(votes, op=hvd.Max)) < 70:
            return
    assert hvd.size() == 1


@on_ranks(2)
def test_variables_of_different_shapes(hvd):
    """All ranks raise, name the variable, submit the rest all the same, and go on."""
    shapes = [(3,), (2 + hvd.rank(),), *[(4,)] * 98]
    variables = [tf.Variable(tf.fill(shape, float(hvd.rank()))) for shape in shapes]
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"broadcast_variables\.1'"):
        hvd.broadcast_variables(variables, root_rank=0)
    variables = [tf.Variable([float(hvd.rank())]) for _ in shapes]
    hvd.broadcast_variables(variables, root_rank=1)
    assert [variable[0].numpy() for variable in variables] == [1.0] * 100
