"""PowerSGD: matrices travel as the product of two thin ones (arXiv 1905.13727, algorithms 1 and 2)."""

from __future__ import annotations

import functools
import numbers
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfddl.gradients import error_feedback, residuals
from tfddl.gradients.error_feedback import Reduction
from tfddl.ops.compression import StatefulCompressor


class PowerSGD(StatefulCompressor):
    """Sends a gradient of `[n, m]` numbers as two matrices of `[n, rank]` and `[m, rank]` (arXiv 1905.13727).

    With M, a rank's gradient plus what it has not sent before, each step computes

        P = mean over the ranks of M Q;   orthonormal columns of P
        Q = mean over the ranks of M^T P
        the gradient is P Q^T, and each rank remembers M - P Q^T

    Q stays from step to step. A kernel of a convolution is a matrix of `[height * width * inputs, outputs]`. Vectors, and
    matrices for which the two factors would not be smaller, travel as they are. All ranks compute in float32.

    One instance may serve several optimizers, and a tape of each step. Its state belongs to this rank alone: see
    `variables`.

    Args:
        rank: The number of columns of the factors, 1 or more: what travels, and how near it comes to the gradient. Defaults
            to 2.
        seed: Of the first Q, the same on all ranks. Defaults to 0.

    Raises:
        ValueError: If `rank` is no whole number of 1 or more, or `seed` none of 0 or more.

    Example:
        On 2 ranks:

        >>> compression = hvd.PowerSGD(rank=1)
        >>> weight = tf.Variable(tf.zeros([20, 30]))
        >>> with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
        ...     loss = tf.reduce_sum(weight) * float(hvd.rank())  # gradients 0 and 1
        >>> tape.gradient(loss, weight)[0, :2].numpy().round(3)
        array([0.5, 0.5], dtype=float32)
        >>> compression.bytes_per_step()
        Traffic(sent=204.0, uncompressed=2400.0)
    """

    spelling = "PowerSGD"

    def __init__(self, rank: int = 2, seed: int = 0) -> None:
        super().__init__()
        self.rank = _checked("rank", rank, 1)
        self.seed = _checked("seed", seed, 0)

    def options(self) -> tuple[Any, ...]:
        """The arguments of the constructor."""
        return self.rank, self.seed

    def __repr__(self) -> str:
        return f"PowerSGD(rank={self.rank}, seed={self.seed})"


def reduce(reduction: Reduction, compression: PowerSGD) -> list[tf.Tensor]:
    """Reduces dense gradients.

    All P and the gradients that travel as they are leave in one op for each dtype, then all Q in a second.

    A rank whose Q differs from that of the others, because it has joined for some steps, harms one step alone, as the result
    is the projection of the mean of all M on the columns of P, whatever P is. After the step all ranks have one Q.

    Returns:
        The reduced gradients, in their dtypes; the same bits on all ranks.
    """
    tensors = reduction.tensors
    shapes = {slot: shape for slot, each in enumerate(tensors) if (shape := _factors(each, compression.rank))}
    plain = [slot for slot in range(len(tensors)) if slot not in shapes]
    state = error_feedback.state_of(reduction, lambda: _initial(shapes, compression.seed), ())
    variables = list(state.variables.values())
    errors, warm = variables[: len(shapes)], variables[len(shapes) :]
    matrices = [
        tf.reshape(tf.cast(tensors[slot], tf.float32), [shape.rows, shape.columns]) + error
        for (slot, shape), error in zip(shapes.items(), errors, strict=True)
    ]
    first = [tf.matmul(each, q) for each, q in zip(matrices, warm, strict=True)]
    travelling = [*first, *(tensors[slot] for slot in plain)]
    together = [list(range(len(travelling)))] if shapes else reduction.together
    means = reduction.allreduce(travelling, together, reduction.name)
    results = dict(zip(plain, means[len(shapes) :], strict=True))
    if shapes:
        # Not the paper's Gram-Schmidt: of a P without rank, as that of a gradient of zeros, its Q would stay zero for ever.
        bases = [tf.linalg.qr(each).q for each in means[: len(shapes)]]
        second = [
            tf.matmul(each, basis, transpose_a=True) for each, basis in zip(matrices, bases, strict=True)
        ]
        # The sum of ones is how many times the mean the results are: the number of ranks for op=Sum, and a share of 1 while
        # some ranks have joined.
        second.append(tf.ones([1]))
        *coefficients, times = reduction.allreduce(
            second, [list(range(len(second)))], f"{reduction.name}.coefficients"
        )
        products = [_product(*pair) for pair in zip(bases, coefficients, strict=True)]
        for slot, product in zip(shapes, products, strict=True):
            results[slot] = tf.cast(tf.reshape(product, tensors[slot].shape), tensors[slot].dtype)
        finite = error_feedback.all_finite([*means, *coefficients, *(results[slot] for slot in shapes)])
        left = [each - product / times for each, product in zip(matrices, products, strict=True)]
        error_feedback.update(finite, list(zip(errors, left, strict=True)))
        error_feedback.update(finite, list(zip(warm, coefficients, strict=True)))
        state.traffic = error_feedback.traffic(reduction, [*first, *second], travelling[len(shapes) :])
    else:
        state.traffic = error_feedback.traffic(reduction, [], travelling)
    return [results[slot] for slot in range(len(tensors))]


def _product(p: tf.Tensor, q: tf.Tensor) -> tf.Tensor:
    """P Q^T, with the same bits on all processors: the kernel of a matmul, and so its rounding, depends on the processor."""

    def add(total: tf.Tensor, pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies([total]):  # one product in memory at a time
            return total + _outer(*pair)

    first, *rest = zip(tf.unstack(p, axis=1), tf.unstack(q, axis=1), strict=True)
    return functools.reduce(add, rest, _outer(*first))


def _outer(column: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
    return column[:, tf.newaxis] * row


class _Factors(NamedTuple):
    """The shapes `[rows, rank]` of P and `[columns, rank]` of Q."""

    rows: int
    columns: int
    rank: int


def _factors(tensor: tf.Tensor, rank: int) -> _Factors | None:
    """The shapes of the factors of a gradient; None if they would not be smaller than the gradient."""
    if not error_feedback.is_compressible(tensor) or tensor.shape.rank < 2:
        return None
    *above, columns = tensor.shape.as_list()
    rows = int(np.prod(above))
    shape = _Factors(rows, columns, min(rank, rows, columns))
    return shape if (rows + columns) * shape.rank < rows * columns else None


def _initial(shapes: dict[int, _Factors], seed: int) -> dict[str, np.ndarray]:
    """Residuals of zero, then the first Q of all gradients: random numbers that are the same on all ranks."""
    errors = [np.zeros([shape.rows, shape.columns], np.float32) for shape in shapes.values()]
    random = [
        np.random.default_rng([seed, slot]).normal(size=[shape.columns, shape.rank]).astype(np.float32)
        for slot, shape in shapes.items()
    ]
    return residuals.named(residuals.UNSENT, errors) | residuals.named(residuals.EQUAL, random)


def _checked(name: str, value: Any, least: int) -> int:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} of PowerSGD is a whole number: pass {least} or more. Received: {name}={value!r}"
        )
    return int(value)
