"""Learns with which code the program ends, before its exit handlers run. Python itself tells them nothing."""

from __future__ import annotations

import builtins
import sys
import threading
from typing import Any, NoReturn

_MEMBER: Any = vars(SystemExit)["code"]
_code = 0


class _Exit(SystemExit):
    """What `sys.exit()` raises: when Python ends the program by it, it asks for `code` with no frame left."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        code = _MEMBER.__get__(self)
        try:
            sys._getframe(1)
        except ValueError:
            note(_status(code))
        return code

    @code.setter
    def code(self, code: Any) -> None:
        _MEMBER.__set__(self, code)


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # as tracebacks show it
_Exit.__module__ = "builtins"


def observe() -> None:
    """Looks at what `sys.exit()`, `exit()` and `quit()` are called with; they do what they did."""
    if sys.exit is not _exit:
        sys.exit = _exit
        for name in ("exit", "quit"):  # not there under `python -S`
            if hasattr(builtins, name):
                setattr(builtins, name, _exit)


def note(code: int) -> None:
    """The program ends with this code."""
    global _code
    _code = code


def of_program() -> int:
    """The exit code of the program, in an exit handler: 0 unless one of the three calls above ended it."""
    return _code


def _exit(status: Any = None, /) -> NoReturn:
    """Ends the program with an exit code, or with 1 and a text on stderr; in other threads, the thread."""
    if threading.current_thread() is threading.main_thread():
        raise _Exit(status)
    raise SystemExit(status)


def _status(code: Any) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
