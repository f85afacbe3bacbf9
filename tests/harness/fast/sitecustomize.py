"""Python runs this first in every process of a test's jobs, most of whose time would go into imports.

Keras imports scikit-learn and Matplotlib where they are, a third of what TensorFlow's import takes: it is told that they
are not. Looking for garbage among what the imports make takes a sixth of the rest.
"""

import gc
import sys

gc.set_threshold(100_000, 50)


class _NotForKeras:
    """A finder that refuses while Keras is being imported, and knows nothing otherwise."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        specification = getattr(sys.modules.get("keras"), "__spec__", None)
        if name in ("sklearn", "matplotlib") and getattr(specification, "_initializing", False):
            raise ModuleNotFoundError(f"{name} is not for Keras here", name=name)


sys.meta_path.insert(0, _NotForKeras)
