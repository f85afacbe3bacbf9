"""A rank that ends the program with an exit code while others wait for it: the job ends with that code."""

import subprocess
import sys

import pytest

from tests.faults.support import START, check_quoted, run, tfddlrun
from tests.harness import slow


def leaves(how: str) -> str:
    return START + f"if hvd.rank() == 1:\n    {how}\nhvd.allreduce(x, name='alone')\nprint('not reached')\n"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("sys.exit(7)", 7),
        slow("sys.stdout = open('/dev/full', 'w'); print(); sys.exit('no data')", 1),
    ],
)
def test_under_tfddlrun(how, code):
    result = run(2, leaves(how), tfddlrun(2))
    assert result.code == code, result.output
    check_quoted(result)
    last = result.output.rstrip().splitlines()[-1]
    # mpirun may end a rank that is about to end by this code before it has.
    assert last in (
        f"tfddlrun: rank 1 exited with code {code}",
        f"tfddlrun: rank 1 ended the job by MPI_Abort with code {code}",
    )
    assert ("no data" in result.output) == ("no data" in how)
    assert "Traceback" not in result.output, "others were blamed"


def test_pdb_says_how_a_rank_is_debugged():
    result = run(2, leaves("breakpoint()"), tfddlrun(2))
    assert result.code == 1, result.output
    assert "bdb.BdbQuit\n" in result.output
    assert "tfddl: pdb found no input: ranks cannot read from the terminal" in result.output


@pytest.mark.slow
def test_under_mpirun_with_three_ranks():
    result = run(3, leaves("sys.exit(7)"))
    assert result.code == 7, result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_an_early_end_without_an_error_raises_on_the_others():
    result = run(3, leaves("sys.exit(0)"), tfddlrun(3))
    assert result.code == 1, result.output
    check_quoted(result, "rank 1 has shut down tfddl")


@pytest.mark.slow
def test_all_ranks_end_with_one_code():
    """The system keeps the lowest 8 bits of the number that a program gives."""
    result = run(2, START + "sys.exit(256 + 5)\n", tfddlrun(2))
    assert result.code == 5, result.output


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit('text')", 1),
        ("exit(-1)", 255),
        ("sys.exit(256)", 0),
        ("quit(7)", 7),
        ("sys.exit()", 0),
        ("pass", 0),
        ("try: sys.exit(3)\nexcept SystemExit as error: assert (error.code, error.args) == (3, (3,))", 0),
        ("import threading\nthread = threading.Thread(target=lambda: sys.exit(4))\nthread.start()", 0),
    ],
)
def test_what_exit_handlers_learn(statements, code):
    """In a process without TensorFlow; what ends the program counts, not what was caught on the way."""
    script = f"""
import atexit, sys
from tfddl.runtime import exit_code
from tfddl.runtime.job import process
atexit.register(lambda: print(process.exit_code))
exit_code.observe()
{statements}
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == (f"{code}\n", code), ended.stderr
    assert "Traceback" not in ended.stderr
