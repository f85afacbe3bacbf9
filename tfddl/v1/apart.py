"""Weights that come apart in a session of TF1: nobody would notice.

Sessions may run a graph in another number on each rank (one evaluates, another writes summaries), so that a collective of
our own would wait for ever on some. Therefore it goes along, in the same run, with collectives that ranks meet in anyway:
those that the updates wait for. What no collective comes before needs no comparison. Graphs may differ by rank too, so that
the ranks agree at the start, when all of them meet in the broadcast, on collectives that all are ready to go along with.
"""

import json
from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf

from tfddl.gradients import reduced_marks
from tfddl.gradients.checksum import checksum, listed
from tfddl.ops import names, native
from tfddl.runtime import basics, process_sets
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import ProcessSet
from tfddl.v1.training import Run, Training

v1 = tf.compat.v1
_LAST = 1024
"""Runs of a collective before the last comparison, the eleventh, if some variable never changes."""
_END = "\0"
_OWN = "What is to be each rank's own goes into tf.compat.v1.GraphKeys.LOCAL_VARIABLES and not into GLOBAL_VARIABLES. "


class ApartWatch:
    """Looks whether variables that a broadcast has made equal stay so, until all have been trained.

    Args:
        graph: Complete but for this, which adds to it.

    Attributes:
        over: Whether there is nothing to look at any more.
    """

    def __init__(self, graph: Any) -> None:
        shared = set(map(id, v1.global_variables()))
        self._variables = [
            each for each in v1.trainable_variables() if id(each) in shared and not reduced_marks.is_own(each)
        ]
        self._training = Training(graph, self._variables)
        self._unseen = set(self._training.trained)
        self._told: set[str] = set()
        self._runs: Counter[str] = Counter()
        self._start: dict[str, int] = {}
        self._agreed: frozenset[str] | None = None
        self._over: set[int] = set()  # process sets whose members have come to an end
        self._pending = {}
        with graph.as_default(), tf.device("CPU:0"):
            self._text = v1.placeholder(tf.uint8, [None])
            self._agreement = native.allgather(self._text, names.unique("apart"))
            for name, op in self._training.collectives.items():
                with tf.control_dependencies([op]):  # all ranks that have met there come here too
                    number = op.get_attr("process_set")
                    apart = names.numbered(f"{name}.apart", number)  # there may be several hooks
                    self._pending[name] = native.allgather(self._text, apart, number)

    @property
    def over(self) -> bool:
        """See above."""
        return not (self._pending or self._unseen)

    def start(self, session: Any) -> None:
        """Remembers the variables as the broadcast has left them. The first time it is a collective of all ranks."""
        if self._agreed is None:
            self._agreed = self._agree(session)
        if self._pending:
            self._start = {name: checksum(values) for name, values in self._values(session).items()}

    def before_run(self, context: Any) -> Any:
        """Returns what the run is to do as well, or None."""
        run = self._run(context)
        self._warn_of_uncombined(run.uncombined - self._told)
        self._unseen -= run.trained
        together = sorted(run.collectives & set(self._pending))
        if not together:
            return None
        message: dict[str, Any] = {"runs": dict(self._runs), "over": sorted(self._over)}
        if any(_is_due(self._runs[name]) for name in together):
            message |= self._look(context.session)
        return v1.train.SessionRunArgs(
            {name: self._pending[name] for name in together}, {self._text: _encoded(message)}
        )

    def after_run(self, context: Any, results: dict[str, np.ndarray] | None) -> None:
        """Compares what the ranks have said."""
        self._runs.update(self._run(context).collectives & (self._agreed or frozenset()))
        for name, codes in (results or {}).items():
            if name in self._pending:
                self._compare(name, _decoded(codes))

    def _agree(self, session: Any) -> frozenset[str]:
        """Graphs may differ: of one rank a collective comes before an update, and of another it does not."""
        mine = {"rank": basics.rank(), "collectives": sorted(self._pending)}
        heard = _decoded(session.run(self._agreement, {self._text: _encoded(mine)}))
        known = {each["rank"]: each["collectives"] for each in heard}
        for name in list(self._pending):
            if any(name not in known.get(rank, ()) for rank in self._process_set(name).ranks or ()):
                del self._pending[name]
        return frozenset(self._pending)

    def _process_set(self, collective: str) -> ProcessSet:
        return process_sets.by_id(self._training.collectives[collective].get_attr("process_set"))

    def _run(self, context: Any) -> Run:
        return self._training.of_run(context.original_args.fetches, context.original_args.feed_dict)

    def _look(self, session: Any) -> dict[str, Any]:
        weights = {
            name: (checksum(values), float(np.linalg.norm(np.abs(values).astype("float64"))))
            for name, values in self._values(session).items()
        }
        trained = self._training.trained or weights
        changed = all(weights[name][0] != self._start[name] for name in trained)
        return {"weights": weights, "end": changed or max(self._runs.values()) >= _LAST}

    def _values(self, session: Any) -> dict[str, np.ndarray]:
        names = [each.name for each in self._variables]
        return dict(zip(names, session.run(self._variables), strict=True))

    def _compare(self, collective: str, said: list[dict[str, Any]]) -> None:
        """All ranks come to the same end, since all have heard the same."""
        process_set = self._process_set(collective)
        number = self._training.collectives[collective].get_attr("process_set")
        everyone = len(said) == process_set.size()
        if everyone and any(number in each["over"] for each in said):
            del self._pending[collective]
            return
        if any(
            each["runs"] != said[0]["runs"] for each in said
        ):  # one has joined before, or has caught an error
            if everyone:
                self._runs.clear()
            return
        if not all("weights" in each for each in said):
            return
        apart = {}
        for name in said[0]["weights"]:
            here = [each["weights"][name] for each in said if name in each["weights"]]
            if len({bits for bits, _ in here}) > 1:
                apart[name] = [norm for _, norm in here]
        _warn_of_apart({name: apart[name] for name in apart if name not in self._told}, process_set)
        self._told |= set(apart)
        if everyone and (apart or all(each["end"] for each in said)):
            # Only here have all heard it: one may run other collectives along with this, and another after it.
            self._over.add(number)
            del self._pending[collective]

    def _warn_of_uncombined(self, names: frozenset[str]) -> None:
        if names:
            self._told |= names
            warn(
                "A session trains variables by gradients that are not combined, so that ranks come to differ: use "
                f"tfddl.DistributedOptimizer(optimizer) for each optimizer. {_OWN}Received: variables that no collective "
                f"comes before the update of: {listed(sorted(names))}"
            )


def _warn_of_apart(apart: dict[str, list[float]], process_set: ProcessSet) -> None:
    if apart:
        what = [f"{name} (norm {min(norms):.8g} to {max(norms):.8g})" for name, norms in apart.items()]
        warn(
            "Variables that were equal on all ranks differ after training has begun: give all ranks the same learning rate "
            "and the same other settings of optimizers, distribute every optimizer (tfddl.DistributedOptimizer), and "
            f"broadcast again after tfddl.join(). {_OWN}Received: variables that differ: {listed(what)}",
            process_set,
        )


def _encoded(message: dict[str, Any]) -> np.ndarray:
    return np.frombuffer((json.dumps(message) + _END).encode(), "uint8")


def _decoded(codes: np.ndarray) -> list[dict[str, Any]]:
    """The messages of all ranks that have not joined, in their order."""
    return [json.loads(text) for text in codes.tobytes().decode().split(_END)[:-1]]


def _is_due(runs: int) -> bool:
    """After the first, the second, the fourth, the eighth... run of a collective."""
    return 0 < runs <= _LAST and runs & (runs - 1) == 0
