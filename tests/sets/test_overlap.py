"""Sets that share ranks: their calls come in opposite orders and run side by side."""

from functools import partial

import numpy as np
import tensorflow as tf

from tests.harness import on_ranks
from tests.harness.flight import operations
from tests.ops.support import at_once, check, in_threads
from tests.sets.support import added, sum_of_ones


def _pairs(size):
    """Sets in a ring, each of two neighbours; of two ranks both with the global set."""
    return [[0], [1]] if size == 2 else [sorted((rank, (rank + 1) % size)) for rank in range(size)]


def _expected(process_set, seed):
    return np.full(100, sum(rank + 1 for rank in process_set.ranks) * (seed + 1), "float32")


@on_ranks(2, 3, full=(4,), limit=120)
def test_opposite_order_from_threads(hvd):
    """Each rank has a thread for each set, and starts the threads in an order of its own."""
    with added(hvd, *_pairs(hvd.size())) as sets:
        mine = [one for one in [hvd.global_process_set, *sets] if one.included()]
        wrong = []

        def work(one):
            for seed in range(100):
                value = tf.fill([100], float((hvd.rank() + 1) * (seed + 1)))
                result = hvd.allreduce(value, op=hvd.Sum, name="same", process_set=one)
                if not np.array_equal(result.numpy(), _expected(one, seed)):
                    wrong.append((one, seed, result))

        order = mine if hvd.rank() % 2 else mine[::-1]
        at_once(*(partial(work, one) for one in order))
        assert not wrong


@on_ranks(2, 3, full=(4,), limit=120)
def test_opposite_order_in_one_function(hvd):
    """One step has a collective in each set, which TensorFlow starts in any order; names count for each set."""
    with added(hvd, *_pairs(hvd.size())) as sets:
        mine = [one for one in [hvd.global_process_set, *sets] if one.included()]
        order = mine if hvd.rank() % 2 else mine[::-1]

        @tf.function
        def step(x):
            return [hvd.allreduce(x, op=hvd.Sum, process_set=one) for one in order for _ in range(2)]

        for seed in range(50):
            results = step(tf.fill([100], float((hvd.rank() + 1) * (seed + 1))))
            for index, result in enumerate(results):
                check(result, _expected(order[index // 2], seed))


@on_ranks(3)
def test_one_set_does_not_wait_for_another(hvd):
    """Ranks 0 and 1 finish their work while a collective of ranks 1 and 2 waits for rank 2."""
    with added(hvd, [0, 1], [1, 2]) as (first, second):
        late = partial(sum_of_ones, hvd, second, "late")
        with in_threads(*([late] if hvd.rank() == 1 else [])):
            if first.included():
                for _ in range(20):
                    sum_of_ones(hvd, first)
            hvd.barrier()
            if hvd.rank() == 2:
                late()
        hvd.barrier()


@on_ranks(2, 3)
def test_counters_and_flight_record_cover_all_sets(hvd):
    from tfddl import runtime

    before = runtime.stats()["requests"]
    with added(hvd, [0]) as (only,):
        added_at = runtime.stats()["requests"]
        if only.included():
            hvd.allreduce(tf.ones([3]), name="counted", process_set=only)
            assert runtime.stats()["requests"] == added_at + 1
            last = operations(only.process_set_id)[-1]
            assert (last.state, last.name) == ("ended", "counted")
    assert runtime.stats()["requests"] > before + (2 if hvd.rank() == 0 else 1)
