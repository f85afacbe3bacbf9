"""Gradients of whole models, as lists of shapes, and the sizes of the models to train."""

import math
from collections.abc import Callable

Shape = tuple[int, ...]


def resnet50() -> list[Shape]:
    """The 161 trainable tensors of ResNet-50 in the order of the forward pass, 25,557,032 floats.

    The original network: convolutions without bias, each followed by a batch normalization with scale and
    offset; stages of 3, 4, 6 and 3 bottlenecks (He et al., "Deep Residual Learning", table 1); 1,000 classes.
    """
    shapes = _convolution(7, 3, 64)
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += _convolution(1, channels, width)
            shapes += _convolution(3, width, width)
            shapes += _convolution(1, width, 4 * width)
            if block == 0:  # The shortcut changes the number of channels.
                shapes += _convolution(1, channels, 4 * width)
            channels = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


def _convolution(kernel: int, inputs: int, outputs: int) -> list[Shape]:
    return [(kernel, kernel, inputs, outputs), (outputs,), (outputs,)]


def vgg16() -> list[Shape]:
    """The 32 trainable tensors of VGG-16, 138,357,544 floats (Simonyan and Zisserman, table 1, column D)."""
    shapes: list[Shape] = []
    channels = 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            shapes += [(3, 3, channels, width), (width,)]
            channels = width
    for inputs, outputs in ((7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)):
        shapes += [(inputs, outputs), (outputs,)]
    return shapes


def many_small() -> list[Shape]:
    """1,000 tensors of 1 KB, which show the cost of each tensor."""
    return [(256,)] * 1000


def floats(shapes: list[Shape]) -> int:
    """The number of elements of a set."""
    return sum(math.prod(shape) for shape in shapes)


SETS: dict[str, Callable[[], list[Shape]]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "1000x1KB": many_small,
}
"""The sets by their names on the command line."""

MODELS = {"resnet20": 272_282, "cnn": 4_216_522, "vgg": 14_487_946}
"""Number of trained weights of each model of `models.py`."""
