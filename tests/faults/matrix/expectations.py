"""The end that each cell has to come to, by docs/errors.md and docs/environment.md."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.matrix.cells import (
    AT_EXIT,
    BEFORE_TRAINING,
    EXITS,
    LAUNCHER_SIGNALS,
    RAISED,
    SIGNALS,
    SILENT,
    Cell,
)
from tests.faults.matrix.injector import PAUSE_S

DEAD_S = 5.0
"""From the death of a rank to the end of the job."""

KILL_S = 8.0
"""For a launcher to end ranks that do not end on SIGTERM, as ranks that are stopped."""

START_S = 5.0
"""For the other ranks to import TensorFlow and come to `init()`, where a rank fails before."""

WARNING_S, LIMIT_S = 4, 12
"""TFDDL_STALL_WARNING, and TFDDL_STALL_LIMIT and TFDDL_EXIT_LIMIT, where a rank is alive and silent."""

NO_PROGRESS_S = 10.0
"""`fit` ends after this time where one rank has reached the end of its epoch (docs/errors.md)."""

FAILURE = frozenset(range(1, 256))

STALL = {
    "TFDDL_STALL_WARNING": str(WARNING_S),
    "TFDDL_STALL_LIMIT": str(LIMIT_S),
    "TFDDL_EXIT_LIMIT": str(LIMIT_S),
}


@dataclass(frozen=True)
class End:
    """How a job ends.

    Attributes:
        codes: The exit codes that are right.
        last: Patterns of the last lines under tfddlrun, and of any line under mpirun: the rank and the reason.
        anywhere: Patterns of any line under both launchers.
        waits: Seconds that tfddl waits by its limits before it ends the job.
        grace: Seconds for the rest of the end, on a quiet machine.
        environment: Variables of the job.
    """

    codes: frozenset[int]
    last: tuple[str, ...] = ()
    anywhere: tuple[str, ...] = ()
    waits: float = 0.0
    grace: float = DEAD_S
    environment: dict[str, str] = field(default_factory=dict)

    def bound(self, factor: float = 1.0) -> float:
        """The seconds from the fault to the end, where the machine is slower by a factor."""
        return self.waits + self.grace * factor


def expected(cell: Cell) -> End:
    """The end of a cell."""
    at_exit = cell.moment in AT_EXIT
    if cell.fault in SIGNALS:
        return _by_signal(cell)
    if cell.fault in LAUNCHER_SIGNALS or cell.fault == "mpirun KILL":
        return _without_launcher(cell)
    if cell.fault in ("NaN", "joins early"):
        return End(frozenset([0]), anywhere=_all_done(cell))
    if cell.fault == "SIGSTOP, then SIGCONT":
        return _after_a_pause(cell)
    if cell.fault in SILENT:
        return _silent(cell)
    if at_exit and not cell.fault.startswith("_exit"):
        return _ignored(cell)
    return _TRAINING[cell.fault](cell)


def _named(cell: Cell, *reasons: str) -> tuple[str, ...]:
    """A pattern of a text that names the rank and then one of the reasons."""
    found = "|".join(reasons)
    if cell.launcher == "tfddlrun":
        return (rf"rank {cell.rank}\b[^\n]*({found})",)
    # mpirun wraps its lines, and also writes `[[51676,1],2]` or `[prterun-host-51676@1,2]` for rank 2.
    return (rf"(?i)(rank:? |@1,|,1\],){cell.rank}\b[\s\S]{{0,300}}({found})",)


def _all_done(cell: Cell) -> tuple[str, ...]:
    return tuple(f"rank {rank}: done" for rank in range(cell.size))


def _by_signal(cell: Cell) -> End:
    number = signal.Signals[cell.fault]
    if cell.launcher == "mpirun":
        return End(FAILURE, _named(cell, f"signal:? {number:d}", "died", f"{cell.fault}"))
    return End(
        frozenset([128 + number]), (rf"rank {cell.rank} was killed by signal {number:d} \({cell.fault}\)",)
    )


def _without_launcher(cell: Cell) -> End:
    number = LAUNCHER_SIGNALS.get(cell.fault, signal.SIGKILL)
    code = frozenset([128 + number])
    if cell.fault == "mpirun KILL":
        return End(code, ("mpirun was killed by signal 9",), grace=KILL_S)
    if number == signal.SIGKILL:
        return End(code, grace=KILL_S)
    if cell.launcher == "mpirun":
        return End(FAILURE, grace=KILL_S)
    return End(code, (f"stopped by signal {number} ",), grace=KILL_S)


def _after_a_pause(cell: Cell) -> End:
    """Others warn about the pause, but for the silent wait in `hvd.shutdown()`, which answers as soon as the pause ends."""
    limits = {"TFDDL_STALL_WARNING": "1", "TFDDL_STALL_LIMIT": "100"}
    warned = (rf"waited \d+ s .*rank {cell.rank}\b",) if cell.moment != "in a late exit handler" else ()
    return End(frozenset([0]), anywhere=(*warned, *_all_done(cell)), waits=PAUSE_S, environment=limits)


def _silent(cell: Cell) -> End:
    """A rank that is alive and does nothing: warned about, then ended by the limits."""
    warned = (rf"waited \d+ s .*rank {cell.rank}\b",)
    blamed = (rf"waited \d+ s [^\n]*rank {cell.rank}\b[^\n]*limit is TFDDL_(STALL|EXIT)_LIMIT",)
    if cell.moment not in (*BEFORE_TRAINING, *AT_EXIT):
        blamed = (rf"Stalled: [^\n]*rank {cell.rank}\b",)
    if (cell.fault, cell.moment) == ("SIGSTOP", "in a late exit handler"):
        # hvd.shutdown() waits first, without a warning; the limit is that of the shutdown, or later that of the exit.
        unanswered = rf"not all other ranks have answered [^\n]*rank {cell.rank}: no answer"
        return End(frozenset([1]), (f"{blamed[0]}|{unanswered}",), (), LIMIT_S + 2 * WARNING_S, KILL_S, STALL)
    start = START_S if cell.moment in BEFORE_TRAINING else 0
    return End(frozenset([1]), blamed, warned, LIMIT_S, KILL_S + start, STALL)


def _ignored(cell: Cell) -> End:
    """Python prints what an exit handler raises, and ends as if nothing had happened."""
    raised = {
        **{name: "SystemExit" for name in EXITS},
        **RAISED,
        "full disk": "No space left on device",
        # A late handler runs before tfddl's own: the call is right, and the others have left or are about to.
        "calls another collective": "has shut down tfddl|init",
    }
    return End(frozenset([0]), anywhere=(raised[cell.fault], *_all_done(cell)))


def _left_with_0(cell: Cell) -> End:
    """A program that ends in the middle as if all were well: the others need it."""
    if cell.moment in AT_EXIT:  # no rank needs it any more: a success, or a failure that names it
        return End(FAILURE | {0}, environment=STALL)
    reasons = ["ended with exit code 0", "ended while others still worked", "has shut down tfddl", "has died"]
    if cell.launcher == "tfddlrun":
        return End(frozenset([1]), _named(cell, *reasons))
    # mpirun does not know that others wait in init(): the limit of init() ends them.
    if cell.moment in BEFORE_TRAINING:
        return End(FAILURE, _named(cell, ""), (), LIMIT_S, DEAD_S + START_S, STALL)
    return End(FAILURE, _named(cell, ""))


def _left_with_code(code: int) -> Callable[[Cell], End]:
    def end(cell: Cell) -> End:
        if cell.launcher == "mpirun":
            return End(frozenset([code]), _named(cell, f"(exit|error) ?code:? +{code}"))
        reasons = (f"exited with code {code}", f"ended the job by MPI_Abort.*{code}")
        return End(frozenset([code]), _named(cell, *reasons))

    return end


def _raised(*texts: str) -> Callable[[Cell], End]:
    def end(cell: Cell) -> End:
        codes = {1}
        if "KeyboardInterrupt" in texts:  # Python itself ends by SIGINT; tfddl ends a job with 1
            codes = {128 + signal.SIGINT} if cell.moment in BEFORE_TRAINING else {1, 128 + signal.SIGINT}
        if cell.launcher == "mpirun":
            return End(frozenset(codes), texts)
        how = ("exited with code", "ended the job by MPI_Abort", "was killed by signal")
        return End(frozenset(codes), (*_named(cell, *how), *texts))

    return end


def _out_of_memory(cell: Cell) -> End:
    texts = r"[Mm]emory|failed to map|allocate"
    named = () if cell.launcher == "mpirun" else (rf"rank {cell.rank}\b",)
    return End(FAILURE, (*named, texts))


def _calls_another(cell: Cell) -> End:
    if cell.moment == "before init":
        return _raised("ValueError", "init")(cell)
    return End(frozenset([1]), _named(cell, "another'"), (), LIMIT_S, DEAD_S, STALL)


def _out_of_data(cell: Cell) -> End:
    if cell.moment == "in a custom loop":  # goes on to the next collective of the program
        return End(frozenset([1]), _named(cell, "'last'"), (), LIMIT_S, DEAD_S, STALL)
    return End(frozenset([1]), _named(cell, "batches", "end of"), waits=NO_PROGRESS_S)


_TRAINING: dict[str, Callable[[Cell], End]] = {
    "_exit(0)": _left_with_0,
    "_exit(3)": _left_with_code(3),
    "exit(0)": _left_with_0,
    "exit(5)": _left_with_code(5),
    "SystemExit(3)": _left_with_code(3),
    **{fault: _raised(text) for fault, text in RAISED.items()},
    "calls another collective": _calls_another,
    "out of data": _out_of_data,
    "out of memory": _out_of_memory,
    "full disk": _raised("No space left on device"),
}
