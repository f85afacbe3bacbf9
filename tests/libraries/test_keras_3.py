"""Libraries of Keras 3. Each rank has data of its own, so weights are equal only if gradients are combined."""

import sys

import numpy as np
import pytest

from tests.harness import on_ranks, run_script
from tests.keras.support import check_equal_on_all_ranks
from tests.libraries.support import callbacks

SMALL = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "max_sequence_length": 16,
}


def _texts(hvd, rows, words):
    tokens = np.random.default_rng(hvd.rank()).integers(0, words, (rows, 16))
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}


@pytest.mark.parametrize("jit", [False, True])
@on_ranks(2)
def test_a_text_classifier_of_keras_hub(hvd, jit):
    import keras
    import keras_hub

    keras.utils.set_random_seed(hvd.rank())
    backbone = keras_hub.models.BertBackbone(vocabulary_size=200, **SMALL)
    model = keras_hub.models.BertTextClassifier(backbone=backbone, num_classes=2, preprocessor=None)
    x = _texts(hvd, 64, 200)
    x["segment_ids"] = np.zeros_like(x["token_ids"])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.AdamW(1e-3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit)
    y = x["token_ids"][:, 0] % 2
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=callbacks(hvd)).history
    check_equal_on_all_ranks(hvd, model.trainable_weights)
    assert len(set(hvd.allgather_object(history["accuracy"][-1]))) == 1


@on_ranks(2)
def test_low_rank_adapters_of_keras_hub(hvd):
    import keras
    import keras_hub

    keras.utils.set_random_seed(hvd.rank())
    backbone = keras_hub.models.GPT2Backbone(vocabulary_size=100, **SMALL)
    backbone.enable_lora(4)
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = _texts(hvd, 32, 100)
    y = np.roll(x["token_ids"], -1, axis=1)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks(hvd))
    assert 0 < len(model.trainable_weights) < len(model.weights) / 2
    check_equal_on_all_ranks(hvd, model.weights)


@pytest.mark.parametrize("kind", ["RandomSearch", "BayesianOptimization", "Hyperband"])
@on_ranks(2)
def test_a_search_of_keras_tuner(hvd, kind, tmp_path):
    """All ranks try the same models, since the search has the same seed, and see the same losses."""
    import keras
    import keras_tuner

    def build(choices):
        units = choices.Int("units", 4, 16, 4)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(1)])
        rate = choices.Float("rate", 1e-4, 1e-2, sampling="log")
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(rate)), "mse")
        return model

    length = {"max_epochs": 3} if kind == "Hyperband" else {"max_trials": 3}
    tuner = getattr(keras_tuner, kind)(
        build, objective="val_loss", seed=3, directory=tmp_path / str(hvd.rank()), **length
    )
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 8))
    y = x.sum(1)
    tuner.search(x, y, validation_data=(x, y), epochs=2, batch_size=16, verbose=0, callbacks=callbacks(hvd))
    best = tuner.get_best_hyperparameters()[0].values
    assert hvd.allgather_object(best) == [best] * hvd.size()
    check_equal_on_all_ranks(hvd, tuner.get_best_models()[0].trainable_weights)


UNCHANGED = """
import sys
import keras
import keras_tuner
import numpy as np

def build(choices):
    units = choices.Int("units", 4, 16, 4)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model

tuner = keras_tuner.RandomSearch(build, objective="val_loss", max_trials=3, directory=sys.argv[1])
x = np.random.normal(size=(64, 8))
tuner.search(x, x.sum(1), validation_split=0.25, epochs=2, verbose=0)
model = tuner.get_best_models()[0]
print("best:", tuner.get_best_hyperparameters()[0].values, np.abs(model.layers[0].kernel.numpy()).sum())
"""


def test_an_unchanged_search_of_keras_tuner(tmp_path):
    """All processes share a directory, where process 0 writes the weights."""
    launcher = [sys.executable, "-m", "tfddl.launch.run", "--auto", "-np", "2"]
    environment = {"TFDDL_SEED": "5"}
    result = run_script(2, UNCHANGED, str(tmp_path / "two"), launcher=launcher, environment=environment)
    assert result.code == 0, result.output
    found = [line.split("best:")[1] for line in result.output.splitlines() if "best:" in line]
    assert len(found) == 2 and found[0] == found[1]
