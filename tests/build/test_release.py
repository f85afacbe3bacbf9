"""The refusals of `make release`, and archives that are equal if their contents are."""

import re
import subprocess
import tarfile
from pathlib import Path

import click
import pytest

import tfddl
from packages import release

REPOSITORY = Path(__file__).resolve().parents[2]
# Where else the version stands, each with what stands around it.
VERSIONS = {
    "docs/install.md": (r"tfddl-([\d.]+)-py3-none-",),
    "packages/tfddl-horovod/pyproject.toml": (r'^version = "(.+)"$', r'"tfddl==(.+)"'),
    "deploy/conda-forge/recipe.yaml": (r"^  version: ([\d.]+)$",),
}


def _git(*arguments: str, where: Path) -> None:
    author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", *author, *arguments], check=True, cwd=where)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one commit, which is ready for a release but for its tag."""
    (tmp_path / "tfddl").mkdir()
    (tmp_path / "tfddl" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (2026-01-31)\n")
    _git("init", "--quiet", where=tmp_path)
    _git("add", ".", where=tmp_path)
    _git("commit", "--quiet", "--message", "first", where=tmp_path)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("file", VERSIONS)
def test_every_file_names_the_version(file):
    for pattern in VERSIONS[file]:
        found = re.findall(pattern, (REPOSITORY / file).read_text(), re.MULTILINE)
        assert found == [tfddl.__version__], (
            f"{file}, {pattern}: the version of tfddl/__init__.py belongs here"
        )


def test_a_release_has_a_tag_and_a_dated_section(checkout):
    with pytest.raises(click.ClickException, match=r"no tag v0\.1\.0.*Received: tags none"):
        release.check_version(untagged=False)
    assert release.check_version(untagged=True) == "0.1.0"
    _git("tag", "v0.1.0", where=checkout)
    assert release.check_version(untagged=False) == "0.1.0"
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0\n")
    with pytest.raises(click.ClickException, match="no section with a date"):
        release.check_version(untagged=True)


def test_a_release_has_the_files_of_its_commit(checkout):
    release.check_clean()
    (checkout / "CHANGELOG.md").write_text("changed")
    (checkout / "new.txt").touch()
    with pytest.raises(click.ClickException, match=r"differ.*Received: CHANGELOG\.md, new\.txt$"):
        release.check_clean()


def test_archives_of_equal_contents_are_equal(tmp_path):
    for name, order in (("one", "ab"), ("other", "ba")):
        for letter in order:
            (tmp_path / letter).write_text(letter)
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
            for letter in order:
                archive.add(tmp_path / letter, letter)
        release.set_times(tmp_path / f"{name}.tar.gz", 1_700_000_000)
    assert release.digest(tmp_path / "one.tar.gz") == release.digest(tmp_path / "other.tar.gz")
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        assert [(each.name, each.mtime, each.uid) for each in archive] == [
            ("a", 1_700_000_000, 0),
            ("b", 1_700_000_000, 0),
        ]
