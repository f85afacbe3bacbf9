"""Ends the ranks of a job: by request, then by force, then without an answer; and mpirun, which has no ranks left then."""

from __future__ import annotations

import os
import signal
import subprocess

from tfddl.launch import rank_shim
from tfddl.launch.outcome import Rank
from tfddl.launch.supervision.links import Links
from tfddl.launch.supervision.loop import Loop

# A shim needs GRACE_S to end its rank, then LEFTOVER_S twice. After this time the shim itself or its host is gone.
_KILL_AFTER_S = rank_shim.GRACE_S + 1
_ABANDON_AFTER_S = rank_shim.GRACE_S + 2 * rank_shim.LEFTOVER_S + 3
_MPIRUN_LINGERS_S = 3.0
# Nobody waits for the exit of mpirun after a success, but a loaded machine may need long for it.
_MPIRUN_LINGERS_AFTER_SUCCESS_S = 60.0


class Ending:
    """The end of one job.

    Args:
        mpirun: The process.
        links: The connections to the shims.
        ranks: By number, those that have started.
        loop: It calls what is due later.

    Attributes:
        begun: Whether the ranks have been told to end.
    """

    def __init__(
        self, mpirun: subprocess.Popen[bytes], links: Links, ranks: dict[int, Rank], loop: Loop
    ) -> None:
        self._mpirun, self._links, self._ranks, self._loop = mpirun, links, ranks, loop
        self._signalled = False  # mpirun
        self.begun = False

    def begin(self) -> None:
        """Asks every shim to end its rank, then kills the ranks that still run."""
        if self.begun:
            return
        self.begun = True
        self._links.command(rank_shim.TERMINATE)
        self._loop.after(_KILL_AFTER_S, self.kill)
        self._loop.after(_ABANDON_AFTER_S, self.abandon)
        if not self._links.shims:
            self._end_mpirun(0)

    def kill(self) -> None:
        """Kills the ranks that still run."""
        self._links.command(rank_shim.KILL)

    def abandon(self) -> None:
        """Closes the connections to shims that do not answer: their hosts are gone."""
        for link in self._links.all():
            if link.rank in self._ranks:
                self._ranks[link.rank].abandoned = True
            self._links.close(link)

    def end_mpirun(self, *, success: bool) -> None:
        """Ends an mpirun without ranks, after a time. Normally it ends by itself."""
        self._end_mpirun(_MPIRUN_LINGERS_AFTER_SUCCESS_S if success else _MPIRUN_LINGERS_S)

    def mpirun_status(self) -> int | None:
        """Waits for mpirun. Returns its exit code; None if it was ended here."""
        status = self._mpirun.wait()
        return None if self._signalled else status

    def _end_mpirun(self, delay: float) -> None:
        self._loop.after(delay, lambda: self._signal_mpirun(signal.SIGTERM))
        self._loop.after(delay + _MPIRUN_LINGERS_S, lambda: self._signal_mpirun(signal.SIGKILL))

    def _signal_mpirun(self, number: int) -> None:
        if self._mpirun.poll() is not None:
            return
        self._signalled = True
        if number == signal.SIGKILL:
            os.killpg(self._mpirun.pid, number)
        else:
            self._mpirun.send_signal(number)
