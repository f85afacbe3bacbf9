"""The cells: each sensible pair of a fault and a moment, with rank, size and launcher by pairwise cover."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.keras.pairwise import Option, all_pairs, pairs_of

SIGNALS = ("SIGKILL", "SIGSEGV", "SIGABRT")
EXITS = {"exit(0)": 0, "exit(5)": 5, "SystemExit(3)": 3}
RAISED = {"exception": "ValueError: planted", "KeyboardInterrupt": "KeyboardInterrupt"}
SILENT = ("SIGSTOP", "never calls", "holds the GIL")
LAUNCHER_SIGNALS = {"launcher INT": 2, "launcher TERM": 15, "launcher HUP": 1, "launcher KILL": 9}
FAULTS = (
    *SIGNALS,
    *SILENT,
    "SIGSTOP, then SIGCONT",
    "_exit(0)",
    "_exit(3)",
    *EXITS,
    *RAISED,
    "calls another collective",
    "out of data",
    "joins early",
    "out of memory",
    "full disk",
    "NaN",
    *LAUNCHER_SIGNALS,
    "mpirun KILL",
)

BEFORE_TRAINING = ("before import", "before init", "in init")
BATCHES = ("first step", "step 50 of fit", "with jit_compile", "in a custom loop")
AT_EXIT = ("in a late exit handler", "in an early exit handler")
"""Early: registered before `hvd.init()`, so that Python runs it after tfddl's own handler."""
MOMENTS = (*BEFORE_TRAINING, "in tracing", *BATCHES, "in a checkpoint", "in on_train_end", *AT_EXIT)

FACTORS: dict[str, tuple[Any, ...]] = {
    "fault": FAULTS,
    "moment": MOMENTS,
    "rank": ("first", "last"),
    "size": (2, 3),
    "launcher": ("tfddlrun", "mpirun"),
}


@dataclass(frozen=True)
class Cell:
    """One job: a fault of one rank, or of its launcher, at a moment of that rank.

    Attributes:
        fault: One of `FAULTS`.
        moment: One of `MOMENTS`.
        rank: The number of the rank.
        size: The number of ranks.
        launcher: `tfddlrun` or `mpirun`.
    """

    fault: str
    moment: str
    rank: int
    size: int
    launcher: str

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.fault} {self.moment}, rank {self.rank} of {self.size}, {self.launcher}"


def is_sensible(fault: str, moment: str) -> bool:
    """Whether a fault has a meaning at a moment."""
    if fault in ("out of data", "NaN"):
        return moment in BATCHES
    if fault == "joins early":  # hvd.join() is for loops of one's own
        return moment == "in a custom loop"
    if fault == "full disk":  # a program writes its log and its checkpoints in training and after it
        return moment not in (*BEFORE_TRAINING, "in tracing", "first step")
    if fault == "out of memory":  # in an exit handler it is an exception like any other
        return moment not in AT_EXIT
    if fault == "calls another collective":  # without tfddl, or inside init(), there is none to call
        return moment not in ("before import", "in init")
    return True


def impossible_pairs() -> set[frozenset[Option]]:
    """The pairs of values that no cell has."""
    pairs: set[frozenset[Option]] = {
        frozenset([("fault", fault), ("moment", moment)])
        for fault, moment in itertools.product(FAULTS, MOMENTS)
        if not is_sensible(fault, moment)
    }
    # Plain mpirun is the launcher: "launcher KILL" is the same there.
    return pairs | {frozenset([("fault", "mpirun KILL"), ("launcher", "mpirun")])}


@functools.cache
def cells() -> tuple[Cell, ...]:
    """All cells, the same each time: every sensible pair of values of two factors meets in one of them."""
    impossible = impossible_pairs()
    missing = dict.fromkeys(pair for pair in all_pairs(FACTORS) if pair not in impossible)
    uses: Counter[frozenset[Option]] = Counter()
    found = []
    while missing:
        case = _best_case(next(iter(missing)), missing, uses, impossible)
        for pair in pairs_of(case):
            missing.pop(pair, None)
            uses[pair] += 1
        found.append(_cell(case))
    return tuple(found)


def _best_case(
    wanted: frozenset[Option],
    missing: Mapping[frozenset[Option], None],
    uses: Counter[frozenset[Option]],
    impossible: set[frozenset[Option]],
) -> dict[str, Any]:
    """The case with this pair that has the most missing pairs; among equals the one whose pairs are rarest so far."""
    fixed = dict(wanted)
    options = [(fixed[name],) if name in fixed else values for name, values in FACTORS.items()]
    cases = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*options)]
    possible = [case for case in cases if not pairs_of(case) & impossible]

    def value(case: dict[str, Any]) -> tuple[int, int]:
        pairs = pairs_of(case)
        return sum(pair in missing for pair in pairs), -sum(uses[pair] for pair in pairs)

    return max(possible, key=value)


def _cell(case: Mapping[str, Any]) -> Cell:
    rank = 0 if case["rank"] == "first" else case["size"] - 1
    return Cell(case["fault"], case["moment"], rank, case["size"], case["launcher"])
