"""These tests run where `make test-libraries` has installed the libraries: with Keras 3, then with Keras 2 (tf_keras)."""

import importlib.util

from tfddl.build import discover
from tfddl.build.support import uses_keras_2

_KERAS = 2 if uses_keras_2(discover.tensorflow_version() or "") else 3
collect_ignore_glob = [
    f"test_keras_{number}.py"
    for number in (2, 3)
    if number != _KERAS or importlib.util.find_spec("keras_tuner") is None
]
