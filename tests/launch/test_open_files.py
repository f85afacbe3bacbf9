"""The limit of open files: tfddlrun raises it, and says where it is too low."""

import resource
import subprocess
import sys

import pytest

from tests.harness.job import REPOSITORY
from tests.launch.support import tfddlrun


def under(limit: str) -> list[str]:
    """The start of a command that runs with this `ulimit`."""
    return ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh"]


def test_the_limit_is_raised():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    enough = 1 << 16 if most == resource.RLIM_INFINITY else min(most, 1 << 16)
    job = tfddlrun("-np", "1", "sh", "-c", "ulimit -n", prefix=under("-S -n 60"))
    assert (job.code, job.stdout) == (0, f"{enough}\n")


@pytest.mark.parametrize(
    ("options", "needed"), [(["-np", "20"], 84), (["-np", "10", "--output-filename", "out"], 94)]
)
def test_a_limit_that_cannot_be_raised(tmp_path, options, needed):
    job = tfddlrun(*options, "true", prefix=under("-n 80"), cwd=tmp_path)
    assert job.code == 1
    assert job.last_line == (
        f"Error: The job needs {needed} open files for {' '.join(options[:2])}: raise the hard limit, nofile in "
        "/etc/security/limits.conf, or start fewer processes. Received: ulimit -Hn 80"
    )


# Processes that are no ranks connect while the job has room for a few connections.
JOB = """
import errno, io, json, os, resource, socket
from tfddl.launch.channel import Listener
from tfddl.launch.job import Job
from tfddl.launch.rank_shim import VARIABLE
from tfddl.launch.streams.output import Output

listener = Listener(1, False, [], (False, False), (80, 24))
port = json.loads(listener.environment()[VARIABLE])["port"]
connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
room = len(os.listdir("/proc/self/fd")) + 12
resource.setrlimit(resource.RLIMIT_NOFILE, (room, room))
printer = Output(io.BytesIO(), io.BytesIO(), prefixed=True)
verdict = Job(["sleep", "60"], 1, listener, printer, verbose=False, remote=False).run()
print(verdict.code, verdict.words)
"""
# All processes of a host together have as many open files as its kernel allows.
FULL_HOST = JOB.replace(
    "resource.setrlimit(resource.RLIMIT_NOFILE, (room, room))",
    """
def accept():
    raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
listener.accept = accept
""",
)


@pytest.mark.parametrize(
    ("job", "words", "error"),
    [
        (JOB, "The job needs 65 open files for -np 1", "Too many open files"),
        (FULL_HOST, "This host has as many open files", "Too many open files in system"),
    ],
    ids=["of tfddlrun", "of the host"],
)
def test_a_connection_too_many_ends_the_job(job, words, error):
    ended = subprocess.run(
        [sys.executable, "-c", job], cwd=REPOSITORY, capture_output=True, text=True, timeout=30
    )
    assert ended.stdout.startswith(f"1 tfddlrun: {words}"), ended
    assert ended.stdout.endswith(f": {error}\n")
