"""The images that the examples train on: handwritten digits by default, MNIST or Fashion-MNIST from files.

The digits are the 1,797 images of 8 x 8 pixels that scikit-learn ships: nothing is downloaded.
"""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

OPTION_HELP = "directory or .npz of MNIST or Fashion-MNIST; scikit-learn's digits without it"
NPZ_NAMES = ("x_train", "y_train", "x_test", "y_test")
IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclasses.dataclass(frozen=True)
class Images:
    """Ten classes of grey images, the same in every process.

    Attributes:
        train_images: float32 [n, height, width, 1], from 0 to 1.
        train_labels: int64 [n].
        test_images: float32 [m, height, width, 1], held out.
        test_labels: int64 [m].
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(path: Path | None = None) -> Images:
    """Loads images from files, or the digits.

    Args:
        path: A file `.npz` as Keras has it (`x_train`, `y_train`, `x_test`, `y_test`), or the directory with the
            four files of MNIST or Fashion-MNIST (`train-images-idx3-ubyte` and so on, with or without `.gz`).
            Defaults to `None`: the digits.

    Raises:
        OSError: If a file is not there.
        ValueError: If it holds something else.
    """
    if path is None:
        return _digits()
    if path.is_dir():
        arrays = [_read_idx(path, name) for name in IDX_NAMES]
    else:
        with np.load(path) as archive:
            arrays = [archive[name] for name in NPZ_NAMES]
    train_images, train_labels, test_images, test_labels = arrays
    return Images(
        _scaled(train_images, 255),
        train_labels.astype("int64"),
        _scaled(test_images, 255),
        test_labels.astype("int64"),
    )


def _digits() -> Images:
    source = load_digits()
    images, labels = _scaled(source.images, 16), source.target.astype("int64")
    order = np.random.default_rng(0).permutation(len(images))  # The same in every process.
    test, train = order[:360], order[360:]
    return Images(images[train], labels[train], images[test], labels[test])


def _scaled(images: np.ndarray, largest: int) -> np.ndarray:
    return (images[..., np.newaxis] / largest).astype("float32")


def _read_idx(directory: Path, name: str) -> np.ndarray:
    """Two zeros, the type (8: bytes), the number of dimensions; each dimension in 4 bytes; the values."""
    packed = directory / f"{name}.gz"
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else (directory / name).read_bytes()
    dimensions = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = tuple(np.frombuffer(content[4 : 4 + 4 * dimensions], ">u4"))
    values = np.frombuffer(content[4 + 4 * dimensions :], "uint8")
    if not dimensions or len(values) != np.prod(shape, dtype="int64"):
        raise ValueError(
            f"Not an IDX file of bytes. Received: {directory / name}, beginning with {content[:16]!r}"
        )
    return values.reshape(shape)
