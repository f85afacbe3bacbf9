"""The rank that caused the end of a job, and the last message about it."""

import traceback

import pytest

from tfddl.launch.outcome import Rank, Record, judge, last_traceback

CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3
ValueError: b"""


def rank(number, status=0, stopped=False, errors="", host="node1"):
    return Rank(number, host, status, stopped, bytearray(errors.encode()))


def verdict(*ended, lost=(), waiting=(), processes=2, mpirun=0, said="", several_hosts=False):
    found = judge(Record(processes, list(ended), list(lost), list(waiting), mpirun, said, several_hosts))
    return found.code, found.words


def test_good_end():
    assert verdict(rank(1), rank(0)) == (0, "")


def test_the_first_report_counts_not_the_first_rank():
    assert verdict(rank(1, 3), rank(0, 4)) == (3, "tfddlrun: rank 1 exited with code 3")


def test_a_rank_that_was_stopped_has_not_failed():
    assert verdict(rank(0, -15, stopped=True), rank(1, 3), mpirun=3)[0] == 3


def test_lack_of_memory():
    killed = rank(1, -9)
    killed.out_of_memory = True
    assert verdict(killed) == (
        137,
        "tfddlrun: rank 1 was killed by signal 9 (SIGKILL): the kernel killed a process of its host for lack of memory "
        "(dmesg names it)",
    )


def test_names_the_host_where_there_are_several():
    words = verdict(rank(1, -9, host="node2"), several_hosts=True)[1]
    assert words == "tfddlrun: rank 1 on node2 was killed by signal 9 (SIGKILL)"


def test_last_lines_without_a_traceback():
    words = verdict(rank(1, 2, errors="\n".join(f"line {i}" for i in range(30)) + "\n\r1%\r2%\n"))[
        1
    ].splitlines()
    assert words[1:] == [*(f"line {i}" for i in range(21, 30)), "2%", "tfddlrun: rank 1 exited with code 2"]


def test_what_tensorflow_says_of_itself_is_no_explanation():
    start_up = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795343337.138569    6695 port.cc:153] oneDNN custom operations are on.",
        "2026-11-22 09:17:18.410071: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on.",
        "To enable the following instructions: AVX2 AVX512F, rebuild TensorFlow.",
        "E0000 00:00:1795343337.138569    6695 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: ...",
        "2026-11-22 09:17:18.410071: E xla/stream_executor/cuda/cuda_driver.cc:152] failed call to cuInit",
        "E0000 00:00:1795343337.138569    6695 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register",
        "W0000 00:00:1795343337.138569    6695 computation_placer.cc:177] computation placer already registered.",
        "2026-11-22 09:17:18.410071: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find",
        "W0000 00:00:1795343337.138569    6695 gpu_device.cc:2430] Cannot dlopen some GPU libraries. Please make sure",
        "Skipping registering GPU devices...",
    ]
    assert verdict(rank(1, 3, errors="\n".join(start_up)))[1] == "tfddlrun: rank 1 exited with code 3"
    trouble = [
        "no data",
        "W0000 00:00:1795343337.138569    6695 op_kernel.cc:1844] OP_REQUIRES failed: no such file",
    ]
    heard = verdict(rank(1, 3, errors="\n".join([*trouble, *start_up])))[1]
    assert heard.splitlines()[1:] == [*trouble, "tfddlrun: rank 1 exited with code 3"]


def test_sigkill_is_not_explained_by_what_was_said_before():
    assert verdict(rank(1, -9, errors="warning\n"))[1] == "tfddlrun: rank 1 was killed by signal 9 (SIGKILL)"


def test_traceback_comes_whole_with_its_chain_and_without_what_mpi_adds():
    noise = "Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort"
    errors = f"{CHAINED.replace('b', 'old')}\nmore\n{CHAINED}\n{noise}\n"
    words = verdict(rank(1, 1, errors=errors))[1]
    assert words == f"tfddlrun: rank 1 exited with code 1:\n{CHAINED}"


def test_an_exception_group_has_a_traceback():
    try:
        raise ExceptionGroup("g", [ValueError("a"), KeyError("b")])
    except ExceptionGroup:
        group = traceback.format_exc().rstrip()
    assert last_traceback(f"more\n{group}") == group
    chained = group + CHAINED.partition("KeyError: 'a'")[2]
    assert last_traceback(f"more\n{chained}") == chained


def test_no_traceback():
    assert last_traceback("some\nlines") == ""


@pytest.mark.parametrize(
    ("said", "errors"),
    [
        ("MPI_ABORT was invoked on rank 1 in communicator WORLD\n  Proc: [[36294,1],1]\n  Errorcode: 3", ""),
        ("MPI_ABORT was invoked on rank 0 in communicator X\n  Proc: [[36294,1],1]\n  Errorcode: 3", ""),
        ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 3.", ""),
        ("", "Abort(3) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3)\n"),
    ],
    ids=["Open MPI 5", "Open MPI 5, other communicator", "Open MPI 4", "MPICH"],
)
def test_rank_that_aborted_and_was_killed_for_it(said, errors):
    killed = rank(1, -15, stopped=True, errors=f"{CHAINED}\n{errors}")
    for mpirun in (3, None):  # None: tfddlrun has ended mpirun, which says nothing then
        found = verdict(rank(0, -15, stopped=True), killed, mpirun=mpirun, said=said)
        assert found == (3, f"tfddlrun: rank 1 ended the job by MPI_Abort with code 3:\n{CHAINED}")


def test_lost_host_fails_the_job_although_mpirun_does_not():
    code, words = verdict(rank(0), lost=[Rank(1, "node2")])
    assert code == 1
    assert words.startswith("tfddlrun: rank 1 on node2 was lost")


def test_mpirun_that_cannot_start_the_job_is_heard():
    assert verdict(mpirun=213, said="\nno route to node2\n") == (
        213,
        "tfddlrun: mpirun ended with exit code 213 before it started a rank; mpirun said:\nno route to node2",
    )


def test_ranks_that_never_ran_are_named():
    assert verdict(rank(0), processes=3) == (1, "tfddlrun: only 1 of 3 ranks ran; missing: ranks 1, 2")


def test_a_rank_that_ended_early_without_an_error_is_named_last():
    assert verdict(rank(1), rank(0, -15, stopped=True), mpirun=1, said="a page\n") == (
        1,
        "tfddlrun: mpirun said:\na page\n"
        "tfddlrun: rank 1 ended while others still worked, and had not called MPI_Finalize",
    )


def test_an_mpirun_that_tfddlrun_has_ended_is_no_failure():
    assert verdict(rank(1), rank(0), mpirun=None) == (0, "")
    assert verdict(rank(1, 3), rank(0), mpirun=None)[0] == 3
    code, words = verdict(rank(1), rank(0, stopped=True), mpirun=None)
    assert code == 1 and words.endswith(
        "rank 1 ended while others still worked, and had not called MPI_Finalize"
    )
    code, words = verdict(rank(1, stopped=True), rank(0, stopped=True), mpirun=None)
    assert (code, words) == (1, "tfddlrun: mpirun ended the ranks, and then did not end itself")


LOST_DAEMON = """\
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-node1-16@0,0] on node node1
  Remote daemon: [prterun-node1-16@0,1] on node node2
"""


def test_a_host_whose_daemon_of_mpirun_has_ended_is_lost():
    """mpirun ends with exit code 0 then, when its daemon has got SIGTERM."""
    ranks = [rank(0, -15, stopped=True), rank(1, -9, stopped=True, host="node2.site")]
    record = Record(2, ranks, [], [], 0, LOST_DAEMON, True)
    found = judge(record)
    assert [each.number for each in found.lost] == [1] and found.code == 1
    assert found.words.startswith("tfddlrun: rank 1 on node2.site was lost")


def test_ranks_that_mpirun_has_ended_are_no_success():
    code, words = verdict(rank(0, -15, stopped=True), rank(1, -15, stopped=True))
    assert (code, words) == (1, "tfddlrun: mpirun ended, and its ranks with it")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("rank 1 has not submitted it", [1]),
        ("ranks 1, 2 have not submitted it; rank 3 does not answer", [1, 2, 3]),
        ("all ranks have submitted it, the transfer itself does not advance", []),
    ],
)
def test_a_rank_that_hangs_is_lost(said, expected):
    """The ranks that waited for it raise an error; tfddlrun has ended the others, and one of them only waited too."""
    error = f"RuntimeError: Stalled: rank 0 has waited 9 s for 'a; b'; {said}. All ranks: rank 1 waits; rank 4 works."
    ranks = [rank(0, 1, errors=error), *(rank(number, -15, stopped=True) for number in range(1, 5))]
    found = judge(Record(5, ranks, [], [], 1, "", False))
    assert [each.number for each in found.lost] == expected and found.code == 1
