"""The table of docs/errors.md: wrong calls raise the right error on the right ranks, and the next collective works."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.harness.flight import operations
from tests.ops.support import arguments_by_rank, in_threads
from tests.ops.test_mismatch import works
from tfddl.ops.constants import Adasum, Average, Max, Min, Product, Sum

MODES = ("eager", "function", "session")
NAME = "error.table"
Invalid, FailedPrecondition = tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError
Body = Callable[[Any], Any]


def run(mode: str, hvd: Any, body: Body) -> Any:
    """Calls `body(hvd)` eagerly, in a new tf.function or in a new session."""
    if mode == "eager":
        return body(hvd)
    if mode == "function":
        return tf.function(lambda: body(hvd))()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(body(hvd))


def reduce(shape=(3,), dtype=tf.float32, op=Sum, **factors) -> Body:
    return lambda hvd: hvd.allreduce(tf.ones(shape, dtype), op=op, name=NAME, **factors)


def group(*members, kind="grouped_allreduce") -> Body:
    """Members are shapes, of float32, pairs of shape and dtype, or None."""

    def tensor(member):
        shape, dtype = member if member and isinstance(member[0], list) else (member, tf.float32)
        return tf.ones(shape, dtype)

    def body(hvd):
        given = [None if member is None else tensor(member) for member in members]
        return [result for result in getattr(hvd, kind)(given, name=NAME) if result is not None]

    return body


def slices(width=2, dtype=tf.float32, op=Sum) -> Body:
    def body(hvd):
        rows = tf.IndexedSlices(tf.ones([2, width], dtype), tf.constant([0, 1]), tf.constant([4, width]))
        return hvd.allreduce(rows, op=op, name=NAME).values

    return body


def gather(shape=(2, 3), dtype=tf.float32) -> Body:
    return lambda hvd: hvd.allgather(tf.ones(shape, dtype), name=NAME)


def scatter(shape=(6, 2), op=Sum, dtype=tf.float32, **factors) -> Body:
    return lambda hvd: hvd.reducescatter(tf.ones(shape, dtype), op=op, name=NAME, **factors)


def send(shape=(6, 2), root=0, dtype=tf.float32) -> Body:
    return lambda hvd: hvd.broadcast(tf.ones(shape, dtype), root, name=NAME)


def exchange(shape=(6, 2), splits=None, dtype=tf.float32) -> Body:
    """`splits` may be a function of the number of ranks."""

    def body(hvd):
        given = splits(hvd.size()) if callable(splits) else splits
        result = hvd.alltoall(tf.ones(shape, dtype), given, name=NAME)
        return result[0] if given is not None else result

    return body


def barrier(hvd: Any) -> Any:
    operation = hvd.barrier(name=NAME)
    with tf.control_dependencies([] if operation is None else [operation]):
        return tf.constant(0)


@dataclasses.dataclass(frozen=True)
class Clash:
    """Rank 0 makes one call, the others make another: all get the error that quotes both."""

    first: Body
    others: Body
    said_by_first: str
    said_by_others: str


CLASHES = {
    "dtype": Clash(reduce(), reduce(dtype=tf.int64), "float32 [3]", "int64 [3]"),
    "shape": Clash(reduce([3, 4]), reduce([4, 4]), "float32 [3, 4]", "float32 [4, 4]"),
    "dimensions": Clash(reduce([4]), reduce([4, 1]), "float32 [4]", "float32 [4, 1]"),
    "scalar": Clash(reduce([]), reduce([1]), "float32 []", "float32 [1]"),
    "empty": Clash(reduce([0]), reduce([1]), "float32 [0]", "float32 [1]"),
    "operation": Clash(reduce(), reduce(op=Average), "Sum", "Average"),
    "min and max": Clash(reduce(op=Min), reduce(op=Max), "Min", "Max"),
    "product and adasum": Clash(reduce(op=Product), reduce(op=Adasum), "Product", "Adasum"),
    "prescale": Clash(reduce(), reduce(prescale_factor=0.5), "prescale_factor=1.0", "prescale_factor=0.5"),
    "postscale": Clash(reduce(postscale_factor=3), reduce(), "postscale_factor=3.0", "postscale_factor=1.0"),
    "allreduce and broadcast": Clash(reduce(), send([3]), "allreduce", "broadcast"),
    "allreduce and allgather": Clash(reduce(), gather([3]), "allreduce", "allgather"),
    "allgather and alltoall": Clash(gather([6]), exchange([6]), "allgather", "alltoall"),
    "reducescatter and allreduce": Clash(scatter([6]), reduce([6]), "reducescatter", "allreduce"),
    "barrier and broadcast": Clash(barrier, send(), "barrier", "broadcast"),
    "allreduce and rows": Clash(reduce([4, 2]), slices(), "allreduce", "allgather"),
    "rows of a slice": Clash(slices(2), slices(3), "float32 [?, 2]", "float32 [?, 3]"),
    "broadcast: shape": Clash(send([3, 4]), send([4, 4]), "float32 [3, 4]", "float32 [4, 4]"),
    "broadcast: dtype": Clash(send(), send(dtype=tf.bool), "float32 [6, 2]", "bool [6, 2]"),
    "broadcast: root": Clash(send(root=0), send(root=1), "root_rank=0", "root_rank=1"),
    "reducescatter: shape": Clash(scatter([6, 2]), scatter([5, 2]), "float32 [6, 2]", "float32 [5, 2]"),
    "reducescatter: operation": Clash(scatter(), scatter(op=Average), "Sum", "Average"),
    "reducescatter: prescale": Clash(
        scatter(), scatter(prescale_factor=2), "prescale_factor=1.0", "prescale_factor=2.0"
    ),
    "allgather: other dimensions": Clash(gather([1, 2]), gather([5, 3]), "float32 [?, 2]", "float32 [?, 3]"),
    "allgather: rank": Clash(gather([2]), gather([2, 1]), "float32 [?]", "float32 [?, 1]"),
    "allgather: dtype": Clash(gather(), gather(dtype=tf.uint8), "float32 [?, 3]", "uint8 [?, 3]"),
    "alltoall: other dimensions": Clash(
        exchange([6, 2]), exchange([6, 3]), "float32 [?, 2]", "float32 [?, 3]"
    ),
    "alltoall: dtype": Clash(exchange(), exchange(dtype=tf.int8), "float32 [?, 2]", "int8 [?, 2]"),
    "alltoall: splits on some ranks": Clash(
        exchange(), exchange(splits=lambda size: [1] * size), "dtype of splits=None", "dtype of splits=int32"
    ),
    "group: shape": Clash(group([2], [3]), group([2], [4]), "float32 [3]", "float32 [4]"),
    "group: number": Clash(group([2], [3]), group([2]), "float32 [3]", "no such tensor"),
    "group: indices": Clash(group([2], None), group(None, [2]), "members [0] of 2", "members [1] of 2"),
    "group: one mixed": Clash(
        group([2], [2]), group([2], ([2], tf.int64)), "float32 [2]", "float32 [0], int64 [1]"
    ),
    "group: mixed otherwise": Clash(
        group([2], ([2], tf.int64)),
        group(([2], tf.bfloat16), [2]),
        "float32 [0], int64 [1]",
        "bfloat16 [0], float32 [1]",
    ),
    "group: allgather": Clash(
        group([2], [2], kind="grouped_allgather"),
        group([2], ([2], tf.bool), kind="grouped_allgather"),
        "all of one dtype",
        "bool [1], float32 [0]",
    ),
    "group: reducescatter": Clash(
        group([2], ([2], tf.int8), kind="grouped_reducescatter"),
        group([2], [2], kind="grouped_reducescatter"),
        "float32 [0], int8 [1]",
        "all of one dtype",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CLASHES)
@on_ranks(2, 3)
def test_calls_that_clash(hvd, case, mode):
    clash = CLASHES[case]
    with pytest.raises(FailedPrecondition) as caught:
        run(mode, hvd, clash.first if hvd.rank() == 0 else clash.others)
    message = caught.value.message
    message = message[message.index("The ranks submitted") : message.rindex("names.")]
    said = arguments_by_rank(message)
    assert len(said) == hvd.size(), message
    for rank, text in said.items():
        assert (clash.said_by_others if rank else clash.said_by_first) in text, message
    words = tf.constant(np.frombuffer(message.encode().ljust(4096), "int64"))
    for other in np.split(hvd.allgather(words).numpy(), hvd.size()):
        np.testing.assert_array_equal(other, words)
    run(mode, hvd, clash.first)
    works(hvd)


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong call of one rank: this rank alone gets the error, before it asks its peers."""

    wrong: Body
    right: Body
    error: type[Exception]
    says: str


MISTAKES = {
    "root below": Mistake(
        send(root=-1), send(), Invalid, r"must be in \[0, \d\): pass the number of such a rank\. Received: -1"
    ),
    "root beyond": Mistake(
        send(root=99), send(), Invalid, r"must be in \[0, \d\): pass the number of such a rank\. Received: 99"
    ),
    "root of no int": Mistake(
        send(root="0"), send(), TypeError, r"an int, such as 0\. Received: root_rank='0'"
    ),
    "too few splits": Mistake(
        exchange(splits=np.zeros([0], "int32")),
        exchange(),
        Invalid,
        r"one number for each of the \d ranks: .* Received: splits \[\] of 6 rows",
    ),
    "no splits": Mistake(
        exchange(splits=[]),
        exchange(),
        Invalid,
        r"one number for each of the .* Received: splits \[\] of 6 rows",
    ),
    "too many splits": Mistake(
        exchange(splits=lambda size: [1] * (size + 1)),
        exchange(),
        Invalid,
        r"one number for each of the \d ranks: .* Received: splits \[1",
    ),
    "a negative split": Mistake(
        exchange(splits=lambda size: [-1] * size),
        exchange(),
        Invalid,
        r"must not be negative: .* Received: splits \[-1",
    ),
    "more rows than there are": Mistake(
        exchange(splits=lambda size: [7] * size),
        exchange(),
        Invalid,
        r"no more than the first dimension: .* Received: splits \[7.* of 6 rows",
    ),
    "splits of floats": Mistake(
        exchange(splits=lambda size: [1.0] * size),
        exchange(),
        TypeError,
        r"int32 or int64: cast .* Received: float32",
    ),
    "splits that are no vector": Mistake(
        exchange(splits=lambda size: [[1] * size]), exchange(), ValueError, r"a vector: .* Received: shape"
    ),
    "rows that are no multiple": Mistake(
        lambda hvd: hvd.alltoall(tf.ones([hvd.size() + 1]), name=NAME),
        exchange([6]),
        Invalid,
        r"multiple of the number of ranks: .* Received: \d rows for \d ranks",
    ),
    "allgather of a scalar": Mistake(
        gather([]), gather(), ValueError, r"at least one dimension: .* Received: a scalar"
    ),
    "reducescatter of a scalar": Mistake(
        scatter([]), scatter(), ValueError, r"at least one dimension: .* Received: a scalar"
    ),
    "alltoall of a scalar": Mistake(
        exchange([]), exchange(), ValueError, r"at least one dimension: .* Received: a scalar"
    ),
    "group with a scalar": Mistake(
        group([2], [], kind="grouped_allgather"),
        group([2], [3], kind="grouped_allgather"),
        ValueError,
        r"at least one dimension: .* Received: a scalar",
    ),
    "no such operation": Mistake(
        reduce(op=17), reduce(), ValueError, r"supports op=Average, Sum.*Received: op=17"
    ),
    "operation of reducescatter": Mistake(
        scatter(op=Max),
        scatter(),
        ValueError,
        r"reducescatter supports op=Average, Sum: .* Received: op='Max'",
    ),
    "sum of bool": Mistake(
        reduce(dtype=tf.bool), reduce(), TypeError, r"op=Sum supports .*Received: bool. Use op=Min"
    ),
    "max of complex": Mistake(
        reduce(dtype=tf.complex64, op=Max),
        reduce(),
        TypeError,
        r"Received: complex64. Complex numbers have no",
    ),
    "broadcast of strings": Mistake(
        lambda hvd: hvd.broadcast(tf.constant(["text"]), 0, name=NAME),
        send(),
        TypeError,
        r"Use broadcast_object",
    ),
    "maximum of rows": Mistake(
        slices(op=Max), slices(), ValueError, r"tf.convert_to_tensor.*Received: op=Max"
    ),
    "a factor on bool": Mistake(
        reduce(dtype=tf.bool, op=Max, prescale_factor=2.0),
        reduce(dtype=tf.bool, op=Max),
        ValueError,
        r"no meaning for bool.*Received: \(2\.0, 1\.0\)",
    ),
    "an infinite factor on integers": Mistake(
        reduce(dtype=tf.int32, postscale_factor=float("inf")),
        reduce(dtype=tf.int32),
        ValueError,
        r"must be finite for int32: .* Received: \(1\.0, inf\)",
    ),
    "a factor of Adasum": Mistake(
        reduce(op=Adasum, prescale_factor=0.5), reduce(op=Adasum), ValueError, r"Received: \(0\.5, 1\.0\)"
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", MISTAKES)
@on_ranks(2, 3)
def test_a_call_that_is_wrong_by_itself(hvd, case, mode):
    """Rank 0 makes the wrong call; the others wait for its right call of this name."""
    mistake = MISTAKES[case]
    if hvd.rank() == 0:
        with pytest.raises(mistake.error, match=mistake.says):
            run(mode, hvd, mistake.wrong)
    run(mode, hvd, mistake.right)
    works(hvd)


ROWS = {"allgather": gather(), "reducescatter": scatter(), "alltoall": exchange()}


@pytest.mark.parametrize("kind", ROWS)
@on_ranks(2, 3)
def test_a_scalar_that_shows_only_when_it_runs(hvd, kind):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def call(x):
        return getattr(hvd, kind)(x, name=NAME)

    if hvd.rank() == 0:
        with pytest.raises(
            Invalid, match=rf"'{NAME}' needs tensors with at least one dimension: .* Received: a scalar"
        ):
            call(tf.constant(1.0))
    call(tf.ones([6, 2]))
    works(hvd)


EVERY_KIND = {
    "allreduce": reduce(),
    "grouped_allreduce": group([2], [3]),
    "slices": slices(),
    "allgather": gather(),
    "grouped_allgather": group([2], kind="grouped_allgather"),
    "broadcast": send(),
    "reducescatter": scatter(),
    "grouped_reducescatter": group([2], kind="grouped_reducescatter"),
    "alltoall": exchange(),
    "barrier": barrier,
}


@pytest.mark.parametrize("mode", MODES)
@on_ranks(1, 2)
def test_before_init_and_after_shutdown(hvd, mode):
    """Python refuses the call; an op that was made before raises when it runs."""
    functions, graph = {}, tf.Graph()
    for kind, body in EVERY_KIND.items():
        functions[kind] = tf.function(lambda body=body: body(hvd))
        functions[kind]()
    with graph.as_default():
        fetches = {kind: body(hvd) for kind, body in EVERY_KIND.items()}
    hvd.shutdown()
    for kind, body in EVERY_KIND.items():
        with pytest.raises(ValueError, match=r"not been initialized; use hvd\.init\(\)"):
            run(mode, hvd, body)
        if mode == "eager":
            continue
        with pytest.raises(FailedPrecondition, match=r"not been initialized; use hvd\.init\(\)"):
            if mode == "function":
                functions[kind]()
            else:
                with tf.compat.v1.Session(graph=graph) as session:
                    session.run(fetches[kind])
    hvd.init()
    for body in EVERY_KIND.values():
        run(mode, hvd, body)
    works(hvd)


@pytest.mark.parametrize("mode", MODES)
@on_ranks(2, 3)
def test_after_a_peer_has_shut_down(hvd, mode):
    """The errors of waiting and of later calls name the rank that left; a new init() works."""
    run(mode, hvd, reduce())
    if hvd.rank() == 0:
        hvd.shutdown()
    else:
        for body in EVERY_KIND.values():
            with pytest.raises(tf.errors.UnknownError, match="rank 0 has shut down"):
                run(mode, hvd, body)
        hvd.shutdown()
    hvd.init()
    run(mode, hvd, reduce())
    works(hvd)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", EVERY_KIND)
@on_ranks(2)
def test_a_name_in_flight_twice(hvd, kind, mode):
    from mpi4py import MPI

    body = EVERY_KIND[kind]
    if hvd.rank() == 0:
        done = []
        with in_threads(lambda: done.append(run(mode, hvd, body))):
            while [each.state for each in operations() if each.name == NAME][-1:] != ["submitted"]:
                time.sleep(0.01)
            with pytest.raises(
                Invalid, match=rf"'{NAME}' was submitted while an earlier call.*different names"
            ):
                run("eager", hvd, body)
            MPI.COMM_WORLD.Barrier()
        assert len(done) == 1
    else:
        MPI.COMM_WORLD.Barrier()
        run(mode, hvd, body)
    works(hvd)
