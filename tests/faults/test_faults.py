"""Jobs in which one rank goes wrong: the end comes in bounded time, is no success, and names the rank."""

import re

import pytest

from tests.faults.support import START, check_quoted, run, start
from tests.harness import slow

STALLED = 5
"""Seconds."""


def fails(fault: str, *quoted: str, begin: str = START) -> str:
    """Runs two ranks into `fault` and returns their output."""
    result = run(2, begin + fault)
    assert result.code != 0, result.output
    check_quoted(result, *quoted)
    return result.output


@pytest.mark.parametrize("mode", [slow("eager"), "graph"])
def test_one_rank_raises(mode):
    fault = f"""
reduce = tf.function(hvd.allreduce) if "{mode}" == "graph" else hvd.allreduce
if hvd.rank() == 1:
    raise ValueError("planted")
reduce(x)
print("not reached")
"""
    fails(fault, "ValueError: planted", "rank 1")


@pytest.mark.slow
def test_one_rank_raises_while_the_other_is_not_in_a_collective():
    fault = """
if hvd.rank() == 1:
    raise ValueError("planted")
time.sleep(300)
print("not reached")
"""
    fails(fault, "ValueError: planted", "rank 1")


@pytest.mark.slow
def test_one_rank_raises_in_a_thread_of_its_own():
    """Python carries on after a thread's exception; the main thread's own end is what counts."""
    fault = """
import threading
def work():
    raise ValueError("planted")
if hvd.rank() == 1:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
hvd.allreduce(x)
print("the job went on")
sys.exit(3)
"""
    assert "the job went on" in fails(fault, "planted")


@pytest.mark.parametrize("how", [slow("sys.exit(0)"), "os._exit(0)"])
def test_one_rank_leaves_early(how):
    fault = f"""
if hvd.rank() == 1:
    {how}
hvd.allreduce(x, name="alone")
print("not reached")
"""
    fails(fault, "rank 1")


def test_one_rank_never_submits():
    fault = """
if hvd.rank() == 1:
    time.sleep(300)
hvd.allreduce(x, name="missing.one")
print("not reached")
"""
    fails(fault, "rank 1", "missing.one", begin=start(warning=1, limit=STALLED))


def test_a_slow_rank_is_warned_about_and_waited_for():
    script = """
if hvd.rank() == 1:
    wait_until_said("for 'slow.one'")
hvd.allreduce(x, name="slow.one")
"""
    result = run(2, start(warning=1) + script)
    assert result.code == 0, result.output
    assert re.search(r"rank 0 has waited \d+ s for 'slow\.one'; rank 1 has not submitted it", result.output)


def test_a_step_that_the_user_code_of_one_rank_breaks():
    """Collectives of that step are in flight: TensorFlow cancels one rank's, the other must not hang.

    Nor may it end the job before the rank to blame has said why, although it is the first to raise here.
    """
    fault = """
@tf.function
def step(x, wrong):
    early = [hvd.allreduce(x * i, name=f"early.{i}") for i in range(4)]
    with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(wrong), ["planted"])]):
        late = hvd.allreduce(tf.identity(x), name="late")
    return early, late

step(x, tf.constant(False))
try:
    step(x, tf.constant(hvd.rank() == 1))
    step(x, tf.constant(False))
except tf.errors.OpError as error:
    if hvd.rank() == 1:
        # Not said where all that was in flight could run: then rank 0 waits for what is missing.
        wait_until_said("See the error raised on rank 1 for the cause", 20)
        time.sleep(0.3)  # an end of rank 0 would have come by now
    raise
print("not reached")
"""
    fails(fault, "planted", begin=start())


@pytest.mark.slow
def test_all_ranks_raise():
    fails('raise ValueError(f"planted {hvd.rank()}")\n', "planted")


def test_a_new_job_after_a_failed_one():
    """shutdown() and init() start anew, and the program ends well."""
    script = (
        start(limit=STALLED)
        + """
if hvd.rank() == 0:
    try:
        hvd.allreduce(x, name="never")
    except tf.errors.UnknownError as error:
        assert "rank 1" in str(error), error
    print("given up", flush=True)
else:
    wait_until_said("given up")
hvd.shutdown()
hvd.init()
assert hvd.allreduce(x, op=hvd.Sum)[0] == hvd.size()
"""
    )
    result = run(2, script)
    assert result.code == 0, result.output
