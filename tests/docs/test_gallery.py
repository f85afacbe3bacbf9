"""docs/guides/examples.md shows every example, with what it has printed and its picture."""

import os

import pytest

from packages.gallery.entries import PAGE, PICTURES, SCALING, read, rewrite
from packages.gallery.runs import Run
from tests.harness.job import REPOSITORY

ENTRIES = read(PAGE.read_text())
MOST_BYTES = 60_000
PRINTED = [  # as `fit` prints with verbose=2, and with verbose=1 into a file
    "[0] Epoch 1/3",
    "[0] 45/45 - 2s - 40ms/step - accuracy: 0.5000 - loss: 1.5000 - val_loss: 7.0",
    "[0] Epoch 2/3",
    "[0] 44/45 ━━━━ 0s 9ms/step - accuracy: 0.1000 - loss: 9.0",
    "[0] 45/45 ━━━━ 0s 9ms/step - accuracy: 0.1000 - loss: 9.0",
    "[0] 45/45 ━━━━ 0s 9ms/step - accuracy: 0.7500 - loss: 5.0e-01 - val_loss: 6.0",
    "[0] Epoch 3: finished gradual learning rate warmup to 0.04.",
    "[0] Epoch 3/3",
    "[0] 45/45 - 0s - 8ms/step - accuracy: 0.8750 - loss: 0.2500 - val_loss: 5.0",
    "[0] held-out accuracy: 0.9000",
]


def test_every_example_has_an_entry():
    programs = [*REPOSITORY.glob("examples/*.ipynb"), *REPOSITORY.glob("examples/*.py")]
    names = {path.name for path in programs if path.suffix == ".ipynb" or "__main__" in path.read_text()}
    shown = [entry.example for entry in ENTRIES if not entry.timeline and entry.example != SCALING]
    assert sorted(shown) == sorted(names)
    assert sum(entry.timeline for entry in ENTRIES) == 1
    assert SCALING in {entry.example for entry in ENTRIES}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.picture.stem)
def test_entry_has_output_and_picture(entry):
    assert 0 < entry.picture.stat().st_size < MOST_BYTES
    assert f"]({os.path.relpath(entry.picture, PAGE.parent)})" in entry.text
    words = [*entry.metrics, *(["1 process", "2 processes"] if entry.metrics else [])]
    assert [word for word in words if f">{word}<" not in entry.picture.read_text()] == []
    if entry.example != SCALING:
        commands = [line for line in entry.text.splitlines() if line.startswith("    $ ")]
        assert commands and entry.example in commands[0]
        assert len([line for line in entry.text.splitlines() if line.startswith("    ")]) > 4


def test_no_picture_is_left_over():
    assert {entry.picture for entry in ENTRIES} == set(PICTURES.iterdir())


def test_curves_and_times_of_the_lines():
    run = Run("", 2, PRINTED, [0.0, 2.0, 2.0, 2.3, 2.4, 2.5, 2.6, 2.6, 3.3, 4.0])
    assert run.curve("loss") == [(1, 1.5), (2, 0.5), (3, 0.25)]
    assert run.curve("accuracy") == [(1, 0.5), (2, 0.75), (3, 0.875)]
    assert run.curve("val_loss") == [(1, 7), (2, 6), (3, 5)]
    assert (run.unit, run.pace()) == ("epoch", pytest.approx(0.65))
    steps = Run("", 2, ["[0] step 0: loss 2.0", "[0] step 50: loss 1.0"], [1.0, 2.0])
    assert (steps.unit, steps.curve("loss")) == ("batch", [(0, 2.0), (100, 1.0)])
    assert steps.pace() == pytest.approx(0.01)


def test_only_the_texts_of_entries_change():
    page = "# A\n\n<!-- gallery: a.py: x -->\nold\n<!-- end -->\nB\n<!-- gallery: b.py: x -->\nold\n<!-- end -->\n"
    changed = rewrite(page, lambda entry: "    new\n" if entry.example == "a.py" else None)
    assert changed == page.replace("old\n<!-- end -->\nB", "\n    new\n\n<!-- end -->\nB")
