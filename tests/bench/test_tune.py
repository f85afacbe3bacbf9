"""`tfddl tune`: its choice, its files, and a job with them."""

import json
import sys

import keras
import pytest
import yaml
from click.testing import CliRunner

from tests.harness import run_script
from tests.hosts.support import job_lab_or_skip
from tfddl import cli
from tfddl.bench.rounds import Timing
from tfddl.bench.tune import candidates
from tfddl.bench.tune.steps import random_inputs
from tfddl.launch import horovod_settings

JOB = [sys.executable, "-m", "tfddl.launch.run"]
CLI = "from tfddl.cli import main; main()"


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([("b", (90.0, 80.0, 95.0, 85.0)), ("c", (70.0, 70.0, 70.0, 70.0))], "c"),
        ([("b", (90.0, 90.0, 200.0, 300.0))], "a"),  # faster in half of the rounds
        ([("b", (99.0, 99.0, 99.0, 99.0))], "a"),  # by one per cent
        ([("b", (97.0, 90.0, 97.0, 60.0))], "a"),  # quartiles 0.825 and 0.97, gain 0.065
        ([], "a"),
    ],
)
def test_the_choice(others, expected):
    """By hand: all rounds of `a` take 100 us."""
    timings = {"a": Timing((100.0,) * 4), **{name: Timing(blocks) for name, blocks in others}}
    lines = candidates.compare(timings, "a")
    assert candidates.best(lines, "a") == expected
    assert (lines[0]["ratio"], lines[0]["ms"]) == (1.0, 0.1)


def test_settings_are_compared_in_the_same_round():
    timings = {"a": Timing((100.0, 200.0, 400.0)), "b": Timing((90.0, 180.0, 360.0))}
    (_, other) = candidates.compare(timings, "a")
    assert (other["ratio"], other["p25"], other["p75"]) == pytest.approx((0.9, 0.9, 0.9))


def test_only_settings_that_make_different_buckets():
    found = candidates.candidates([("float32", [1 << 20]), ("float32", [1 << 20])])  # 4 MiB each
    assert [(each.megabytes, each.buckets) for each in found] == [("1,25", 2), ("4096", 1)]
    assert candidates.candidates([("float32", [10])]) == [candidates.Candidate("1,25", 1)]


@pytest.mark.parametrize("megabytes", ["1,25", "0.25,4", "1e-06", "4096"])
def test_a_file_says_what_was_measured(megabytes):
    content = yaml.safe_load(f"fusion-threshold-mb: {candidates.Candidate(megabytes, 1).in_a_file}")
    assert horovod_settings.split(content) == ({"TFDDL_BUCKET_MB": megabytes}, {})


def test_a_file_without_levels_of_hosts():
    content = yaml.safe_load("hierarchical-allreduce: false")
    assert horovod_settings.split(content) == ({"TFDDL_HIERARCHICAL_ALLREDUCE": "0"}, {})


def test_one_process():
    result = CliRunner().invoke(cli.main, ["tune", "--rounds", "8"])
    assert result.exit_code == 2 and "8 is not in the range x>=9" in result.output
    result = run_script(0, CLI, "tune")
    assert result.code == 1
    assert "start a job, such as tfddlrun -np 2 tfddl tune" in result.output


def test_inputs_in_the_structure_of_the_model():
    """A dict and a tuple, of texts, whole numbers and floats; Sequential; a dict of one."""
    vectorize = keras.layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4)
    text, number = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int32")
    z, other = keras.Input((3,), name="z"), keras.Input((3,), name="other")
    embed = keras.layers.Embedding(8, 4)
    flat = [keras.layers.Flatten()(embed(each)) for each in (vectorize(text), number)]
    joined = keras.layers.Concatenate()([*flat, z])
    models = [
        keras.Model({"z": z, "b": (text, number)}, joined),
        keras.Model({"other": other}, keras.layers.Dense(2)(other)),
        keras.Model((z, other), keras.layers.Add()([z, other])),
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
    ]
    for model in models:
        inputs = random_inputs(model, 5, seed=1)
        assert model(inputs).shape[0] == 5
    made = random_inputs(models[0], 5, seed=1)
    assert made["b"][0].numpy().tolist() == [[b"a"]] * 5
    assert set(made) == {"z", "b"} and made["z"].numpy().std() > 0


MODELS = """
import sys, keras
for name, length in (("model", 6), ("any", None)):
    inputs = keras.Input((length,), dtype="int32"), keras.Input((3,))
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(10, 4)(inputs[0]))
    outputs = keras.layers.Dense(5)(keras.layers.Concatenate()([x, inputs[1]]))
    keras.Model(inputs, [outputs, x]).save(sys.argv[1] + f"/{name}.keras")
"""


@pytest.mark.long
def test_several_hosts(tmp_path):
    lab, path = job_lab_or_skip(tmp_path), tmp_path / "tuned.json"
    assert run_script(0, MODELS, str(tmp_path)).code == 0
    words = ["--model", str(tmp_path / "model.keras"), "--batch", "1", "--rounds", "9", "--json", str(path)]
    launcher = [*lab, *JOB, "-np", "4", "-H", "hostA:2,hostB:2"]
    result = run_script(
        0, CLI, "tune", *words, launcher=launcher, environment={"OMPI_MCA_btl_sm_backing_directory": None}
    )
    assert result.code == 0, result.output
    lines = json.loads(path.read_text())["hosts"]
    assert [(line["setting"], line["#wrong"]) for line in lines] == [("1", 0), ("0", 0)]
    assert lines[0]["ratio"] == 1 and all(line["ms"] > 0 for line in lines)
    assert "best: TFDDL_HIERARCHICAL_ALLREDUCE=" in result.output


@pytest.mark.long
def test_a_job_with_a_model_of_ones_own(tmp_path):
    made = run_script(0, MODELS, str(tmp_path))
    assert made.code == 0, made.output
    files = {name: tmp_path / f"tuned.{name}" for name in ("yaml", "json", "svg")}
    tune = [*JOB, "-np", "2"]
    words = [
        "--rounds",
        "9",
        "--batch",
        "4",
        "-o",
        files["yaml"],
        "--json",
        files["json"],
        "--plot",
        files["svg"],
    ]
    result = run_script(
        2, CLI, "tune", "--model", str(tmp_path / "model.keras"), *map(str, words), launcher=tune
    )
    assert result.code == 0, result.output
    document = json.loads(files["json"].read_text())
    assert [line["setting"] for line in document["compression"]] == ["none", "fp16", "bf16", "int8"]
    assert all(
        line["#wrong"] == 0 and line["ms"] > 0 for line in document["buckets"] + document["compression"]
    )
    assert "TFDDL_BUCKET_MB" in files["svg"].read_text()
    shows = "import os; print('buckets of', os.environ['TFDDL_BUCKET_MB'])"
    launcher = [*JOB, "--config-file", str(files["yaml"]), "-np", "1"]
    assert "buckets of " in run_script(1, shows, launcher=launcher).output
    for model, words in (
        ("any.keras", "a fixed shape but for the batch"),
        ("none", "resnet20, cnn, vgg, or a file"),
    ):
        path = str(tmp_path / model) if "." in model else model
        result = run_script(2, CLI, "tune", "--model", path, launcher=tune)
        assert result.code == 1 and words in result.output, result.output
