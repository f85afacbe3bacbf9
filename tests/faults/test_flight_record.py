"""Flight records: written at a stall, on a signal and by a call, also by a rank that keeps the GIL."""

import json
import os
import re

import numpy as np
import pytest

from tests.faults.support import IMPORTS, SAID, START, check_quoted, run, start, tfddlrun
from tests.harness import on_ranks, run_script, slow

KEEP_GIL = """
def keep_the_gil(seconds, is_over=lambda: True):
    import itertools  # a signal would end a sleep
    print("keeps it")
    while True:
        sum(itertools.repeat(0, int(seconds * 2e8)))
        if is_over(): return
"""


def read(directory) -> dict[int, dict]:
    """The records in a folder, by rank. Nothing else may lie there."""
    records = [json.loads(path.read_text()) for path in directory.iterdir()]
    assert all((directory / f"rank{record['rank']}.json").exists() for record in records)
    return {record["rank"]: record for record in records}


def names(record: dict) -> list[str]:
    return [operation["name"] for operation in record["operations"]]


@pytest.mark.parametrize("launcher", [tfddlrun(2), slow(None)], ids=["tfddlrun", "mpirun"])
def test_at_a_stall_of_a_rank_that_keeps_the_gil(launcher, tmp_path):
    script = f"""{start(warning=2, limit=4)}{KEEP_GIL}
if hvd.rank() == 1: keep_the_gil(60)
hvd.allreduce(x, name="alone")
"""
    result = run(2, script, launcher, TFDDL_DUMP_DIR=str(tmp_path))
    assert result.code != 0, result.output
    check_quoted(result, f"is only slow. What each rank did last: tfddl analyze {tmp_path}")
    records = read(tmp_path)
    assert sorted(records) == [0, 1] and records[0]["job"] == records[1]["job"] != ""
    assert re.match(r"Stalled: rank 0 has waited \d+ s for 'alone'", records[0]["reason"])
    assert "in keep_the_gil\n" in records[1]["stacks"] and "in allreduce\n" in records[0]["stacks"]
    assert names(records[0])[-1] == "alone" and names(records[0])[:-1] == names(records[1])
    last = records[0]["operations"][-1]
    assert last["ticket"] is last["started_us"] is last["ended_us"] is None and not last["failed"]
    assert [waiting["name"] for waiting in records[0]["waiting"]] == ["alone"]


def test_on_a_signal_to_tfddlrun(tmp_path):
    """It passes the signal on to all ranks. The training goes on, also in a program that handles the signal itself."""
    script = f"""{IMPORTS}{SAID}{KEEP_GIL}
got = []
if os.environ["OMPI_COMM_WORLD_RANK"] == "2": signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
hvd.init()
hvd.allreduce(tf.ones(3), name="together")
records = [f"{tmp_path}/rank{{rank}}.json" for rank in (0, 1)]
if hvd.rank() == 0:
    pid = os.getpid()
    while "tfddl.launch.run" not in open(f"/proc/{{pid}}/cmdline").read():
        pid = int(open(f"/proc/{{pid}}/stat").read().rpartition(") ")[2].split()[1])
    wait_until_said("keeps it")
    os.kill(pid, signal.SIGUSR1)
    while not all(map(os.path.exists, records)): time.sleep(0.01)
if hvd.rank() == 1:
    keep_the_gil(1, is_over=lambda: os.path.exists(records[1]))
while hvd.rank() == 2 and not got: time.sleep(0.01)
hvd.allreduce(tf.ones(3), name="after")
"""
    result = run(3, script, tfddlrun(3), TFDDL_DUMP_DIR=str(tmp_path), TFDDL_STALL_LIMIT="60")
    assert result.code == 0, result.output
    records = read(tmp_path)
    assert sorted(records) == [0, 1] and {record["reason"] for record in records.values()} == {
        "signal SIGUSR1"
    }
    assert "in keep_the_gil\n" in records[1]["stacks"]
    check_quoted(result, f"tfddl: wrote {tmp_path}/rank1.json")


@pytest.mark.parametrize("asked", [True, slow(False)])
def test_an_exception_is_recorded_only_if_the_user_asks(asked, tmp_path):
    """A busy machine may take longer for the record of rank 0 than rank 1 waits for it."""
    script = f"""{START}
from tfddl.runtime import failure
def abort_after_rank_0(*arguments, abort=failure.abort):
    while {asked} and not os.path.exists("rank0.json"): time.sleep(0.01)
    abort(*arguments)
failure.abort = abort_after_rank_0
os.chdir({str(tmp_path)!r})
if hvd.rank() == 1: raise KeyError('mine')
time.sleep(300)
"""
    result = run(2, script, TFDDL_DUMP_DIR=str(tmp_path) if asked else None)
    assert result.code != 0, result.output
    found = read(tmp_path)
    assert sorted(found) == ([0, 1] if asked else [])
    assert all(record["reason"] == "KeyError: 'mine'" for record in found.values())


def test_signals_of_one_process(tmp_path):
    script = f"""{IMPORTS}
os.chdir({str(tmp_path)!r})
for name in ("usr3", "SIGKILL", str(int(signal.SIGSTOP))):
    os.environ["TFDDL_DUMP_SIGNAL"] = name
    try: hvd.init()
    except ValueError as error: print(error)
signal.signal(signal.SIGUSR2, lambda *_: None)
os.environ["TFDDL_DUMP_SIGNAL"] = "USR2"
hvd.init()
print(hvd.write_flight_record(), hvd.write_flight_record("elsewhere/folder"))
try: hvd.write_flight_record("/proc/none")
except OSError as error: print(error)
os.kill(os.getpid(), signal.SIGUSR2)
assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
"""
    result = run_script(0, script, environment={"TFDDL_DUMP_DIR": None}, fresh=True)
    assert result.code == 0, result.output
    check_quoted(
        result,
        "TFDDL_DUMP_SIGNAL must be the name or the number of a signal that a program can handle, or 0 for none: ",
        "set TFDDL_DUMP_SIGNAL=SIGUSR2. Received: 'usr3'",
        "Received: 'SIGKILL'",
        "Received: '19'",
        "tfddl: SIGUSR2 writes no flight record, since the program handles that signal itself",
        f"{tmp_path}/tfddl-dump/rank0.json {tmp_path}/elsewhere/folder/rank0.json",
        "The flight record was not written: /proc/none/rank0.json: ",
    )
    assert read(tmp_path / "elsewhere" / "folder")[0]["reason"] == "hvd.write_flight_record()"


@on_ranks(1, 2, 3)
def test_operations_of_all_sets(hvd, tmp_path):
    import tensorflow as tf

    for step in range(3):
        hvd.allreduce(tf.ones([2, 3]), op=hvd.Sum, name="summed")
        hvd.allgather(tf.ones([step + hvd.rank()], tf.int64), name="gathered")
    first = hvd.add_process_set([0]) if hvd.size() > 1 else hvd.global_process_set
    if first.included():
        hvd.allreduce(tf.ones([5]), name="alone", process_set=first)
    with open(hvd.write_flight_record(tmp_path)) as file:
        record = json.load(file)
    if hvd.size() > 1:
        hvd.remove_process_set(first)
    assert (record["rank"], record["size"], record["pid"]) == (hvd.rank(), hvd.size(), os.getpid())
    sets = {entry["id"]: (entry["ranks"], entry["member"]) for entry in record["process_sets"]}
    assert sets[0] == (list(range(hvd.size())), True) and sets[max(sets)] == (
        [0],
        hvd.rank() == 0,
    )
    alone = [entry for entry in record["operations"] if entry["name"] == "alone"]
    assert [sets[entry["process_set"]][0] for entry in alone] == ([[0]] if hvd.rank() == 0 else [])
    summed = [operation for operation in record["operations"] if operation["name"] == "summed"][-3:]
    gathered = [operation for operation in record["operations"] if operation["name"] == "gathered"][-3:]
    assert [operation["bytes"] for operation in summed] == [24, 24, 24]
    assert [operation["bytes"] for operation in gathered] == [8 * (step + hvd.rank()) for step in range(3)]
    assert "op=Sum" in summed[0]["signature"] and "tensor=float32 [2, 3]" in summed[0]["signature"]
    for operation in summed + gathered:
        assert operation["submitted_us"] <= operation["started_us"] <= operation["ended_us"]
    tickets = hvd.allgather_object([operation["ticket"] for operation in summed + gathered])
    assert all(other == tickets[0] for other in tickets) and len(np.unique(tickets[0][:3])) == 3
