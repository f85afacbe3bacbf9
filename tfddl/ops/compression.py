"""Compression of gradients while they travel."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from tfddl.runtime import basics


class Compressor:
    """The interface of a compression: subclass it, or write any class with these two static methods."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Makes a gradient smaller.

        Args:
            tensor: The gradient.

        Returns:
            The tensor that travels, and a context for `decompress`.
        """
        raise NotImplementedError(
            "A Compressor lacks its first method: define compress(tensor) -> (tensor, context)."
        )

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Turns the reduced tensor into a gradient again.

        Args:
            tensor: The reduced tensor, shape and dtype as `compress` made them.
            context: The context that `compress` has returned with the tensor.

        Returns:
            The gradient, in its original dtype.
        """
        raise NotImplementedError(
            "A Compressor lacks its second method: define decompress(tensor, context) -> tensor."
        )


class NoneCompressor(Compressor):
    """Sends gradients as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Returns the tensor itself."""
        return tensor


def _narrow(tensor: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, Any]:
    """Casts a floating-point tensor of more than 16 bits; leaves other tensors as they are."""
    original = tensor.dtype
    if original.is_floating and original.size > dtype.size:
        tensor = tf.cast(tensor, dtype)
    return tensor, original


def _widen(tensor: tf.Tensor, context: tf.DType) -> tf.Tensor:
    return tensor if tensor.dtype == context else tf.cast(tensor, context)


class FP16Compressor(Compressor):
    """Sends float32 and float64 gradients as float16: half the bytes, largest finite number 65504."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Casts to float16; 16-bit and integer tensors stay as they are."""
        return _narrow(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Casts back to the original dtype."""
        return _widen(tensor, context)


class BF16Compressor(Compressor):
    """Sends float32 and float64 gradients as bfloat16: half the bytes, range of float32, 8 bits."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Casts to bfloat16; 16-bit and integer tensors stay as they are."""
        return _narrow(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Casts back to the original dtype."""
        return _widen(tensor, context)


class Traffic(NamedTuple):
    """The bytes that one rank sends for the dense gradients of one step.

    Attributes:
        sent: With the compression: what it gives to collectives, 2 (N - 1) / N times for N ranks, once on each of the two
            ways of a reduction: to the ranks that add up, and back.
        uncompressed: The same of the gradients in their own dtypes.
    """

    sent: float
    uncompressed: float


class StatefulCompressor(Compressor):
    """A compression that reduces gradients by itself, and adds what it has not sent to the next step (error feedback).

    Its state belongs to one rank. Two instances with the same options are equal, but have a state each. A copy and a pickle
    have the same options and no state.

    Attributes:
        spelling: The name of the class in `hvd`.
        waiting: Values for variables that are not made yet.
    """

    spelling: ClassVar[str]

    def __init__(self) -> None:
        self._states: dict[tuple[Any, ...], Any] = {}
        self.waiting: dict[str, np.ndarray] = {}

    @property
    def variables(self) -> list[tf.Variable]:
        """This rank's state, empty before the first step: float32 residuals, and what else the compression remembers.

        The order and the shapes are the same on all ranks, the values are not.
        """
        return list(self.named_variables().values())

    def named_variables(self, *, of_all: bool = False) -> dict[str, tf.Variable]:
        """`variables`, by names that are the same each time a program runs.

        Args:
            of_all: Whether to leave out those for process sets other than that of all ranks.
        """
        # Ranks may trace their functions in different orders.
        keys = sorted((key for key in self._states if not of_all or key[0] == 0), key=lambda key: key[:2])
        states = [self._states[key] for key in keys]
        return {f"{state.name}.{name}": each for state in states for name, each in state.variables.items()}

    def resume(self, values: Mapping[str, np.ndarray]) -> None:
        """Takes the values of `named_variables` of an earlier run. Variables that are not made yet take theirs later.

        A variable for which there is no value, or one of another shape, gets its first value. Rows of zeros may be missing
        at the end, or be more than needed, as another number of ranks had other rows.
        """
        self.waiting = dict(values)
        for key, state in self._states.items():
            if key[0] == 0 and state.shape and state.shape[0] != basics.size():
                # After a loss. The next step makes its variables again.
                state.variables, state.shape = {}, ()
            if not state.variables:
                continue
            for name, value in self.waiting_for(state.name, state.initial()).items():
                state.variables[name].assign(value)

    def waiting_for(self, name: str, first: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values that wait for the state of this name, or its first values."""
        found = {each: self.waiting.pop(f"{name}.{each}", None) for each in first}
        fitting = {
            each: _with_rows(value, first[each].shape) for each, value in found.items() if value is not None
        }
        if len(fitting) < len(first) or any(value is None for value in fitting.values()):
            return first
        return {each: value for each, value in fitting.items() if value is not None}

    def bytes_per_step(self) -> Traffic:
        """The bytes that this rank sends in a step, with this compression and without it.

        Sparse gradients do not count. With several optimizers, tapes or functions, each counts once.

        Returns:
            A tuple of `sent` and `uncompressed`, bytes; 0 and 0 before the first step, and with one rank.
        """
        traffic = [state.traffic for state in self._states.values()]
        return Traffic(sum(each.sent for each in traffic), sum(each.uncompressed for each in traffic))

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Raises a ValueError: one tensor alone has no state from step to step."""
        raise ValueError(
            f"{cls.spelling} keeps errors from step to step: give it to DistributedOptimizer or DistributedGradientTape, "
            "and use Compression.fp16 or bf16 here. "
            f"Received: a tensor of shape {tensor.shape}"
        )

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Not called."""
        return tensor

    def options(self) -> tuple[Any, ...]:
        """The arguments of the constructor."""
        return ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.options() == self.options()

    def __hash__(self) -> int:
        return hash((type(self), self.options()))

    def __repr__(self) -> str:
        return f"{self.spelling}{self.options()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.options()


def _with_rows(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The value with rows of zeros more or less at its end; None if it does not fit."""
    if value.shape == shape:
        return value
    if value.ndim != len(shape) or value.ndim == 0 or value.shape[1:] != shape[1:] or value[shape[0] :].any():
        return None
    kept = value[: shape[0]]
    return np.concatenate([kept, np.zeros([shape[0] - len(kept), *shape[1:]], value.dtype)])


class Int8Compressor(StatefulCompressor):
    """Sends tensors as int8 with a scale for each 256 values, a quarter of the bytes of float32."""

    spelling = "Compression.int8"


class Compression:
    """The values of `compression=`: the format in which tensors travel. They arrive in their own dtype.

    A class of your own will do as well: its static method `compress(tensor)` returns the tensor that travels and a
    context, and `decompress(tensor, context)` returns the result in the dtype of the first tensor.

    Attributes:
        none: Tensors travel as they are.
        fp16: float32 and float64 travel as float16: half the bytes of float32, largest finite number 65504.
        bf16: float32 and float64 travel as bfloat16: half the bytes, the range of float32, 8 bits of precision.
        int8: For optimizers, tapes, `LocalSGD` and `DiLoCo`: values travel as int8, rounded at random, with a scale for each
            256 of them: a quarter of the bytes of float32. An optimizer or a tape adds what the rounding has lost to its
            next gradients (error feedback). The residuals live in an instance, `hvd.Compression.int8()`: an optimizer makes
            one if it gets the class, for tapes make one for all steps.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor


def check_compression(compression: Any) -> Any:
    """Returns `compression` if it is a compressor.

    Raises:
        TypeError: It has no `compress` or no `decompress`.
    """
    if callable(getattr(compression, "compress", None)) and callable(
        getattr(compression, "decompress", None)
    ):
        return compression
    raise TypeError(
        "`compression` is not a compressor: pass hvd.Compression.none, .fp16, .bf16 or .int8, hvd.PowerSGD(rank=4), or a "
        "Compressor of your own. "
        f"Received: compression={compression!r}"
    )


def is_stateful(compression: Any) -> bool:
    """Whether `compression` is a `StatefulCompressor`, or such a class."""
    kind = compression if isinstance(compression, type) else type(compression)
    return issubclass(kind, StatefulCompressor)


def is_int8(compression: Any) -> bool:
    """Whether `compression` is `Compression.int8`, or an instance of it."""
    return compression is Int8Compressor or isinstance(compression, Int8Compressor)


def name_of(compression: Any) -> str:
    """A name with all options, equal on all ranks."""
    if isinstance(compression, StatefulCompressor):
        return repr(compression)
    if isinstance(compression, type) and issubclass(compression, StatefulCompressor):
        return compression.spelling
    return getattr(compression, "__name__", type(compression).__name__)


def run_compressed(
    run: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]], tensors: Sequence[tf.Tensor], compression: Any
) -> list[tf.Tensor]:
    """Runs a collective on compressed tensors.

    Args:
        run: The collective, which returns one result for each compressed tensor.
        tensors: The tensors to compress.
        compression: A compressor: see `Compression`.

    Returns:
        The decompressed results.

    Raises:
        TypeError: `compression` is not a compressor.
    """
    check_compression(compression)
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = run([tensor for tensor, _ in compressed])
    contexts = [context for _, context in compressed]
    return [compression.decompress(y, context) for y, context in zip(results, contexts, strict=True)]
