"""The longer examples as a user runs them: warm-up, schedule, checkpoints, files of MNIST's formats."""

import gzip
import re

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.examples.support import imported
from tests.harness import long, run_script
from tests.harness.job import REPOSITORY

EXAMPLES = REPOSITORY / "examples"


@pytest.fixture
def images():
    """The examples' module that loads images."""
    with imported(EXAMPLES, "images") as module:
        yield module


def check(result, size):
    assert result.code == 0, result.output
    assert f"weights equal on all {size} ranks: yes" in result.output
    assert len(set(re.findall(r"weights of rank \d+: (\w+)", result.output))) == 1
    assert float(re.search(r"held-out accuracy: ([\d.]+)", result.output).group(1)) >= 0.95


def logged(result, name):
    return [float(text) for text in re.findall(rf" {name}: ([\d.e-]+)", result.output)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("mnist.py", 2), long("mnist.py", 0), ("fashion_steps.py", 2)])
def test_example_learns_and_ranks_agree(name, size):
    result = run_script(size, EXAMPLES / name)
    check(result, max(size, 1))
    rate = 0.02 * max(size, 1)
    warm_up = [rate] * 3 if size == 0 else [rate * (0.5 + 0.5 * epoch / 3) for epoch in (1, 2, 3)]
    expected = [*warm_up, *[rate] * 13, *[rate / 10] * 4]
    np.testing.assert_allclose(logged(result, "lr"), expected, atol=6e-5)  # Keras prints four digits.
    assert len(logged(result, "val_accuracy")) == 20


@pytest.mark.long
def test_single_device():
    result = run_script(0, EXAMPLES / "fashion_steps.py", "--single-device")
    assert result.code == 0, result.output
    assert float(re.search(r"held-out accuracy: ([\d.]+)", result.output).group(1)) >= 0.95


@pytest.mark.slow
def test_checkpoints_and_resume(tmp_path):
    options = ("--checkpoints", str(tmp_path / "run"))
    first = run_script(2, EXAMPLES / "mnist.py", "--epochs", "2", *options)
    assert "Epoch 2/2" in first.output, first.output
    best = max(logged(first, "val_accuracy"))
    saved = keras.models.load_model(tmp_path / "run" / "best.keras")  # In a process without a job.
    assert type(saved.optimizer) is keras.optimizers.SGD
    second = run_script(2, EXAMPLES / "mnist.py", "--epochs", "6", *options)
    check(second, 2)
    assert re.findall(r"Epoch (\d+)/6", second.output) == ["3", "4", "5", "6"]
    assert logged(second, "val_accuracy")[0] > best - 0.1, "Goes on from the weights that were saved."


@pytest.mark.slow
def test_one_checkpoint_of_the_steps(tmp_path):
    path = tmp_path / "model.keras"
    run_script(2, EXAMPLES / "fashion_steps.py", "--epochs", "1", "--checkpoint", str(path))
    assert keras.models.load_model(path).input_shape == (None, 8, 8, 1)


def write_idx(path, array, pack):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.astype("uint8").tobytes()
    if pack:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["idx", "idx.gz", "npz"])
def test_files_of_mnist(images, tmp_path, kind):
    generator = np.random.default_rng(0)
    arrays = [
        generator.integers(0, 256, (5, 28, 28)),
        generator.integers(0, 10, 5),
        generator.integers(0, 256, (3, 28, 28)),
        generator.integers(0, 10, 3),
    ]
    path = tmp_path
    if kind == "npz":
        path = tmp_path / "mnist.npz"
        np.savez(path, **dict(zip(images.NPZ_NAMES, arrays, strict=True)))
    else:
        for name, array in zip(images.IDX_NAMES, arrays, strict=True):
            write_idx(tmp_path / name, array, pack=kind == "idx.gz")
    data = images.load(path)
    for found, array in ((data.train_images, arrays[0]), (data.test_images, arrays[2])):
        assert found.dtype == "float32" and found.shape == (*array.shape, 1)
        np.testing.assert_allclose(found[..., 0], array / 255, rtol=1e-6)
    assert data.train_labels.tolist() == arrays[1].tolist() and data.test_labels.dtype == "int64"
    assert data.test_labels.tolist() == arrays[3].tolist()


def test_another_file_is_refused(images, tmp_path):
    for name in images.IDX_NAMES:
        (tmp_path / name).write_bytes(b"\0\0\x08\x01\0\0\0\x05abc")
    with pytest.raises(ValueError, match=r"Not an IDX file.*train-images-idx3-ubyte"):
        images.load(tmp_path)


@pytest.mark.slow
def test_training_from_files(images, tmp_path):
    source = load_digits()
    pixels, labels = source.images * (255 / 16), source.target
    for name, array in zip(
        images.IDX_NAMES, (pixels[:1400], labels[:1400], pixels[1400:], labels[1400:]), strict=True
    ):
        write_idx(tmp_path / name, array, pack=True)
    result = run_script(2, EXAMPLES / "mnist.py", "--data", str(tmp_path), "--epochs", "2")
    assert "weights equal on all 2 ranks: yes" in result.output, result.output
    assert re.findall(r"(\d+)/\1 - ", result.output)[0] == "22", "700 images for each of two, 32 a step."
