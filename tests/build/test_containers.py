"""The program behind `make test-containers` reads the recipes of deploy/ as Docker and Apptainer do."""

import pytest

from packages.containers.recipes import assignment, read_definition, read_dockerfile
from tests.harness.job import REPOSITORY

DEPLOY = REPOSITORY / "deploy"


def test_the_dockerfile():
    recipe = read_dockerfile((DEPLOY / "Dockerfile").read_text())
    assert recipe.base == "python:3.12-slim-bookworm"
    assert [keyword for keyword, _ in recipe.steps] == [
        "RUN",
        "RUN",
        "ARG",
        "COPY",
        "RUN",
        "ENV",
        "RUN",
        "WORKDIR",
    ]
    first = recipe.steps[0][1]
    assert first.startswith("apt-get update  && apt-get install") and first.endswith("lists/*")
    assert assignment(recipe.steps[2][1], {}) == ("EXTRA", "cpu")
    assert recipe.steps[4][1].startswith('pip install --no-cache-dir "/src[${EXTRA}]"')


def test_the_recipe_of_open_mpi_4():
    """Its image is no image of the wheel's Open MPI, and takes the same jobs."""
    recipe = read_dockerfile((REPOSITORY / "packages/containers/Dockerfile.openmpi4").read_text())
    text = " ".join(arguments for _, arguments in recipe.steps)
    assert "openmpi-bin" in text and "[cpu]" not in text
    assert "sshd_config.d/job.conf" in text


def test_the_definition():
    recipe = read_definition((DEPLOY / "tfddl.def").read_text())
    assert recipe.base == read_dockerfile((DEPLOY / "Dockerfile").read_text()).base
    assert recipe.steps[0] == ("COPY", ". /src")
    assert recipe.steps[1][0] == "RUN" and "tfddl build" in recipe.steps[1][1]
    assert recipe.start.strip() == 'exec tfddlrun "$@"'
    assert "TFDDL_CACHE_DIR" in recipe.environment


def test_a_continued_line_may_hold_comments_and_variables():
    recipe = read_dockerfile("FROM a:1\nRUN one \\\n# a comment\n && two\nENV B=${A}/$A\n")
    assert recipe.steps[0][1].split() == ["one", "&&", "two"]
    assert assignment(recipe.steps[1][1], {"A": "x"}) == ("B", "x/x")


def test_unknown_instructions_are_refused():
    with pytest.raises(ValueError, match="USER nobody"):
        read_dockerfile("FROM a:1\nUSER nobody\n")
    with pytest.raises(ValueError, match="setup"):
        read_definition("From: a:1\n%setup\n  true\n")
