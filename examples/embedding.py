"""Trains word vectors: the gradients of an embedding travel as the rows that a batch has used.

    tfddlrun -np 2 python examples/embedding.py
    python examples/embedding.py

Texts of 20 words out of 50,000, made up here, are about one of four subjects, which only their rarer words tell. A dense
gradient of the embedding would be 3.2 MB a step; what travels instead are at most 640 rows of 64 bytes from each process.
Ends with an error unless the accuracy on held-out texts is at least 0.9 and all processes hold the same weights.
"""

import common
import keras
import numpy as np

import tfddl as hvd

WORDS, DIMENSIONS, LENGTH, SUBJECTS = 50_000, 16, 20, 4
TRAIN, TEST = 8_000, 999


def make_texts() -> tuple[np.ndarray, np.ndarray]:
    """Words int32 [n, 20] and subjects int64 [n], the same in every process."""
    generator = np.random.default_rng(0)
    count = TRAIN + TEST
    subjects = generator.integers(0, SUBJECTS, count)
    common_words = generator.integers(0, 100, (count, LENGTH))
    # Each subject has 500 words of its own, far apart in the dictionary.
    own_words = 100 + subjects[:, None] + SUBJECTS * 24 * generator.integers(0, 500, (count, LENGTH))
    words = np.where(generator.random((count, LENGTH)) < 0.4, own_words, common_words)
    return words.astype("int32"), subjects


def main() -> None:
    """Trains, evaluates, reports."""
    options = common.parser(__doc__, epochs=3).parse_args()
    hvd.init()
    keras.utils.set_random_seed(options.seed + hvd.rank())
    words, subjects = make_texts()
    x, y = hvd.data.shard(words[:TRAIN], subjects[:TRAIN])
    # The held-out texts need no equal parts: what evaluate counts is added up.
    test = slice(TRAIN + hvd.rank(), None, hvd.size())

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(WORDS, DIMENSIONS),
            layers.GlobalAveragePooling1D(),
            layers.Dense(SUBJECTS, activation="softmax"),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    reduced = hvd.stats()["bytes_reduced"]
    model.fit(
        x,
        y,
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
    )
    reduced = hvd.stats()["bytes_reduced"] - reduced
    results = hvd.evaluate(model, words[test], subjects[test], verbose=0, return_dict=True)
    figures = {
        "bytes of a dense gradient": 4 * WORDS * DIMENSIONS,
        "bytes reduced as dense tensors per step": reduced / int(optimizer.iterations.numpy()),
    }
    common.conclude(model, "held-out accuracy", results["accuracy"], 0.9, figures)


if __name__ == "__main__":
    main()
