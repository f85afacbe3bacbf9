"""The notebook, as Jupyter runs it: twice in one kernel, with a cell between that is stopped."""

import sys
import threading
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.harness.job import REPOSITORY

ENDLESS = """
def wait(path):
    import os, pathlib, time
    (pathlib.Path(path) / str(os.getpid())).touch()
    time.sleep(300)

import tfddl
tfddl.run(wait, args=({path!r},), np=2)
"""


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    book = nbformat.read(REPOSITORY / "examples/notebook.ipynb", as_version=4)
    # A kernel of this interpreter, not one that a kernelspec of this machine names.
    manager = KernelManager()
    manager.kernel_spec.argv[0] = sys.executable
    return NotebookClient(book, timeout=240, km=manager, resources={"metadata": {"path": tmp_path}})


def execute(client):
    for index, cell in enumerate(client.nb.cells):
        client.execute_cell(cell, index)
    text = "".join(output.text for output in client.nb.cells[-1].outputs)
    assert "the ranks' weights are equal: True" in text
    assert "accuracy by epoch: [0." in text
    assert "[0] Epoch 5/5" in "".join(output.get("text", "") for output in client.nb.cells[-3].outputs)


def stop_when(marks, manager):
    """Presses the stop button once both processes run."""
    end = time.monotonic() + 120
    while len(list(marks.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    manager.interrupt_kernel()


def test_twice_with_a_stopped_cell_between(notebook, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    with notebook.setup_kernel(cwd=tmp_path):
        execute(notebook)
        thread = threading.Thread(target=stop_when, args=(marks, notebook.km))
        thread.start()
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            notebook.execute_cell(nbformat.v4.new_code_cell(ENDLESS.format(path=str(marks))), 99)
        thread.join()
        pids = [int(mark.name) for mark in marks.iterdir()]
        assert len(pids) == 2
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        execute(notebook)
