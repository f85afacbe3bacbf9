"""These tests run where Keras is Keras 2: on TensorFlow 2.15, and with TF_USE_LEGACY_KERAS=1 (`make test-tf`)."""

from tfddl.build import discover
from tfddl.build.support import uses_keras_2

collect_ignore_glob = [] if uses_keras_2(discover.tensorflow_version() or "") else ["test_*.py"]
