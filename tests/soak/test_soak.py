"""The rule of `make soak`, and a short run of it."""

import threading

import numpy as np
import pytest

from tests.soak.jobs import hashes, soak
from tests.soak.report import plot
from tests.soak.samples import Sample, leaks, take

STEPS = range(50, 1050, 50)


def series(**changed):
    """Samples of a process that holds the same all the time, but for some quantities."""
    noise = np.random.default_rng(1).normal(size=len(STEPS))
    flat = {
        "rss": 500 + noise,
        "shared": [2.0] * len(STEPS),
        "descriptors": [20] * len(STEPS),
        "threads": [9] * len(STEPS),
    }
    columns = flat | changed
    return [
        Sample(step, **{kind: columns[kind][index] for kind in columns}) for index, step in enumerate(STEPS)
    ]


WARM_UP = [300, 400, 450, 480, 495, 500] + [500] * 14


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"rss": WARM_UP, "threads": [5] * 6 + [9] * 14}, []),
        ({"rss": [500 + 0.02 * step for step in STEPS]}, ["rss grows by 13.0 MB"]),
        ({"shared": [2 + 0.02 * step for step in STEPS]}, ["shared grows by 13.0 MB"]),
        ({"descriptors": [20] * 10 + [21] * 10}, ["descriptors are between 20 and 21"]),
        ({"threads": [9] * 19 + [10]}, ["threads are between 9 and 10"]),
    ],
)
def test_what_is_flat(changed, found):
    assert leaks(series(**changed)) == found


def test_a_sample_shows_what_a_process_holds():
    before = take(1)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with open("/dev/null"):
        kept = np.ones(32 << 20, "uint8")
        after = take(2)
    over.set()
    thread.join()
    assert kept.nbytes / 2**20 - 1 < after.rss - before.rss
    assert (after.descriptors, after.threads) == (before.descriptors + 1, before.threads + 1)


def test_a_plot_goes_from_the_lowest_to_the_highest():
    assert plot([1, 2, 3]) == "▁▄█"
    assert plot([5, 5]) == "▁▁"
    assert len(plot(range(1000))) == 40


@pytest.mark.long
def test_a_short_job_leaks_nothing():
    done = []
    for samples in soak(300, 2, 0, done.append):
        assert leaks(samples) == []
    assert done == sorted(done)


@pytest.mark.long
def test_a_step_gives_the_same_weights_each_time():
    assert len(hashes(20, 2) | hashes(5, 2)) == 1
