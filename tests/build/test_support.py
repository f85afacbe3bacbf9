"""Each unsupported version gives a clear error that quotes it."""

import platform
import re
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from tfddl.build.support import (
    KERAS,
    TENSORFLOW,
    UnsupportedError,
    check_keras,
    check_platform,
    check_tensorflow,
    untested,
)

ROOT = Path(__file__).parents[2]
OLDEST, NEWEST = (f"{major}.{minor}" for major, minor in TENSORFLOW)
NEXT = f"{TENSORFLOW[1][0]}.{TENSORFLOW[1][1] + 1}"


def _refusal(call: object, *arguments: object) -> str:
    with pytest.raises(UnsupportedError) as caught:
        call(*arguments)  # type: ignore[operator]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_this_machine_is_supported() -> None:
    check_platform()


def test_a_new_tensorflow_is_met_everywhere() -> None:
    """CONTRIBUTING.md lists the steps for a new version. This test finds a forgotten step."""
    extras = re.findall(r"tensorflow[^=\n]*>=2\.16,<(\S+)", (ROOT / "setup.cfg").read_text())
    assert extras == [NEXT, NEXT, NEXT]
    pinned = dict(
        re.findall(r"^(keras|tensorflow-cpu)==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.M)
    )
    assert pinned == {"keras": f"{KERAS[1][0]}.{KERAS[1][1]}", "tensorflow-cpu": NEWEST}
    older = {path.name for path in (ROOT / "constraints").glob("tf*.txt")}
    assert older == {f"tf2.{minor}.txt" for minor in range(TENSORFLOW[0][1], TENSORFLOW[1][1])}
    assert f"TensorFlow {OLDEST} to {NEWEST}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("version", ["2.15.1", "2.16.2", "2.21.0", "2.21.0rc1", "2.22.0", "3.0.0"])
def test_supported_tensorflow(version: str) -> None:
    check_tensorflow(version)


@pytest.mark.parametrize("version", ["1.15.5", "2.14.1"])
def test_older_tensorflow_is_refused(version: str) -> None:
    message = _refusal(check_tensorflow, version)
    assert f"{OLDEST} to {NEWEST}" in message
    assert f"'tensorflow-cpu>={OLDEST},<{NEXT}'" in message
    assert f"Received: TensorFlow {version}" in message


def test_no_tensorflow_names_both_packages() -> None:
    message = _refusal(check_tensorflow, None)
    assert f"'tensorflow-cpu>={OLDEST},<{NEXT}'" in message and f"[and-cuda]>={OLDEST},<{NEXT}'" in message


def test_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    for version in ("3.4.0", "3.15.1", "3.99.0", None):
        check_keras(version, "2.21.0")
    check_keras("2.15.0", "2.15.1")
    for version in ("2.15.0", "3.3.3"):
        assert f"Keras 3.4 or newer: pip install 'keras>=3.4'. Received: Keras {version}" in _refusal(
            check_keras, version, "2.16.2"
        )
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    check_keras("3.3.3", "2.16.2")  # tf_keras is used, and Keras 3 is only installed


def test_what_is_newer_than_the_tests_is_named() -> None:
    assert untested(f"{NEWEST}.0", "3.15.1") is None
    assert untested("2.15.1", None) is None
    assert untested(f"{NEXT}.0", "3.15.0") == f"not tested with TensorFlow {NEXT}.0 (tested up to {NEWEST})"
    both = untested("3.0.0rc1", "4.1.0")
    assert both is not None
    assert f"TensorFlow 3.0.0rc1 (tested up to {NEWEST}) and Keras 4.1.0 (tested" in both


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_other_python_is_refused(version: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    version_info = namedtuple("version_info", "major minor micro")
    monkeypatch.setattr(sys, "version_info", version_info(*version, 0))
    assert "3.11 to 3.13" in _refusal(check_platform)


@pytest.mark.parametrize(
    ("function", "value"),
    [("system", "Darwin"), ("machine", "ppc64le"), ("libc_ver", ("", "")), ("python_implementation", "PyPy")],
)
def test_other_platform_is_refused(function: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, function, lambda: value)
    assert "Received: " in _refusal(check_platform)
