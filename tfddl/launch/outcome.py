"""Finds out how a job ended: the rank that failed first, the exit code, and the last message."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from tfddl.launch.rank_shim import is_killed
from tfddl.launch.streams.output import visible
from tfddl.runtime.agreement import in_words

_TAIL_BYTES = 1 << 16
_TAIL_LINES = 10
_TRACEBACKS = ("Traceback (most recent call last):", "+ Exception Group Traceback (most recent call last):")
_CHAINS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_OPEN_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+) in")
_OPEN_MPI_PROCESS = re.compile(r"MPI_ABORT was invoked.*\n\s*Proc: \[\[\d+,\d+\],(\d+)\]")
_OPEN_MPI_CODE = re.compile(r"MPI_ABORT was invoked.*(?:\n.*){0,2}[Ee]rrorcode:? (\d+)")
_MPICH_ABORT = re.compile(r"^Abort\((\d+)\) on node \d+ \(rank .*$", re.MULTILINE)
_DAEMON_GONE = re.compile(
    r"lost communication with a remote daemon(?:.*\n){1,6}?\s*Remote daemon\s*: \[.*\] on node (\S+)"
)
# The engine's message after TFDDL_STALL_LIMIT, and in it the ranks that it has waited for.
_STALLED = re.compile(r"Stalled: rank \d+ has waited .*?; (.*?)\. All ranks: ")
_SILENT = re.compile(r"ranks? ([\d, and]+) (?:has|have|does|do) not (?:submitted it|answer)")
_WITHOUT_PEERS = (b"MPI_ERR_PROC_FAILED", b"MPI_ERR_REVOKED")
_OURS = "tfddl: "  # how a watchdog's line starts
# Lines that only inform, such as the ones that TensorFlow prints at each start. Its GPU build calls some of them errors.
_INFORMS = re.compile(
    r"I\d{4} [\d:.]+ |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl::|To enable the following instr"
    r"|(?:[WE]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [WE] ).*(?:failed call to cuInit|Unable to register cu\w+ factory"
    r"|computation placer already registered|Could not find cuda drivers|TF-TRT Warning|Cannot dlopen some GPU libraries)"
    r"|Skipping registering GPU devices"
)


@dataclass
class Rank:
    """One rank, as far as tfddlrun knows it."""

    number: int
    host: str = ""
    status: int | None = None  # exit code; -n for a death by signal n; None: it has not reported its end
    stopped: bool = False  # it was sent a signal before it ended
    errors: bytearray = field(default_factory=bytearray)  # the end of its stderr
    frozen: bool = False  # it did not run when tfddlrun ended it, because of SIGSTOP or the like
    abandoned: bool = False  # its supervisor did not answer when the job ended
    handed_over: bool = False  # it has ended so that the job starts again on other hosts
    out_of_memory: bool = False  # it was killed, and its host's kernel has killed for lack of memory
    goes_on_with: int = 0  # so many ranks, in its process, after others have died

    @property
    def died(self) -> bool:
        """Whether a signal that tfddlrun has not sent has killed it."""
        return self.failed and is_killed(self.status or 0)

    @property
    def needs_the_lost(self) -> bool:
        """Whether it failed in a call of MPI that includes ranks that have died."""
        return self.failed and any(each in self.errors for each in _WITHOUT_PEERS)

    @property
    def failed(self) -> bool:
        """Whether the rank failed by itself, without a signal of tfddlrun's."""
        return self.status not in (0, None) and not self.stopped

    def add_errors(self, data: bytes) -> None:
        """Keeps the end of the rank's output to stderr."""
        self.errors += data
        del self.errors[:-_TAIL_BYTES]

    def error_text(self) -> str:
        """The end of the rank's stderr as lines, without MPI's message about an abort."""
        text = self.errors.decode(errors="replace")
        return _MPICH_ABORT.sub(
            "", "\n".join(visible(line.encode()).decode() for line in text.split("\n"))
        ).strip("\n")


@dataclass
class Verdict:
    """How the job ended."""

    code: int
    words: str = ""  # the last message; empty after a success
    errors: str = ""  # the end of what the rank that failed first wrote to stderr
    ranks: tuple[Rank, ...] = ()  # all that have started, in order
    # Killed or stopped by a signal, or hanging, or on a host that went away.
    lost: tuple[Rank, ...] = ()
    handed_over: bool = False  # no rank has failed: the job is to start again on other hosts
    survived: tuple[Rank, ...] = ()  # ranks without which the others went on in their processes
    mpirun_refused: bool = False  # mpirun failed before it started a rank

    @property
    def left(self) -> list[Rank]:
        """The ranks that the job had at its end."""
        return [rank for rank in self.ranks if rank not in self.survived]


@dataclass
class Record:
    """A job that has ended and was not stopped by a signal to tfddlrun."""

    processes: int  # the requested number of ranks
    ended: list[Rank]  # ranks that have reported their end, in the order of the reports
    lost: list[Rank]  # ranks whose connection ended without a report, in this order
    waiting: list[Rank]  # ranks that waited in hvd.init() for a rank that had ended
    mpirun_status: int | None  # exit code; -n for a death by signal n; None: tfddlrun has ended it
    mpirun_said: str  # mpirun's own output
    several_hosts: bool = False  # whether messages name the host of a rank
    survived: tuple[Rank, ...] = ()  # ranks without which the others went on in their processes


def interrupted(number: int, program: str = "tfddlrun") -> Verdict:
    """The end by a signal to a program."""
    return Verdict(128 + number, f"{program}: stopped by {_signal(number)}")


def judge(record: Record) -> Verdict:
    """Finds the cause of the end of a job.

    Args:
        record: a `Record`.

    Returns:
        A `Verdict`.
    """
    _lose_host_without_daemon(record)
    record.ended = [rank for rank in record.ended if rank not in record.survived]
    if record.survived and not any(rank.status or rank.stopped for rank in record.ended):
        record.mpirun_status = 0  # its code may be of the ranks that have died
    verdict = _judge(record)
    # Another rank may notice a loss first, and fail because of it.
    stalled = _stalled(record.ended)
    killed = [
        rank for rank in record.ended if rank.frozen or (rank.stopped and rank.number in stalled) or rank.died
    ]
    answered = {rank.host for rank in record.ended}
    gone = [rank for rank in record.lost if not rank.abandoned or rank.host not in answered]
    verdict.survived = record.survived
    again = killed or gone or any(rank.needs_the_lost for rank in record.ended)
    verdict.lost = _sorted(*killed, *gone, *(record.survived if again else ()))
    verdict.handed_over = any(rank.handed_over for rank in record.ended) and not (
        verdict.lost or any(rank.failed for rank in record.ended)
    )
    verdict.ranks = _sorted(*record.ended, *record.survived, *record.lost)
    return verdict


def _sorted(*ranks: Rank) -> tuple[Rank, ...]:
    return tuple(sorted(ranks, key=lambda rank: rank.number))


def _lose_host_without_daemon(record: Record) -> None:
    """Makes ranks lost ones if mpirun has lost its daemon on their host, and so has ended the job without an exit code."""
    match = _DAEMON_GONE.search(record.mpirun_said)
    if match is None or any(rank.failed for rank in record.ended):
        return
    node = match[1].partition(".")[0]
    gone = [rank for rank in record.ended if rank.stopped and rank.host.partition(".")[0] == node]
    for rank in gone:
        rank.status = None
    record.ended = [rank for rank in record.ended if rank not in gone]
    record.lost += gone


def _stalled(ended: Iterable[Rank]) -> set[int]:
    """The ranks for which the first rank that failed has waited for too long."""
    failed = next((rank for rank in ended if rank.failed), None)
    match = _STALLED.search(failed.error_text()) if failed else None
    numbers = [re.findall(r"\d+", each) for each in _SILENT.findall(match[1])] if match else []
    return {int(number) for each in numbers for number in each}


def _judge(record: Record) -> Verdict:
    failed = next((rank for rank in record.ended if rank.failed), None)
    if failed is not None:
        status = failed.status or 0
        if -status in (signal.SIGKILL, signal.SIGTERM):
            failed.errors.clear()  # the rank was killed from outside, so its last output is not the cause
        how = f"exited with code {status}" if status > 0 else f"was killed by {_signal(-status)}"
        if failed.out_of_memory:
            how += ": the kernel killed a process of its host for lack of memory (dmesg names it)"
        return Verdict(_shell_code(status), _last_words(how, failed, record), failed.error_text())
    culprit = _aborted(record)
    if culprit is not None:
        given = _code_of_abort(record.mpirun_said, culprit)
        code = _shell_code(record.mpirun_status or (given or 1) & 0xFF or 1)
        how = f"ended the job by MPI_Abort with code {code if given is None else given}"
        return Verdict(code, _last_words(how, culprit, record))
    return _judge_without_culprit(record)


def _judge_without_culprit(record: Record) -> Verdict:
    status, said = record.mpirun_status, record.mpirun_said.strip()
    code = _shell_code(status or 1)
    stopped = any(rank.stopped for rank in record.ended)
    early = sorted(rank.number for rank in record.ended if rank.status == 0 and not rank.stopped)
    refused = False
    missing = set(range(record.processes)) - {rank.number for rank in (*record.ended, *record.survived)}
    if record.waiting and early:
        waiting = in_words(sorted(rank.number for rank in record.waiting))
        return Verdict(
            1,
            f"tfddlrun: {in_words(early)} ended with exit code 0 while {waiting} waited for it in hvd.init()",
        )
    if record.lost:
        words = f"{_name(record.lost[0], True)} was lost: its host or its processes went away without a word"
        code = 1  # mpirun's exit code is 0 when a host is lost
    elif early and stopped:
        words = (
            f"tfddlrun: {in_words(early)} ended while others still worked, and had not called MPI_Finalize"
        )
        # mpirun's long message adds no other cause
        return Verdict(code, f"tfddlrun: mpirun said:\n{said}\n{words}" if said else words)
    elif status:
        how = f"ended with exit code {status}" if status > 0 else f"was killed by {_signal(-status)}"
        refused = len(missing) == record.processes
        words = f"mpirun {how}{' before it started a rank' if refused else ''}"
    elif status is None and stopped:
        words = "mpirun ended the ranks, and then did not end itself"
    elif stopped:
        words = "mpirun ended, and its ranks with it"
    elif missing:
        words = (
            f"only {len(record.ended)} of {record.processes} ranks ran; missing: {in_words(sorted(missing))}"
        )
    else:
        return Verdict(0)
    heard = f"; mpirun said:\n{said}" if said else ""
    return Verdict(code, f"tfddlrun: {words}{heard}", mpirun_refused=refused)


def last_traceback(text: str) -> str:
    """The last traceback of a text with its chained tracebacks, up to the end of the text. Empty if there is none."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.strip() in _TRACEBACKS]
    if not starts:
        return ""
    start = starts.pop()
    while starts and any(line.strip() in _CHAINS for line in lines[max(0, start - 2) : start]):
        start = starts.pop()
    return "\n".join(lines[start:])


def _last_words(how: str, rank: Rank, record: Record) -> str:
    """Ends with the traceback, else with the sentence. The output of a single rank ends with its traceback already."""
    sentence = f"tfddlrun: {_name(rank, record.several_hosts)} {how}"
    text = rank.error_text()
    traceback = last_traceback(text)
    if record.processes == 1:
        return "" if traceback else sentence
    if traceback:
        return f"{sentence}:\n{traceback}"
    tail = [line for line in text.splitlines() if not _INFORMS.match(line)][-_TAIL_LINES:]
    if tail and tail[-1].startswith(_OURS):  # it names the rank to blame, which may be another one
        return f"{sentence}:\n{tail[-1]}"
    said = [f"tfddlrun: the last lines that rank {rank.number} wrote to stderr:", *tail] if tail else []
    return "\n".join([*said, sentence])


def _aborted(record: Record) -> Rank | None:
    """The rank that called MPI_Abort and was ended by mpirun before it could exit with its own code."""
    match = _OPEN_MPI_PROCESS.search(record.mpirun_said) or _OPEN_MPI_ABORT.search(record.mpirun_said)
    for rank in record.ended:
        if (match and rank.number == int(match[1])) or _MPICH_ABORT.search(
            rank.errors.decode(errors="replace")
        ):
            return rank
    return None


def _code_of_abort(said: str, culprit: Rank) -> int | None:
    """The code that a rank gave to MPI_Abort, by the message of its MPI. None if the message has none."""
    match = _OPEN_MPI_CODE.search(said) or _MPICH_ABORT.search(culprit.errors.decode(errors="replace"))
    return int(match[1]) if match else None


def _name(rank: Rank, several_hosts: bool) -> str:
    return f"rank {rank.number} on {rank.host}" if several_hosts and rank.host else f"rank {rank.number}"


def _shell_code(status: int) -> int:
    """The exit code as a shell gives it: 128 + n for a death by signal n."""
    return 128 - status if status < 0 else status


def _signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return f"signal {number} ({signal.Signals(number).name})"
    return f"signal {number}"  # a real-time signal
