"""A small language model and its text, for benchmarks: a decoder-only transformer over bytes.

The text is the source of Python's standard library, the modules that are one file: about 5 MB of code and English, which
comes with every Python. Every tenth module is for validation.
"""

import sysconfig
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

BYTES = 256


@keras.saving.register_keras_serializable("tfddl.benchmarks")
class Block(keras.layers.Layer):
    """Causal attention and a feed-forward network, each behind a LayerNormalization (pre-norm).

    Args:
        width: The size of a token's vector.
        heads: The number of attention heads; it divides `width`.
        length: The number of tokens of a row.
    """

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self._shape = (-1, length, heads, width // heads)
        self._scale = (width // heads) ** -0.5
        self._mask = np.triu(np.full((length, length), -1e9, "float32"), 1)
        self._norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self._projections = keras.layers.Dense(3 * width, use_bias=False)
        self._out = keras.layers.Dense(width, use_bias=False)
        self._up = keras.layers.Dense(4 * width, "relu")
        self._down = keras.layers.Dense(width)

    def call(self, x: Any) -> Any:
        """Takes and returns float32 `[rows, length, width]`."""
        parts = ops.split(self._projections(self._norms[0](x)), 3, axis=-1)
        query, key, value = (ops.transpose(ops.reshape(part, self._shape), (0, 2, 1, 3)) for part in parts)
        scores = ops.matmul(query, ops.swapaxes(key, 2, 3)) * self._scale + self._mask
        mixed = ops.transpose(ops.matmul(ops.softmax(scores), value), (0, 2, 1, 3))
        x += self._out(ops.reshape(mixed, ops.shape(x)))
        return x + self._down(self._up(self._norms[1](x)))


@keras.saving.register_keras_serializable("tfddl.benchmarks")
class Positions(keras.layers.Layer):
    """Adds a learned vector for each position of float32 `[rows, length, width]`."""

    def build(self, shape: Any) -> None:
        """Makes the vectors."""
        self._vectors = self.add_weight(shape=shape[1:], initializer="random_normal", name="vectors")

    def call(self, x: Any) -> Any:
        """Adds."""
        return x + self._vectors


def language_model(width: int = 320, layers: int = 4, length: int = 128) -> keras.Model:
    """A transformer with the same first weights each time; 5.1 million by default.

    Args:
        width: The size of a token's vector, a multiple of 64.
        layers: The number of blocks.
        length: The number of tokens of a row.

    Returns:
        A model from int32 `[rows, length]` to the logits of each next byte, float32 `[rows, length, 256]`.
    """
    keras.utils.set_random_seed(1)
    tokens = keras.Input((length,), dtype="int32")
    x = Positions()(keras.layers.Embedding(BYTES, width)(tokens))
    for _ in range(layers):
        x = Block(width, width // 64, length)(x)
    logits = keras.layers.Dense(BYTES)(keras.layers.LayerNormalization()(x))
    return keras.Model(tokens, logits)


def text() -> tuple[np.ndarray, np.ndarray]:
    """The bytes for training and for validation, int32 vectors."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for number, module in enumerate(modules):
        parts[number % 10 == 9].append(module.read_bytes())
    training, validation = (np.frombuffer(b"".join(part), np.uint8).astype("int32") for part in parts)
    return training, validation


def rows(data: np.ndarray, count: int, length: int, seed: int) -> np.ndarray:
    """Rows that begin anywhere in the text.

    Returns:
        int32 `[count, length + 1]`: the first `length` are the tokens, the last `length` are the tokens to predict.
    """
    starts = np.random.default_rng(seed).integers(0, len(data) - length, count)
    return data[starts[:, np.newaxis] + np.arange(length + 1)]
