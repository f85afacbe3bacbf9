"""The Python blocks of README and of the guides run as they stand there, and print what the page shows."""

import contextlib
import io
import os
import re
import runpy
import tempfile
from pathlib import Path

import keras
import pytest

from tests.docs.pages import Block, blocks_of
from tests.harness import on_ranks, run_script
from tests.harness.job import REPOSITORY

PAGES = [
    "README.md",
    *sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md")),
]
BLOCKS = [block for page in PAGES for block in blocks_of(REPOSITORY, page)]


def rows(choose):
    """The blocks for which a function is true, as rows of `parametrize`."""
    return [
        pytest.param(block, id=f"{block.page}:{block.line}", marks=[pytest.mark.slow] if block.slow else [])
        for block in BLOCKS
        if choose(block)
    ]


def run(hvd, block: Block) -> None:
    """Runs a block on each rank, in an empty folder that the ranks share."""
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
    script = Path(folder) / f"block{hvd.rank()}.py"
    script.write_text(block.source)
    written, here = io.StringIO(), os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(written):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        os.chdir(here)
        keras.mixed_precision.set_dtype_policy("float32")
    lines = [f"[{hvd.rank()}] {line}" for line in written.getvalue().splitlines()]
    output = "\n".join(line for of_rank in hvd.allgather_object(lines) for line in of_rank)
    assert not block.missing(output), output


def test_every_block_says_how_it_runs():
    kinds = r"2 ranks(, slow)?|own job of \d ranks(, slow)?|program(, slow)?|never: .+"
    assert [f"{block.page}:{block.line}" for block in BLOCKS if not re.fullmatch(kinds, block.how)] == []


@pytest.mark.parametrize("block", rows(lambda block: block.how.startswith("2 ranks")))
@on_ranks(2)
def test_on_two_ranks(hvd, block):
    run(hvd, block)


@pytest.mark.parametrize("block", rows(lambda block: block.is_own_job))
def test_in_a_job_of_its_own(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(block.source)
    result = run_script(block.ranks, script, fresh=not block.ranks)
    assert result.code == 0, result.output
    output = result.output.replace("<stdout>: ", " ")
    assert not block.missing(output), output


@pytest.mark.parametrize("block", rows(lambda block: bool(block.never)))
def test_that_cannot_run(block):
    compile(block.source, block.page, "exec")
    pytest.skip(block.never)
