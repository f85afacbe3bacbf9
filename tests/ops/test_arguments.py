"""Wrong arguments, and arguments of Horovod: the error says in one sentence how to do it."""

import pytest
import tensorflow as tf

from tests.harness import on_ranks


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
@pytest.mark.parametrize(
    "given", [tf.ones([2, 2]), tf.ones([2]).numpy(), 3.0], ids=["tensor", "array", "number"]
)
def test_a_group_is_a_list(kind, given):
    import tfddl as hvd

    with pytest.raises(
        TypeError, match=rf"grouped_{kind} takes a list of tensors; use hvd\.{kind} for one. Received: "
    ):
        getattr(hvd, f"grouped_{kind}")(given)


@pytest.mark.parametrize("argument", ["device_dense", "device_sparse"])
@pytest.mark.parametrize("kind", ["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"])
def test_devices(kind, argument):
    import tfddl as hvd

    text = f"tfddl's {kind} has no `{argument}`, .* Leave it out. Received: {argument}='/cpu:0'"
    with pytest.raises(TypeError, match=text):
        getattr(hvd, kind)([tf.ones([2])], **{argument: "/cpu:0"})


@on_ranks(1)
def test_no_name_and_no_factor(hvd):
    x = tf.ones([2])
    for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(TypeError, match=rf"name of {call.__name__} is a text .* Received: name=3"):
            call(x, name=3)

    def traced(factor):
        tf.function(lambda y: hvd.allreduce(x, prescale_factor=y))(tf.constant(factor))

    for factor in (None, [1.0], 1j, "2", tf.ones([2])):
        with pytest.raises(
            TypeError, match=r"postscale_factor of reducescatter must be a number: .*Received"
        ):
            hvd.reducescatter(x, postscale_factor=factor)
    with pytest.raises(TypeError, match=r"prescale_factor of allreduce must be a number: .*tf\.function"):
        traced(2.0)
    assert hvd.allreduce(x, prescale_factor=tf.constant(2.0))[0] == 2


@on_ranks(1, 2)
def test_the_call_before_init_is_named(hvd):
    hvd.shutdown()
    try:
        for kind in ("rank", "local_size", "is_homogeneous"):
            said = rf"use hvd\.init\(\) right after the imports\. Received: a call of hvd\.{kind}\(\)"
            with pytest.raises(ValueError, match=said):
                getattr(hvd, kind)()
        with pytest.raises(ValueError, match=r"Received: a call of hvd\.grouped_allreduce\(\)"):
            hvd.grouped_allreduce([tf.ones([2])])
        with pytest.raises(ValueError, match=r"Received: a call of hvd\.add_process_set"):
            hvd.add_process_set([0])
    finally:
        hvd.init()


@on_ranks(1, 2)
def test_a_jacobian_through_a_collective(hvd):
    """pfor runs several copies of the backward pass at once, which all have the name of one call."""

    def jacobian(use_pfor):
        x = tf.constant([1.0, 2.0, 3.0])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = hvd.allreduce(x * x, op=hvd.Sum, name="jacobian")
        return tape.jacobian(y, x, experimental_use_pfor=use_pfor)

    expected = hvd.size() * tf.linalg.diag([2.0, 4.0, 6.0])
    assert tf.reduce_all(jacobian(False) == expected)
    if hvd.size() == 1:  # with peers this error ends the job in the middle of a step
        try:
            result = jacobian(True)
        except (
            tf.errors.InvalidArgumentError
        ) as error:  # not raised if a copy ends before the next one begins
            assert "experimental_use_pfor=False" in str(error)
        else:
            assert tf.reduce_all(result == expected)
