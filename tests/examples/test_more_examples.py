"""The examples of one subject each as a user runs them, on two ranks."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import run_script
from tests.harness.job import REPOSITORY

pytestmark = pytest.mark.slow
EXAMPLES = REPOSITORY / "examples"


def run(name, *options, size=2):
    """Runs an example that succeeds; returns what it writes."""
    result = run_script(size, EXAMPLES / name, *options)
    assert result.code == 0, result.output
    assert len(set(re.findall(r"weights of rank \d+: (\w+)", result.output))) == 1
    assert f"weights equal on all {max(size, 1)} ranks: yes" in result.output
    return result.output


def number(output, name):
    return float(re.search(rf"{name}: ([\d.,]+)", output).group(1).replace(",", ""))


@pytest.mark.parametrize(("policy", "size", "epochs"), [("mixed_float16", 2, 5), ("mixed_bfloat16", 0, 8)])
def test_mixed_precision(policy, size, epochs):
    output = run("mixed_precision.py", "--policy", policy, "--epochs", str(epochs), size=size)
    assert number(output, "held-out accuracy") >= 0.95 and number(output, "images/s") > 0
    scales = re.findall(r"loss scales: (\S+) (\S+)", output)
    assert scales == [(scales[0][0],) * 2] if policy == "mixed_float16" else scales == []


def test_embedding_rows_travel():
    output = run("embedding.py")
    assert number(output, "held-out accuracy") >= 0.9
    assert number(output, "tensors per step") < number(output, "bytes of a dense gradient") / 1000


def test_gan():
    output = run("gan.py")
    assert number(output, "points on the circle") >= 0.6
    assert len(re.findall(r"critic_loss", output)) == 20


def test_image_folder_of_digits(tmp_path):
    path = tmp_path / "best.keras"
    output = run("image_folder.py", "--checkpoint", str(path))
    assert number(output, "held-out accuracy") >= 0.95 and number(output, "images/s") > 0
    assert re.search(r"accuracy +0\.9\d +359", output), "All held-out images are in the report once."
    best = max(float(text) for text in re.findall(r"val_accuracy: ([\d.]+)", output))
    assert best >= number(output, "held-out accuracy") - 1e-4
    import tfddl as hvd

    layers = keras.models.load_model(
        path, custom_objects={"SyncBatchNormalization": hvd.SyncBatchNormalization}
    ).layers
    assert any(type(layer) is hvd.SyncBatchNormalization for layer in layers)


def test_image_folder_of_ones_own(tmp_path):
    """Two classes of colored pictures, of different numbers, in two formats."""
    generator = np.random.default_rng(0)
    for name, color, count in (("blue", 2, 70), ("red", 0, 55)):
        (tmp_path / name).mkdir()
        for index in range(count):
            pixels = generator.integers(0, 100, (12, 10, 3))
            pixels[..., color] += 120
            encode, ending = [(tf.io.encode_png, "png"), (tf.io.encode_jpeg, "jpg")][index % 2]
            path = tmp_path / name / f"{index}.{ending}"
            path.write_bytes(encode(tf.constant(pixels, tf.uint8)).numpy())
    options = [
        "--data",
        str(tmp_path),
        "--batch-size",
        "8",
        "--epochs",
        "8",
        "--size",
        "16",
        "--required",
        "0.9",
    ]
    output = run("image_folder.py", *options)
    for name in ("blue", "red"):
        assert re.search(rf" {name}( +[\d.]+){{3}} +\d+", output)
    assert re.search(r"accuracy +[\d.]+ +25\b", output)
