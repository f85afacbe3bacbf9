"""Commits in files."""

import os
import pickle
import threading
import zlib

import numpy as np
import pytest

from tests.harness import on_ranks
from tests.keras.support import logged


@on_ranks(1)
def test_the_newest_whole_commit(hvd, tmp_path):
    from tfddl.elastic.commits import Commits

    commits = Commits(tmp_path / "new" / "commits")
    assert commits.newest_number() == 0
    arrays = [np.arange(5.0), np.zeros((0, 3), "int8")]
    for number in (1, 2, 3):
        commits.write(number, (number, arrays))
    files = sorted((tmp_path / "new" / "commits").iterdir())
    assert [file.name.split("-")[1] for file in files] == ["2", "3"]
    number, found = commits.read(commits.newest_number())
    assert number == 3 and all(map(np.array_equal, found, arrays))

    content = bytearray(files[1].read_bytes())
    content[-3] ^= 1
    files[1].write_bytes(content)
    assert commits.newest_number() == 2
    files[0].write_bytes(files[0].read_bytes()[:-1])
    assert commits.newest_number() == 0
    (tmp_path / "new" / "commits" / "part").write_bytes(b"an interrupted write")
    commits.write(7, lambda: "seven")
    assert commits.read(commits.newest_number())() == "seven"
    with pytest.raises(
        TypeError, match=r"leave locks, files and generators out of the state\. Received: .*lock"
    ):
        commits.write(8, threading.Lock())
    assert commits.newest_number() == 7
    # A writer may die after a commit that the others have not made: they make one of the same number.
    for content in ("eight", "8", "eight"):
        commits.write(8, content)
        assert commits.read(commits.newest_number()) == content
    files = sorted((tmp_path / "new" / "commits").iterdir())
    assert [file.name.split("-")[1] for file in files] == ["7", "8"]


@on_ranks(1)
def test_a_commit_of_another_version(hvd, tmp_path):
    from tfddl.elastic.commits import Commits

    content = pickle.dumps((2, {"step": 4}))
    (tmp_path / f"commit-4-{zlib.crc32(content):08x}").write_bytes(content)
    commits = Commits(tmp_path)
    with pytest.raises(ValueError, match=r"Another version of tfddl has written the commit: .*commit-4"):
        commits.read(commits.newest_number())


@on_ranks(1)
def test_a_full_disk_leaves_the_older_commit(hvd, tmp_path):
    from tfddl.elastic.commits import Commits

    commits = Commits(tmp_path)
    commits.write(1, "first")
    os.symlink("/dev/full", tmp_path / "part")
    with logged() as lines:
        commits.write(2, np.zeros(1 << 20))
    assert commits.newest_number() == 1 and commits.read(1) == "first"
    assert "Commit 2 could not be kept" in lines[0] and "No space left" in lines[0]
    commits.write(3, "third")
    assert commits.read(commits.newest_number()) == "third"


@on_ranks(2)
def test_a_newer_commit_on_a_disk(hvd, tmp_path):
    from tfddl.elastic.commits import Commits

    memory, disk = Commits(tmp_path / "memory"), Commits(tmp_path / "disk", on_disk=True)
    state = hvd.elastic.ObjectState(step=0)
    memory.write(4, (2, {"step": 4}))
    disk.write(5, (2, {"step": 5}))
    hvd.barrier()
    assert state.restore_from([memory, disk]) and state.step == 5
    state.step = 6
    state.commit()
    hvd.barrier()
    assert memory.newest_number() == disk.newest_number() == 6


@on_ranks(2)
def test_a_rank_without_the_newest_commit_gets_it(hvd, tmp_path):
    import tensorflow as tf

    from tfddl.elastic.commits import Commits

    folder = tmp_path / str(hvd.rank())  # as on two hosts
    commits = Commits(folder)
    weight = tf.Variable([1.0, 2.0])
    state = hvd.elastic.TensorFlowState([weight], step=0)
    for number in (4, 5) if hvd.rank() == 1 else (4,):
        content = (3, ({"step": number}, [np.array([number, 0.0], "float32")], (None, [], [])))
        folder.mkdir(exist_ok=True)
        _write_on_any_rank(commits, number, content)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    assert state.restore_from([commits])
    assert (state.step, weight.numpy().tolist(), resets) == (5, [5.0, 0.0], [2])
    hvd.barrier()
    assert Commits(tmp_path / "0").newest_number() == 5  # rank 0 is the first of this host, which writes

    other = hvd.elastic.TensorFlowState([tf.Variable(1.0)], step=0)
    with pytest.raises(ValueError, match="other variables than this program"):
        other.restore_from([commits])


def _write_on_any_rank(commits, number, content):
    from tfddl.runtime import basics

    local_rank, basics.local_rank = basics.local_rank, lambda: 0
    try:
        commits.write(number, content)
    finally:
        basics.local_rank = local_rank
