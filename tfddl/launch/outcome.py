"""How a job ended: which rank failed first, the exit code, and the last words about it."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from tfddl.launch.output import visible

_TAIL_BYTES = 1 << 16
_TAIL_LINES = 10
_TRACEBACK = "Traceback (most recent call last):"
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_OPEN_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+) in")
_OPEN_MPI_PROCESS = re.compile(r"MPI_ABORT was invoked.*\n\s*Proc: \[\[\d+,\d+\],(\d+)\]")
_MPICH_ABORT = re.compile(r"^Abort\(\d+\) on node \d+ \(rank .*$", re.MULTILINE)
# What TensorFlow says of itself whenever it starts, on several lines, and other lines that only inform.
_INFORMS = re.compile(
    r"I\d{4} [\d:.]+ |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl::|To enable the following instr"
)


@dataclass
class Rank:
    """What is known of one rank."""

    number: int
    host: str = ""
    status: int | None = None  # exit code; -n for a death by signal n; None: it has not reported its end
    stopped: bool = False  # it was sent a signal before it ended
    errors: bytearray = field(default_factory=bytearray)  # the end of its stderr

    @property
    def failed(self) -> bool:
        """Whether it ended badly of its own accord."""
        return self.status not in (0, None) and not self.stopped

    def add_errors(self, data: bytes) -> None:
        """Takes what the rank wrote to stderr."""
        self.errors += data
        del self.errors[:-_TAIL_BYTES]

    def error_text(self) -> str:
        """The end of its stderr as lines, without what MPI says about an abort."""
        text = self.errors.decode(errors="replace")
        return _MPICH_ABORT.sub(
            "", "\n".join(visible(line.encode()).decode() for line in text.split("\n"))
        ).strip("\n")


@dataclass
class Verdict:
    """How the job ended."""

    code: int
    words: str = ""  # the last thing that is printed; empty after a good end


@dataclass
class Record:
    """What is known of a job that has ended and that nobody stopped from outside."""

    processes: int  # number of ranks that were asked for
    ended: list[Rank]  # that have reported their end, in the order of their reports
    lost: list[Rank]  # whose connection ended without a report, in that order
    mpirun_status: int  # exit code; -n for a death by signal n
    mpirun_said: str  # its own output
    several_hosts: bool = False  # whether to name the host of a rank


def judge(record: Record) -> Verdict:
    """Finds what ended a job.

    Args:
        record: a `Record`.

    Returns:
        A `Verdict`.
    """
    failed = next((rank for rank in record.ended if rank.failed), None)
    if failed is not None:
        status = failed.status or 0
        if -status in (signal.SIGKILL, signal.SIGTERM):
            failed.errors.clear()  # it was killed from outside: what it wrote last has nothing to do with it
        how = f"exited with code {status}" if status > 0 else f"was killed by {_signal(-status)}"
        return Verdict(_shell_code(status), _last_words(how, failed, record))
    culprit = _aborted(record)
    if culprit is not None:
        code = _shell_code(record.mpirun_status) or 1
        return Verdict(code, _last_words("ended the job by MPI_Abort", culprit, record))
    return _judge_without_culprit(record)


def _judge_without_culprit(record: Record) -> Verdict:
    status, said = record.mpirun_status, record.mpirun_said.strip()
    code = _shell_code(status) or 1
    early = [rank.number for rank in record.ended if rank.status == 0 and not rank.stopped]
    missing = set(range(record.processes)) - {rank.number for rank in record.ended}
    if record.lost:
        words = f"{_name(record.lost[0], True)} was lost: its host or its processes went away without a word"
        code = 1  # mpirun's own is no guide: it is 0 when a host is lost
    elif status != 0 and early and any(rank.stopped for rank in record.ended):
        words = f"tfddlrun: rank {_listed(early)} ended while others still worked, and had not called MPI_Finalize"
        # mpirun's page about it names no cause that these words do not
        return Verdict(code, f"tfddlrun: mpirun said:\n{said}\n{words}" if said else words)
    elif status != 0:
        words = (
            f"mpirun ended with exit code {status}"
            if status > 0
            else f"mpirun was killed by {_signal(-status)}"
        )
    elif missing:
        words = f"only {len(record.ended)} of {record.processes} ranks ran; missing: rank {_listed(missing)}"
    else:
        return Verdict(0)
    return Verdict(code, f"tfddlrun: {words}; mpirun said:\n{said}" if said else f"tfddlrun: {words}")


def last_traceback(text: str) -> str:
    """The last traceback in a text, with those that it is chained to, to the end of the text; or empty."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if not starts:
        return ""
    start = starts.pop()
    while starts and any(line.strip() in _CHAINS for line in lines[max(0, start - 2) : start]):
        start = starts.pop()
    return "\n".join(lines[start:])


def _last_words(how: str, rank: Rank, record: Record) -> str:
    """The traceback, or else the sentence, comes last. Nothing is said again that ends the output already."""
    sentence = f"tfddlrun: {_name(rank, record.several_hosts)} {how}"
    text = rank.error_text()
    traceback = last_traceback(text)
    if record.processes == 1:
        return "" if traceback else sentence
    if traceback:
        return f"{sentence}:\n{traceback}"
    tail = [line for line in text.splitlines() if not _INFORMS.match(line)][-_TAIL_LINES:]
    said = [f"tfddlrun: the last lines that rank {rank.number} wrote to stderr:", *tail] if tail else []
    return "\n".join([*said, sentence])


def _aborted(record: Record) -> Rank | None:
    """The rank that called MPI_Abort and was ended by mpirun before its own exit code was there."""
    match = _OPEN_MPI_PROCESS.search(record.mpirun_said) or _OPEN_MPI_ABORT.search(record.mpirun_said)
    for rank in record.ended:
        if (match and rank.number == int(match[1])) or _MPICH_ABORT.search(
            rank.errors.decode(errors="replace")
        ):
            return rank
    return None


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _name(rank: Rank, several_hosts: bool) -> str:
    return f"rank {rank.number} on {rank.host}" if several_hosts and rank.host else f"rank {rank.number}"


def _shell_code(status: int) -> int:
    """The exit code as a shell gives it: 128 + n for a death by signal n."""
    return 128 - status if status < 0 else status


def _signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"  # a real-time signal
