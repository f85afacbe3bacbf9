"""The ends of ranks: who waits for whom is said, is bounded, and a rank's exit code is the job's."""

import re

import pytest

from tests.faults.support import IMPORTS, JOIN, START, check_quoted, run, start, tfddlrun
from tests.harness import slow

RANK = "rank = int(os.environ['OMPI_COMM_WORLD_RANK'])\n"


@pytest.mark.parametrize("launcher", [tfddlrun(2), slow(None)], ids=["tfddlrun", "mpirun"])
def test_an_exit_handler_that_does_not_end(launcher):
    """Python runs it after tfddl's own, since it was registered earlier."""
    script = f"""{IMPORTS}{RANK}
import atexit
if rank == 1: atexit.register(time.sleep, 300)
{start(warning=1, limit=4)}"""
    result = run(2, script, launcher)
    assert result.code == 1, result.output
    check_quoted(
        result, "s at its end for rank 1 (process ", ", whose exit handlers have not ended; waiting on."
    )
    last = ", whose exit handlers have not ended. The limit is TFDDL_STALL_LIMIT; "
    assert last in (result.output.rstrip().splitlines()[-1] if launcher else result.output)


def test_a_program_that_goes_on_after_the_others():
    """It may, for as long as it likes, unless the user sets a limit."""
    waits = " s at its end, to which rank 1 has not come; waiting on."
    script = f"""{start(warning=2, limit=4)}
if hvd.rank() == 1: wait_until_said("{waits}", times=3)
"""
    result = run(2, script)
    assert result.code == 0, result.output
    assert len(re.findall(rf"rank 0 has waited \d+{waits}", result.output)) >= 3, result.output


@pytest.mark.slow
def test_a_limit_for_a_program_that_goes_on_after_the_others():
    script = START + "if hvd.rank() == 1: time.sleep(300)\n"
    result = run(2, script, tfddlrun(2), TFDDL_STALL_WARNING="2", TFDDL_EXIT_LIMIT="5")
    assert result.code == 1, result.output
    last = result.output.rstrip().splitlines()[-1]
    assert (
        "s at its end, to which rank 1 has not come. The limit is TFDDL_EXIT_LIMIT; end the program" in last
    )
    assert "a higher limit. What each rank did last: tfddl analyze /" in last


@pytest.mark.parametrize("where", ["before", slow("in")])
def test_an_end_without_an_error_before_the_others_leave_init(where):
    """tests/launch/test_ends.py has the case that only tfddlrun notices."""
    script = f"""{IMPORTS}{RANK}
from tfddl.runtime import library
if rank == 1 and "{where}" == "before": os._exit(0)
if rank == 1: library.initialize_mpi = lambda: os._exit(0)
hvd.init()
"""
    result = run(2, script, tfddlrun(2))
    assert result.code == 1, result.output
    last = result.output.rstrip().splitlines()[-1]
    # mpirun notices the end of a rank that it knows by MPI, and may do so first.
    waited = "tfddlrun: rank 1 ended with exit code 0 while rank 0 waited for it in hvd.init()"
    assert last in (
        waited,
        "tfddlrun: rank 1 ended while others still worked, and had not called MPI_Finalize",
    )


@pytest.mark.parametrize(
    "held_up",
    [
        "ctypes.PyDLL(None).sleep(300)",
        slow("os.kill(os.getpid(), signal.SIGSTOP)"),
    ],
    ids=["keeps the GIL", "stopped"],
)
def test_a_rank_that_is_held_up_in_init(held_up):
    script = f"""{START}
import ctypes
from tfddl.runtime import library
if hvd.rank() == 1:
    library.initialize_mpi = lambda: {held_up}
hvd.shutdown()
os.environ.update(TFDDL_STALL_WARNING="30", TFDDL_STALL_LIMIT="4")
hvd.init()
"""
    result = run(2, script, tfddlrun(2))
    assert result.code == 1, result.output
    why = "is stopped" if "SIGSTOP" in held_up else "is in that call too and is held up there"
    last = result.output.rstrip().splitlines()[-1]
    assert " s in hvd.init() for rank 1 (process " in last and why in last


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("raise SystemExit(3)", 3),
        slow("tf.function(lambda: exit(5))()", 5),
    ],
)
def test_an_exit_code_that_python_does_not_tell(statement, code):
    script = f"{START}if hvd.rank() == 1: {statement}\nhvd.allreduce(x, name='alone')\nprint('not reached')\n"
    result = run(2, script, tfddlrun(2))
    assert result.code == code, result.output
    check_quoted(result)
    assert result.output.rstrip().splitlines()[-1] in (
        f"tfddlrun: rank 1 exited with code {code}",
        f"tfddlrun: rank 1 ended the job by MPI_Abort with code {code}",
    )


@pytest.mark.slow
def test_an_exit_code_that_is_known_late():
    """The rank that waited for this one has raised long before, and tells no cause."""
    script = f"""{IMPORTS}{RANK}
import atexit
if rank == 1: atexit.register(time.sleep, 5)
{JOIN}
if rank == 1: raise SystemExit(3)
hvd.allreduce(x, name='alone')
"""
    assert run(2, script, tfddlrun(2)).code == 3


@pytest.mark.slow
def test_an_exit_without_an_error_in_init():
    """MPI waits for this rank no more, and this rank's MPI_Finalize would wait for the others."""
    script = f"""{IMPORTS}{RANK}
from tfddl.runtime import library
real = library.initialize_mpi
if rank == 1: library.initialize_mpi = lambda: (real(), sys.exit(0))
hvd.init()
"""
    result = run(2, script, tfddlrun(2))
    assert result.code == 1, result.output
    assert (
        "tfddl: rank 1 called sys.exit(0) in hvd.init(), where the others wait for it"
        in result.output.splitlines()[-1]
    )


@pytest.mark.slow
def test_mpi_is_finalized_also_where_mpi4py_was_told_not_to_initialize_it():
    script = f"""import mpi4py
mpi4py.rc.initialize = False
{START}"""
    assert run(2, script, tfddlrun(2)).code == 0
