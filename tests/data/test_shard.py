"""A tf.data.Dataset in equal parts, whatever its cardinality and structure."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tfddl import data
from tfddl.data import order

Point = collections.namedtuple("Point", "x more")
CARDINALITIES = ("known", "unknown")


def numbers(count, cardinality="known"):
    dataset = tf.data.Dataset.range(count)
    return dataset if cardinality == "known" else dataset.filter(lambda _: True)


def parts(dataset, size, **options):
    """What each of `size` ranks gets."""
    shards = [data.shard(dataset, rank=rank, size=size, **options) for rank in range(size)]
    return [list(shard.as_numpy_iterator()) for shard in shards]


@pytest.mark.parametrize("cardinality", CARDINALITIES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", range(4, 14))
def test_drop_leaves_out_less_than_one_each(count, size, cardinality):
    found = parts(numbers(count, cardinality), size)
    # A job of one rank has nothing to leave out.
    assert found == [list(range(rank, count // size * size, size)) for rank in range(size)]


@pytest.mark.parametrize("cardinality", CARDINALITIES)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("count", range(1, 14))
def test_repeat_covers_everything(count, size, cardinality):
    found = parts(numbers(count, cardinality), size, remainder="repeat")
    each = -(-count // size)
    assert [len(part) for part in found] == [each] * size
    assert {number for part in found for number in part} == set(range(count))
    assert [[part[i] for part in found] for i in range(count // size)] == [
        list(range(i * size, (i + 1) * size)) for i in range(count // size)
    ]
    if count % size:
        last = list(range(count // size * size, count))
        assert [part[-1] for part in found] == [last[rank % len(last)] for rank in range(size)]


@pytest.mark.parametrize("remainder", ["drop", "repeat"])
def test_cardinality_stays_known(remainder):
    each = {"drop": 3, "repeat": 4}[remainder]
    shards = [data.shard(numbers(7), rank=rank, size=2, remainder=remainder) for rank in range(2)]
    assert [int(shard.cardinality()) for shard in shards] == [each, each]
    unknown = data.shard(numbers(7, "unknown"), rank=0, size=2, remainder=remainder)
    assert int(unknown.cardinality()) == tf.data.UNKNOWN_CARDINALITY


def test_endless():
    shard = data.shard(tf.data.Dataset.range(5).repeat(), rank=1, size=2)
    assert int(shard.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert list(shard.take(6).as_numpy_iterator()) == [1, 3, 0, 2, 4, 1]


def test_a_generator_is_run_once_a_pass():
    passes = []

    def generate():
        passes.append(1)
        yield from range(7)

    dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec((), tf.int64))
    shard = data.shard(dataset, rank=1, size=3)
    assert [list(shard.as_numpy_iterator()) for _ in range(2)] == [[1, 4], [1, 4]]
    assert len(passes) == 2


@pytest.mark.parametrize("cardinality", CARDINALITIES)
def test_batches_are_dealt_whole_and_the_short_one_last(cardinality):
    found = parts(numbers(11, cardinality).batch(3), 2)
    assert [[batch.tolist() for batch in part] for part in found] == [
        [[0, 1, 2], [6, 7, 8]],
        [[3, 4, 5], [9, 10]],
    ]
    found = parts(numbers(11, cardinality).batch(3, drop_remainder=True), 2)
    assert [[batch.tolist() for batch in part] for part in found] == [[[0, 1, 2]], [[3, 4, 5]]]


STRUCTURES = {
    "dict": lambda i: {"a": i, "b": {"c": tf.fill((i,), i)}},
    "tuple": lambda i: (i, (i, i)),
    "namedtuple": lambda i: Point(i, {"k": tf.as_string(i)}),
    "one_in_a_tuple": lambda i: (i,),
    "none": lambda i: (i, None, {"a": None, "b": i}),
    "ragged": lambda i: (tf.RaggedTensor.from_row_lengths(tf.range(i), [i]), i),
    "sparse": lambda i: {"s": tf.sparse.from_dense(tf.stack([i, 0, i]))},
    "bool_and_half": lambda i: (i % 2 == 0, tf.cast(i, tf.bfloat16)),
}


@pytest.mark.parametrize("remainder", ["drop", "repeat"])
@pytest.mark.parametrize("structure", sorted(STRUCTURES))
def test_structure(structure, remainder):
    source = tf.data.Dataset.range(1, 6).map(STRUCTURES[structure])
    for dataset in (source, source.filter(lambda *_: True)):
        shard = data.shard(dataset, rank=0, size=2, remainder=remainder)
        assert shard.element_spec == source.element_spec
        expected = [element for i, element in enumerate(source) if i in (0, 2, 4)]
        for element, wanted in zip(shard, expected if remainder == "repeat" else expected[:2], strict=True):
            assert type(element) is type(wanted)
            tf.nest.assert_same_structure(element, wanted, expand_composites=True)
            left, right = (tf.nest.flatten(value, expand_composites=True) for value in (element, wanted))
            for one, other in zip(left, right, strict=True):
                assert one is other is None or np.array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("remainder", ["drop", "repeat"])
def test_rows_of_a_ragged_tensor(remainder):
    rows = [[1], [2, 3], [], [4, 5, 6], [7]]
    ragged, count = tf.ragged.constant(rows), tf.range(5)
    for structure in (ragged, (count, ragged), Point(ragged, {"k": count, "none": None})):
        source = tf.data.Dataset.from_tensor_slices(structure)
        place = tf.nest.flatten(structure).index(ragged)
        for dataset in (source, source.filter(lambda *_: True)):
            shard = data.shard(dataset, rank=1, size=3, remainder=remainder)
            assert shard.element_spec == source.element_spec
            found = [tf.nest.flatten(element)[place].numpy().tolist() for element in shard]
            assert found == [[2, 3], [7]][: len(found)] and len(found) == (2 if remainder == "repeat" else 1)
            batch = next(iter(shard.batch(2)))
            assert tf.nest.flatten(batch)[place].to_list() == found


def test_a_seeded_shuffle_is_dealt_disjointly_and_anew_in_each_epoch():
    tf.random.set_seed(1)
    dataset = tf.data.Dataset.range(20).shuffle(20, seed=5)
    shards = [data.shard(dataset, rank=rank, size=2) for rank in range(2)]
    # As two processes would have it: each goes through an iterator of its own.
    epochs = [[list(shard.as_numpy_iterator()) for _ in range(2)] for shard in shards]
    tf.random.set_seed(1)
    again = tf.data.Dataset.range(20).shuffle(20, seed=5)
    assert [list(again.as_numpy_iterator())[0::2] for _ in range(2)] == epochs[0]
    assert epochs[0][0] != epochs[0][1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda dataset: dataset.shuffle(9), "shuffled without a seed"),
        (lambda dataset: dataset.shuffle(9).map(lambda x: x).prefetch(1), "shuffled without a seed"),
        (lambda dataset: tf.data.Dataset.zip((dataset, dataset.shuffle(9))), "shuffled without a seed"),
        (
            lambda dataset: dataset.map(lambda x: x, num_parallel_calls=2, deterministic=False),
            "deterministic=False",
        ),
    ],
)
def test_uncertain_order_is_refused(change, text):
    tf.random.set_seed(None)
    with pytest.raises(ValueError, match=text):
        data.shard(change(numbers(9)), rank=0, size=2)
    data.shard(change(numbers(9)), rank=0, size=1)  # Nothing to overlap with.


def chosen(dataset, **options):
    return tf.data.Dataset.choose_from_datasets(
        [dataset, numbers(8)], numbers(2).repeat(8).shuffle(16, **options)
    )


def shuffled(start, **options):
    return tf.data.Dataset.range(8 * start, 8 * start + 8).shuffle(8, **options)


def drawn(**options):
    return tf.random.uniform((), maxval=2, dtype=tf.int64, **options)


def capturing_filter(number):
    return numbers(9).filter(lambda y: y > number)


def capturing_key(number):
    return numbers(9).group_by_window(lambda y: y * number, lambda key, group: group, window_size=4)


def augmented(x):
    return x + drawn()


INSIDE = {
    "interleave": lambda dataset, **options: dataset.interleave(
        lambda x: shuffled(x, **options), cycle_length=1
    ),
    "parallel": lambda dataset, **options: dataset.interleave(
        lambda x: shuffled(x, **options), num_parallel_calls=2
    ),
    "nested": lambda dataset, **options: dataset.flat_map(
        lambda x: numbers(2).flat_map(lambda y: shuffled(x + y, **options))
    ),
    "map": lambda dataset, **options: dataset.map(lambda x: shuffled(x, **options)).flat_map(
        lambda inner: inner
    ),
    "sampled": lambda dataset, **options: dataset.flat_map(
        lambda x: tf.data.Dataset.sample_from_datasets([numbers(4), numbers(4)], **options)
    ),
    "filter": lambda dataset, **options: dataset.filter(lambda x: drawn(**options) == 0),
    "selector": chosen,
    "repeat": lambda dataset, **options: dataset.flat_map(
        lambda x: tf.data.Dataset.from_tensors(x).repeat(1 + drawn(**options))
    ),
    "take_sometimes": lambda dataset, **options: dataset.batch(4).flat_map(
        lambda x: tf.data.Dataset.from_tensor_slices(x).take(
            tf.cond(x[0] > 1, lambda: drawn(**options), lambda: tf.constant(2, tf.int64))
        )
    ),
    "either": lambda dataset, **options: dataset.flat_map(
        lambda x: tf.cond(
            drawn(**options) == 0, lambda: numbers(2), lambda: numbers(2).concatenate(numbers(1))
        )
    ),
    "branch": lambda dataset, **options: dataset.flat_map(
        lambda x: tf.switch_case(
            tf.cast(x % 2, tf.int32),
            [lambda: numbers(2), lambda: numbers(3).filter(lambda y: drawn(**options) == 0)],
        )
    ),
    "helper": lambda dataset, **options: dataset.flat_map(
        lambda x: numbers(2).repeat(1 + tf.function(drawn)(**options))
    ),
    "beside": lambda dataset, **options: dataset.batch(4).flat_map(
        lambda x: tf.data.Dataset.from_tensor_slices((tf.random.shuffle(x, **options), tf.constant([7] * 4)))
    ),
    "argsort": lambda dataset, **options: dataset.batch(4).flat_map(
        lambda x: tf.data.Dataset.from_tensor_slices(
            tf.gather(x, tf.argsort(tf.random.uniform(tf.shape(x), **options)))
        )
    ),
    "rows": lambda dataset, **options: dataset.batch(4).flat_map(
        lambda x: tf.data.Dataset.from_tensor_slices(tf.random.shuffle(x, **options) + 1)
    ),
    "mask": lambda dataset, **options: dataset.batch(4).flat_map(
        lambda x: tf.data.Dataset.from_tensor_slices(tf.boolean_mask(x, x < drawn(**options)))
    ),
    "first_rows": lambda dataset, **options: dataset.batch(4).flat_map(
        lambda x: tf.data.Dataset.from_tensor_slices(x[: drawn(**options)])
    ),
    "group_by_window": lambda dataset, **options: dataset.group_by_window(
        lambda x: drawn(**options), lambda key, group: group.map(augmented), window_size=4
    ),
    "captured": lambda dataset, **options: dataset.flat_map(lambda x: capturing_filter(drawn(**options))),
    "key": lambda dataset, **options: dataset.flat_map(lambda x: capturing_key(drawn(**options))),
    "window_size": lambda dataset, **options: dataset.group_by_window(
        lambda x: x, lambda key, group: group, window_size_func=lambda key: 1 + drawn(**options)
    ),
    "nested_filter": lambda dataset, **options: dataset.flat_map(
        lambda x: numbers(9).filter(lambda y: drawn(**options) == 0)
    ),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_an_uncertain_order_inside_of_a_function_is_refused(kind):
    change = INSIDE[kind]
    tf.random.set_seed(None)
    with pytest.raises(ValueError, match=r"shuffled without a seed.*Received: <_(?!Prefetch)"):
        data.shard(change(numbers(9)).prefetch(1), rank=0, size=2)
    data.shard(change(numbers(9), seed=5), rank=0, size=2)
    tf.random.set_seed(0)
    data.shard(change(numbers(9), seed=0), rank=0, size=2)
    tf.random.set_seed(1)
    data.shard(change(numbers(9)), rank=0, size=2)


def in_parallel(x, deterministic):
    return numbers(9).map(lambda y: x + y, num_parallel_calls=2, deterministic=deterministic)


UNORDERED = {
    "flat_map": lambda d: numbers(9).flat_map(lambda x: in_parallel(x, d)),
    "nested": lambda d: numbers(9).interleave(lambda x: numbers(2).flat_map(lambda y: in_parallel(x + y, d))),
    "interleave": lambda d: numbers(9).flat_map(
        lambda x: numbers(9).interleave(numbers, num_parallel_calls=2, deterministic=d)
    ),
    "batch": lambda d: numbers(9).flat_map(
        lambda x: numbers(9).batch(2, num_parallel_calls=2, deterministic=d)
    ),
    "selector": lambda d: tf.data.Dataset.choose_from_datasets(
        [numbers(9)], numbers(9).map(lambda x: 0 * x, num_parallel_calls=2, deterministic=d)
    ),
    "outside": lambda d: numbers(9).interleave(numbers, num_parallel_calls=2, deterministic=d).prefetch(1),
}


@pytest.mark.parametrize("kind", UNORDERED)
def test_an_unordered_step_is_refused(kind):
    with pytest.raises(ValueError, match=r"deterministic=False, perhaps in a .*Received: <_(?!Prefetch)"):
        data.shard(UNORDERED[kind](False), rank=0, size=2)
    for ordered in (None, True):
        data.shard(UNORDERED[kind](ordered), rank=0, size=2)


def test_an_order_behind_large_arrays_is_refused(monkeypatch):
    """To look at it would take seconds and twice the memory, and fail beyond 2 GiB."""
    monkeypatch.setattr(order, "_LARGE", 1000)
    large = tf.constant(np.zeros([1, 1001]), tf.int8)
    rows, captured = (
        tf.data.Dataset.from_tensor_slices(large),
        numbers(9).map(lambda x: tf.gather(large, 0 * x)),
    )
    for dataset in (rows, captured):
        with pytest.raises(ValueError, match=r"too large: shard before interleave.* more than 1000 bytes"):
            data.shard(dataset.interleave(each, num_parallel_calls=2, deterministic=False), rank=0, size=2)
        data.shard(dataset.flat_map(each), rank=0, size=2)
    unknown = tf.data.experimental.from_variant(tf.data.experimental.to_variant(rows), rows.element_spec)
    monkeypatch.setattr(type(unknown), "_as_serialized_graph", too_large)
    with pytest.raises(ValueError, match=r"too large: shard before interleave.* 2 GiB"):
        data.shard(unknown, rank=0, size=2)


def each(x):
    return tf.data.Dataset.from_tensors(x)


def too_large(*_, **options):
    raise tf.errors.InvalidArgumentError(None, None, "more than 2 GiB")


def test_a_shuffle_in_the_reader_of_a_saved_dataset_is_refused(tmp_path):
    tf.random.set_seed(None)
    numbers(4).save(str(tmp_path), shard_func=lambda x: x)

    def loaded(**options):
        return tf.data.Dataset.load(
            str(tmp_path), reader_func=lambda shards: shards.shuffle(4, **options).flat_map(lambda each: each)
        )

    for dataset in (loaded(), numbers(2).flat_map(lambda x: loaded())):
        with pytest.raises(ValueError, match="shuffled without a seed"):
            data.shard(dataset, rank=0, size=2)
    data.shard(loaded(seed=1), rank=0, size=2)
    data.shard(tf.data.Dataset.load(str(tmp_path)), rank=0, size=2)


def test_random_numbers_that_leave_elements_in_their_places():
    tf.random.set_seed(None)
    dataset = numbers(9).map(augmented).flat_map(lambda x: numbers(2).map(augmented))
    order = dataset.map(lambda x: tf.random.shuffle([x, x])).flat_map(lambda x: shuffled(x[0], seed=x[1]))
    data.shard(order, rank=0, size=2)
    inside = dataset.group_by_window(lambda x: x, lambda key, group: group.map(augmented), window_size=4)
    branches = inside.flat_map(
        lambda x: tf.cond(x > 1, lambda: numbers(2).map(augmented), lambda: numbers(3).map(augmented))
    )
    data.shard(branches, rank=0, size=2)
    selector = numbers(2).repeat(4)
    data.shard(tf.data.Dataset.choose_from_datasets([branches, dataset], selector), rank=0, size=2)


@on_ranks(2)
def test_seeds_inside_of_a_function_that_differ_by_rank(hvd):
    for kind, step in (("interleave", "Interleave"), ("filter", "Filter"), ("repeat", "FlatMap")):
        tf.random.set_seed(1 + hvd.rank())
        with pytest.raises(
            ValueError,
            match=rf"of random numbers that.*rank 0: 1\. {step}Dataset with seeds \(1, 5\); rank 1: .* \(2, 5\)",
        ):
            hvd.data.shard(INSIDE[kind](numbers(9), seed=5))


def test_the_option_for_uncertain_order_is_refused():
    options = tf.data.Options()
    options.deterministic = False
    with pytest.raises(ValueError, match="deterministic=False"):
        data.shard(numbers(9).with_options(options), rank=0, size=2)


def test_shuffling_afterwards_needs_no_seed():
    assert int(data.shard(numbers(9), rank=0, size=2).shuffle(4).cardinality()) == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rank": 0, "size": 5}, "elements=4, size=5"),
        ({"rank": 2, "size": 2}, "rank=2, size=2"),
        ({"rank": -1, "size": 2}, "rank=-1, size=2"),
        ({"rank": 1}, "rank=1, size=None"),
        ({"size": 2}, "rank=None, size=2"),
        ({"rank": 0, "size": 2, "remainder": "pad"}, "remainder='pad'"),
    ],
)
def test_errors_quote_what_they_received(arguments, text):
    with pytest.raises(ValueError, match=text):
        data.shard(numbers(4), **arguments)


def test_a_graph_is_refused():
    traced = tf.function(lambda: data.shard(numbers(4), rank=0, size=2).reduce(0, lambda total, _: total + 1))
    with tf.Graph().as_default():
        for function in (lambda: data.shard(numbers(4), rank=0, size=2), traced):
            with pytest.raises(
                ValueError, match=r"shard_arrays .* dataset.shard\(hvd.size\(\), hvd.rank\(\)\)"
            ):
                function()


def test_every_kind_of_data():
    x, y = np.arange(7), np.arange(7) * 10
    mine = {"rank": 1, "size": 3}
    assert [list(part) for part in data.shard(x, y, **mine)] == [[1, 4], [10, 40]]
    assert data.shard(list(range(7)), **mine) == [1, 4]
    assert [int(each) for each in data.shard(numbers(7), **mine)] == [1, 4]
    batches = data.shard(Batches(), **mine)
    assert isinstance(batches, data.ShardedPyDataset)
    assert [int(batches[index][0]) for index in range(batches.num_batches)] == [1, 4]


class Batches(keras.utils.PyDataset):
    """Seven batches of one number."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return np.array([index])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((iter([1]),), r"from_generator.*Received: list_iterator"),
        (
            ((np.zeros((8, 3)), np.ones((8, 1))),),
            r"x, y = hvd.data.shard\(x, y\).*Received: a tuple of ndarray, ndarray",
        ),
        (([numbers(4)],), r"one by one.*Received: a list of"),
        (({"a": [np.zeros(8)]},), r"one by one.*Received: a list of ndarray"),
        (({"a": numbers(4)},), r"arrays with rows.*Received: \S+Dataset"),
        (({"a": {"b": 1}},), r"arrays with rows.*Received: int"),
        (("abcd",), r"arrays with rows.*Received: str"),
        ((np.array(3),), r"arrays with rows.*Received: ndarray"),
        ((tf.ragged.constant([[1], [2, 3]]),), r"with tf\.data\.Dataset\.from_tensor_slices.*: RaggedTensor"),
        (({"a": tf.sparse.eye(2)},), r"with tf\.data\.Dataset\.from_tensor_slices.*Received: SparseTensor"),
        (
            (numbers(4), np.zeros(4)),
            r"takes one tf\.data\.Dataset, or arrays: .* Received: \S+Dataset, ndarray",
        ),
    ],
)
def test_other_data_is_refused(given, text):
    with pytest.raises(TypeError, match=text):
        data.shard(*given, rank=0, size=2)


@pytest.mark.parametrize(
    ("given", "kind", "known"),
    [
        (np.zeros(4), "arrays", "rank, size, process_set"),
        (numbers(4), "tf.data.Dataset", "remainder, rank, size, process_set"),
        (Batches(), "PyDataset", "shuffle, seed, remainder, .*process_set"),
    ],
)
def test_other_options_are_refused(given, kind, known):
    with pytest.raises(
        TypeError, match=f"shard of {kind} has no option rest: use one of {known}. Received: "
    ):
        data.shard(given, rest="repeat", rank=0, size=2)


def gathered(hvd, shard):
    """Every rank's elements, in the order of ranks; equally many."""
    mine = np.array(list(shard.as_numpy_iterator()))
    counts = hvd.allgather(np.array([len(mine)]), name="count").numpy()
    assert len(set(counts.tolist())) == 1
    return hvd.allgather(mine, name="elements").numpy().reshape(hvd.size(), -1)


@pytest.mark.parametrize("remainder", ["drop", "repeat"])
@pytest.mark.parametrize("cardinality", CARDINALITIES)
@on_ranks(1, 2, 3)
def test_ranks_share_everything(hvd, cardinality, remainder):
    found = gathered(hvd, hvd.data.shard(numbers(13, cardinality), remainder=remainder))
    kept = 13 // hvd.size() * hvd.size() if remainder == "drop" else 13
    assert set(found.ravel().tolist()) == set(range(kept))
    assert found.size == (kept if remainder == "drop" else -(-13 // hvd.size()) * hvd.size())


@on_ranks(1, 2, 3)
def test_equally_seeded_ranks_share_a_shuffle(hvd):
    tf.random.set_seed(4)
    found = gathered(hvd, hvd.data.shard(tf.data.Dataset.range(12).shuffle(12, seed=1)))
    assert sorted(found.ravel().tolist()) == list(range(12))
    assert found.T.ravel().tolist() != list(range(12))


@on_ranks(2, 3)
def test_a_global_seed_per_rank_changes_a_seeded_shuffle_and_is_refused(hvd):
    tf.random.set_seed(4 + hvd.rank())
    with pytest.raises(
        ValueError, match=r"same dataset, in the same order.*rank 0: .*\(4, 1\); rank 1: .*\(5, 1\)"
    ):
        hvd.data.shard(tf.data.Dataset.range(12).shuffle(12, seed=1))
    tf.random.set_seed(None)


@on_ranks(2, 3)
def test_different_lengths_are_refused_on_every_rank(hvd):
    with pytest.raises(ValueError, match="rank 0: cardinality 12; rank 1: cardinality 13"):
        hvd.data.shard(tf.data.Dataset.range(12 + hvd.rank()))
    found = gathered(hvd, hvd.data.shard(tf.data.Dataset.range(12)))
    assert found.size == 12, "The job goes on."


@on_ranks(2)
def test_an_unseeded_shuffle_is_refused_on_every_rank(hvd):
    tf.random.set_seed(None)
    with pytest.raises(ValueError, match="without a seed"):
        hvd.data.shard(tf.data.Dataset.range(12).shuffle(12))
