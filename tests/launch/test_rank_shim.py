"""The supervisor of a rank, without mpirun and tfddlrun."""

import os
import subprocess
import sys

ENDED_BEFORE_ANYONE_LOOKS = """
import os, socket, subprocess
from tfddl.launch import rank_shim

class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

rank_shim.subprocess.Popen = Popen
tfddlrun, connection = socket.socketpair()
stub, held_by_stub = os.pipe()
settings = {"token": "", "job": "", "scratch": [], "terminal": [False, False]}
print(rank_shim.Supervisor(connection, stub, settings).run(["sh", "-c", "exit 7"]))
"""


def test_a_rank_that_ended_before_its_supervisor_looked():
    """Python collects an ended child whose object is gone: the supervisor would wait for its status for ever."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDED_BEFORE_ANYONE_LOOKS],
        env=os.environ | {"OMPI_COMM_WORLD_RANK": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("7\n", "")
