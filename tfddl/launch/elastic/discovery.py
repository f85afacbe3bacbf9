"""The script of `--host-discovery-script`: it prints the hosts that a job may use, and tfddlrun runs it once a second."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable

from tfddl.launch.hosts import Host, host_of
from tfddl.launch.supervision.children import Children

EVERY_S = 1.0
LIMIT_S = 60.0
_OUTPUT_CHARACTERS = 300  # of the script, in an error


class Script:
    """A command of a shell that prints a line `host` or `host:slots` for each host.

    Args:
        command: The command.
        slots: The slots of a host without a number.
        children: Runs the command.
    """

    def __init__(self, command: str, slots: int, children: Children | None = None) -> None:
        self._command, self._slots = command, slots
        self._children = children or Children()

    def hosts(self) -> list[Host]:
        """Runs the script.

        Returns:
            The hosts, in the order of the lines. There may be none.

        Raises:
            ValueError: The script has failed, took too long, or printed something else.
        """
        code, said, errors = self._children.run(self._command, LIMIT_S)
        if code is None:
            raise ValueError(
                f"The script of --host-discovery-script takes too long: let it answer within {LIMIT_S:g} s. "
                f"Received: {self._command}"
            )
        if code != 0:
            # A command inside the script may be missing as well.
            missing = code in (126, 127) and shutil.which(self._command.split()[0]) is None
            cure = "make it executable, and give its path" if missing else "run it by hand"
            output = (errors or said).strip()[-_OUTPUT_CHARACTERS:] or "no output"
            raise ValueError(
                f"The script of --host-discovery-script has failed: {cure}. "
                f"Received: {self._command}, which ended with exit code {code}: {output}"
            )
        return parse(said, self._slots)


def parse(text: str, slots: int) -> list[Host]:
    """Reads what a script has printed.

    Args:
        text: Lines `host` or `host:slots`. A host with 0 slots is left out, a line that is repeated counts once.
        slots: The slots of a host without a number.

    Returns:
        The hosts, in the order of the lines.

    Raises:
        ValueError: A line is no host, or a host has two numbers of slots.
    """
    found: dict[str, int] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, count = line.partition(":")
        number = 0 if count == "0" else host_of(line, f"{line}, from --host-discovery-script", slots).slots
        if found.setdefault(name, number) != number:
            raise ValueError(
                f"The script of --host-discovery-script gives a host two numbers of slots: let it print one line for each. "
                f"Received: {name}:{found[name]} and {line}"
            )
    return [Host(name, number) for name, number in found.items() if number]


def wait_for_hosts(script: Script, least: int, limit: float, say: Callable[[str], None]) -> list[Host]:
    """Runs a script until its hosts have enough slots.

    Args:
        script: The script.
        least: The number of slots.
        limit: Seconds to wait.
        say: Prints a line.

    Returns:
        The hosts.

    Raises:
        ValueError: The script has failed, or its hosts have too few slots after the limit.
    """
    deadline, said = time.monotonic() + limit, False
    while True:
        hosts = script.hosts()
        count = sum(host.slots for host in hosts)
        if count >= least:
            return hosts
        if time.monotonic() >= deadline:
            raise ValueError(
                f"The script of --host-discovery-script names too few slots: wait longer with --elastic-timeout, or ask for "
                f"fewer processes. Received: {_text(hosts)} after {limit:g} s, and the job needs {least} slots"
            )
        if not said:
            say(f"waiting for hosts: the script names {count} of {least} slots")
            said = True
        time.sleep(min(EVERY_S, max(0.0, deadline - time.monotonic())))


class Poll:
    """A thread that runs a script again and again.

    Args:
        script: The script.
        found: Gets the hosts after each run.
        failed: Gets the reason when the script or `found` fails; not again before both have worked.
        children: Runs the script and what `found` runs.
    """

    def __init__(
        self,
        script: Script,
        found: Callable[[list[Host]], None],
        failed: Callable[[str], None],
        children: Children,
    ) -> None:
        self._script, self._found, self._failed = script, found, failed
        self._children, self._ended = children, threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfddlrun-hosts", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and the commands that it runs."""
        self._ended.set()
        self._children.end()
        self._thread.join()

    def _run(self) -> None:
        works = True
        while not self._ended.wait(EVERY_S):
            try:
                self._found(self._script.hosts())
                works = True
            except Exception as error:  # the thread goes on in any case: a later run may work
                if works and not self._ended.is_set():
                    expected = isinstance(error, (OSError, ValueError))
                    self._failed(str(error) if expected else f"{type(error).__name__}: {error}")
                works = False


def _text(hosts: list[Host]) -> str:
    return ", ".join(f"{host.name}:{host.slots}" for host in hosts) or "no host"
