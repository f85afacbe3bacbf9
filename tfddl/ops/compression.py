"""Compression of gradients while they travel."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


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


class Int8Compressor(Compressor):
    """Sends tensors as int8 with a scale for each block. Sums do not fit into int8, so that an allreduce cannot take it."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Raises a ValueError: only an exchange of local steps knows how these values are added up."""
        raise ValueError(
            "Compression.int8 is for hvd.LocalSGD and hvd.DiLoCo: use Compression.fp16 or bf16 here. "
            f"Received: compression=int8 for a tensor of shape {tensor.shape}"
        )

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Not called."""
        return tensor


class Compression:
    """The values of `compression=`: the format in which tensors travel. They arrive in their own dtype.

    A class of your own will do as well: its static method `compress(tensor)` returns the tensor that travels and a
    context, and `decompress(tensor, context)` returns the result in the dtype of the first tensor.

    Attributes:
        none: Tensors travel as they are.
        fp16: float32 and float64 travel as float16: half the bytes of float32, largest finite number 65504.
        bf16: float32 and float64 travel as bfloat16: half the bytes, the range of float32, 8 bits of precision.
        int8: Only in `LocalSGD` and `DiLoCo`: values travel as int8, rounded at random, with a scale for each 256 of them: a
            quarter of the bytes of float32.
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
        "`compression` is not a compressor: pass tfddl.Compression.none, .fp16, .bf16 or a Compressor of your own. "
        f"Received: compression={compression!r}"
    )


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
