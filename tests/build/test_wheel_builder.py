"""The program behind `make wheel`, without a compiler."""

import zipfile
from pathlib import Path

import click
import pytest

from packages.wheel import check, inputs
from packages.wheel.libraries import FLAGS, headers_in
from packages.wheel.toolchain import Toolchain, run
from tfddl.build.discover import find_tensorflow
from tfddl.build.support import TENSORFLOW


def test_the_flags_are_those_of_tensorflow() -> None:
    found = find_tensorflow()
    assert found is not None
    assert found.flags == FLAGS


def test_every_supported_tensorflow_is_pinned() -> None:
    versions = inputs.versions_of(())
    assert list(versions) == [f"2.{minor}" for minor in range(TENSORFLOW[0][1], TENSORFLOW[1][1] + 1)]
    assert list(inputs.versions_of(("2.21", "2.15"))) == ["2.15", "2.21"]
    with pytest.raises(click.BadParameter, match=r"no TensorFlow 2\.14, but 2\.15"):
        inputs.versions_of(("2.14",))


def test_headers_are_read_from_what_the_compiler_writes() -> None:
    text = "a.o: /src/a.cc /tf/include/b.h \\\n /tf/include/x/../a.h /tf/include2/c.h\\\n  /usr/include/d.h\n"
    assert headers_in([text, "b.o: /tf/include/b.h /tf/include/y/c.h"], "/tf/include") == (
        "a.h",
        "b.h",
        "y/c.h",
    )


def test_a_command_that_fails_shows_the_end_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(["echo", "before"], log)
    with pytest.raises(click.ClickException, match=r"sh failed; .*log:\n(.*\n)*why"):
        run(["sh", "-c", "echo why; exit 3"], log)
    assert "before" in log.read_text()


def test_a_wheel_that_needs_other_libraries_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's toolchain made this one, for a wheel of Debian 11's."""
    import numpy._core._multiarray_umath as extension

    wheel = tmp_path / "tfddl-1-py3-none-manylinux_2_31_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(extension.__file__, "tfddl/binaries/libtfddl.so")
        archive.writestr("tfddl-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        archive.writestr("tfddl-1.dist-info/RECORD", "tfddl/binaries/libtfddl.so,,\n")
    debian = Toolchain(tmp_path, (2, 31), root=tmp_path)
    with pytest.raises(
        click.ClickException, match=r"manylinux_2_31_x86_64 and the libraries .*libmpi\.so\.12"
    ):
        check.check_wheel(wheel, debian)
    monkeypatch.setattr(check, "MOST_BYTES", 1000)
    with pytest.raises(click.ClickException, match="more than 1000 bytes"):
        check.check_wheel(wheel, debian)
