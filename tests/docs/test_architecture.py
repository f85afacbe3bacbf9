"""The pages for contributors name files and functions that exist, and the picture of the house shows the layers."""

import re

from tests.harness.job import REPOSITORY
from tests.test_layers import ENGINE, PYTHON

PAGES = (
    "CONTRIBUTING.md",
    "docs/design.md",
    *(str(page.relative_to(REPOSITORY)) for page in sorted((REPOSITORY / "docs" / "project").glob("*.md"))),
    "docs/images/gradient.svg",
)
FOLDERS = ("tfddl", "custom_ops", "tests", "docs", "benchmarks", "packages", "examples", "deploy")
FILE = re.compile(r"(?<![\w/.*<>-])[\w-]+(?:[/.][\w-]+)*\.(?:py|cc|h|pml)\b")


def test_named_files_exist():
    files = {
        f"/{path.relative_to(REPOSITORY)}"
        for folder in FOLDERS
        for path in (REPOSITORY / folder).rglob("*.*")
    } | {f"/{path.name}" for path in REPOSITORY.iterdir()}
    named = {(page, name) for page in PAGES for name in FILE.findall((REPOSITORY / page).read_text())}
    assert len(named) > 150
    assert {
        (page, name) for page, name in named if not any(file.endswith(f"/{name}") for file in files)
    } == set()


def test_named_functions_of_the_engine_exist():
    sources = "".join(path.read_text() for path in (REPOSITORY / "custom_ops").rglob("*.cc"))
    named = {
        (page, name)
        for page in PAGES
        for name in re.findall(r"`([A-Z]\w+::\w+)", (REPOSITORY / page).read_text())
    }
    assert len(named) > 3
    assert {(page, name) for page, name in named if not re.search(rf"\b{name}\b", sources)} == set()


def test_the_house_shows_the_layers():
    picture = (REPOSITORY / "docs" / "images" / "house.svg").read_text()
    shown = [
        name for names in re.findall(r'class="name"[^>]*>([^<]+)<', picture) for name in names.split(", ")
    ]
    assert shown == [*PYTHON, *ENGINE]
