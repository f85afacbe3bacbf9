"""Why tests of Horovod's own suite fail through the stand-in."""

import re

_OWN = "the test itself uses Keras 2"
_REASONS = {
    r"module 'tensorflow' has no attribute 'ConfigProto'": "the test itself uses TF1; it fails with Horovod too",
    r"BaseOptimizer.__init__\(\) missing 1 required positional argument: 'learning_rate'": f"{_OWN}: an optimizer class of "
    "its own",
    r"keyword arguments passed to BatchNormalization: \{'fused': False\}": f"{_OWN}: fused=",
    r"np.float16\(0.0\) not less than 1e-08": "the test compares float16 with 1e-8, which NumPy 2 rounds to 0",
}


def reason_of(test: str, error: str) -> str | None:
    """The known reason for which a test fails with this error."""
    for pattern, reason in _REASONS.items():
        if re.search(pattern, f"{test}: {error}"):
            return reason
    return None
