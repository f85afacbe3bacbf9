"""The end of the program: its exit code, which Python does not tell exit handlers, and its uncaught exception."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from tfddl.runtime.job import process

_MEMBER: Any = vars(SystemExit)["code"]


class _Exit(SystemExit):
    """`sys.exit()` raises it. When it ends the program, Python reads `code` with no frame left."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        code = _MEMBER.__get__(self)
        try:
            sys._getframe(1)
        except ValueError:
            process.exit_code = status(code)
        return code

    @code.setter
    def code(self, code: Any) -> None:
        _MEMBER.__set__(self, code)


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"  # as tracebacks show it
_Exit.__module__ = "builtins"


def observe() -> None:
    """Replaces `sys.exit()`, `exit()` and `quit()` by a function that also notes the exit code."""
    if sys.exit is not _exit:
        sys.exit = _exit
        for name in ("exit", "quit"):  # `python -S` has neither
            if hasattr(builtins, name):
                setattr(builtins, name, _exit)


def _exit(status: Any = None, /) -> NoReturn:
    """Ends the program with an exit code, or with 1 and a text on stderr. In other threads it ends the thread."""
    if threading.current_thread() is threading.main_thread():
        raise _Exit(status)
    raise SystemExit(status)


def status(code: Any) -> int:
    """The exit code of a process that ends by `SystemExit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def after_traceback(action: Callable[[BaseException], None]) -> None:
    """Has `action` called with an uncaught exception, when its traceback has been printed."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, error, traceback)
        action(error)

    sys.excepthook = hook
