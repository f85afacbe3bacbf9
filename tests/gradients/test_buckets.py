"""The bucket plan: complete, in the order of the backward pass, within its limits, equal on all ranks."""

import random

import pytest

from tfddl.gradients.buckets import BucketSizes, bucket_sizes, plan_buckets

KB = 1024


def floats(*counts):
    """Float32 gradients of so many elements each."""
    return [("float32", (count,)) for count in counts]


def test_fills_from_the_last_gradient():
    plan = plan_buckets(floats(256, 256, 256, 256, 256), BucketSizes(first=KB, later=2 * KB))
    assert plan.buckets == ((4,), (3, 2), (1, 0))


def test_a_gradient_larger_than_the_limit_travels_alone():
    plan = plan_buckets(floats(10, 1000, 10), BucketSizes(first=100, later=100))
    assert plan.buckets == ((2,), (1,), (0,))


def test_a_gradient_of_more_than_half_a_bucket_travels_alone():
    plan = plan_buckets(floats(10, 257, 10, 256, 10), BucketSizes(first=KB // 2, later=2 * KB))
    assert plan.buckets == ((4,), (3, 2), (1,), (0,))


def test_one_dtype_a_bucket_in_the_order_in_which_they_get_ready():
    gradients = [("float32", (1,)), ("float16", (1,)), ("float32", (1,)), ("float16", (1,))]
    plan = plan_buckets(gradients, BucketSizes(first=KB, later=KB))
    assert plan.buckets == ((3, 1), (2, 0))


def test_whole_cache_lines_come_first_in_a_bucket():
    plan = plan_buckets(floats(16, 10, 32, 3, 48), BucketSizes(first=KB, later=KB))
    assert plan.buckets == ((4, 2, 0, 3, 1),)


def test_unknown_shapes_travel_alone():
    gradients = [("float32", (4,)), ("float32", (None, 3)), ("float32", None), ("float32", (4,))]
    plan = plan_buckets(gradients, BucketSizes(first=KB, later=KB))
    assert plan.buckets == ((2,), (1,), (3, 0))


def test_scalars_empty_tensors_and_nothing():
    assert plan_buckets([("float64", ()), ("float64", (0, 3))], BucketSizes(16, 16)).buckets == ((1, 0),)
    assert plan_buckets([], BucketSizes(8, 8)).buckets == ()


def test_random_plans_hold_every_gradient_once_and_keep_the_limits():
    generator = random.Random(0)
    for _ in range(200):
        count = generator.randrange(1, 40)
        dtypes = [generator.choice(["float32", "float16", "float64"]) for _ in range(count)]
        gradients = [(dtype, (generator.randrange(0, 300),)) for dtype in dtypes]
        sizes = BucketSizes(first=512, later=2048)
        buckets = plan_buckets(gradients, sizes).buckets
        assert sorted(index for members in buckets for index in members) == list(range(count))
        for number, members in enumerate(buckets):
            width = {"float16": 2, "float32": 4, "float64": 8}
            assert len({dtypes[index] for index in members}) == 1
            size = {index: gradients[index][1][0] * width[dtypes[index]] for index in members}
            assert list(members) == sorted(members, key=lambda index: (size[index] % 64 != 0, -index))
            total = sum(size.values())
            assert len(members) == 1 or total <= (
                sizes.later if number or total > sizes.first else sizes.first
            )
        last = [min(members) for members in buckets]
        assert last == sorted(last, reverse=True)


def test_signature_tells_plans_apart():
    sizes = BucketSizes(KB, KB)
    base = plan_buckets(floats(10, 20), sizes).signature
    assert base == plan_buckets([("float32", [10]), ("float32", [20])], sizes).signature
    others = [
        plan_buckets(floats(20, 10), sizes),
        plan_buckets(floats(10, 20, 0), sizes),
        plan_buckets(floats(10, 20), BucketSizes(1, 1)),
        plan_buckets([("float32", (10,)), ("float16", (20,))], sizes),
        plan_buckets([("float32", (10,)), ("float32", (None,))], sizes),
        plan_buckets([("float32", (10,)), ("float32", (4, 5))], sizes),
    ]
    assert len({base, *(plan.signature for plan in others)}) == len(others) + 1


def test_signature_stays_short_and_still_sees_the_last_shape():
    sizes = BucketSizes(KB, KB)
    long = plan_buckets(floats(*[7] * 2000), sizes).signature
    assert len(long) < 600
    assert long != plan_buckets(floats(8, *[7] * 1999), sizes).signature


def test_sizes_from_the_environment(monkeypatch):
    monkeypatch.delenv("TFDDL_BUCKET_MB", raising=False)
    assert bucket_sizes() == BucketSizes(2**20, 25 * 2**20)
    monkeypatch.setenv("TFDDL_BUCKET_MB", "0.5")
    assert bucket_sizes() == BucketSizes(2**19, 2**19)
    assert bucket_sizes("2, 64") == BucketSizes(2**21, 2**26)


@pytest.mark.parametrize("text", ["", "large", "1,2,3", "0", "-1,5", "nan", "inf"])
def test_bad_sizes_are_named(text):
    if text:
        with pytest.raises(ValueError, match=f"TFDDL_BUCKET_MB.*Received: '{text}'"):
            bucket_sizes(text)
