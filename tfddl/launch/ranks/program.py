"""The program that a command starts, as far as the words of the command say it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

PYTHON = re.compile(r"python[\d.]*")
_SHELL = re.compile(r"(?:ba|da|z|k|mk|a)?sh")
_SHELL_OPTION = re.compile(r"[-+][a-zA-Z]+|--(?:login|noprofile|norc|posix)?")
_STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
# A word of Python's options: flags, then at most one option with a value.
_OPTION = re.compile(
    r"-(?P<flags>[^-cmWX]*)(?:(?P<last>[cmWX]|-check-hash-based-pycs)(?P<value>.*))?", re.DOTALL
)
_WITHOUT_PROGRAM = frozenset("ihV?")  # flags with which Python alone reads no program: python -i, python -V


def check(command: Sequence[str]) -> None:
    """Checks that ranks can start a command.

    Raises:
        ValueError: The command names no program, or would wait for a terminal or for stdin, or there is no folder to start
            it in.
    """
    if not command[0]:
        raise ValueError(
            f"COMMAND begins with an empty word: give the program to start. Received: {shlex.join(command)}"
        )
    try:
        os.getcwd()
    except OSError as error:
        raise ValueError(
            f"The folder of this shell does not exist any more: change to another one (cd). Received: {error}"
        ) from None
    if _reads_stdin(command):
        raise ValueError(
            "Ranks cannot read a program from stdin: write the program to a file, or use -c. "
            f"Received: {shlex.join(command)}"
        )
    if _starts_pdb(command):
        raise ValueError(
            "Ranks cannot read from the terminal, so pdb cannot start them: call breakpoint() on one rank only, and talk to "
            "pdb over a socket (pip install remote-pdb): tfddlrun -np 2 -x PYTHONBREAKPOINT=remote_pdb.set_trace python "
            f"train.py, then nc 127.0.0.1 PORT. Received: {shlex.join(command)}"
        )


def python_arguments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides the arguments of `python`.

    Returns:
        Tuple of Python's options, and its program with the program's arguments. The program is a script, `-` for stdin,
        `-c CODE` or `-m MODULE`.
    """
    options: list[str] = []
    rest = list(words)
    while rest and rest[0] != "-" and (found := _OPTION.fullmatch(rest[0])):
        flags, last, value = found.groups()
        if last in ("c", "m"):
            # `python -um package` is `python -u -m package`.
            options += [f"-{flags}"] if flags else []
            rest[:1] = [f"-{last}", value] if value else [f"-{last}"]
            break
        taken = 2 if last and not value else 1
        options, rest = [*options, *rest[:taken]], rest[taken:]
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _reads_stdin(command: Sequence[str]) -> bool:
    name, words = os.path.basename(command[0]), command[1:]
    if PYTHON.fullmatch(name):
        options, program = python_arguments(words)
        flags = {flag for word in options if (found := _OPTION.fullmatch(word)) for flag in found["flags"]}
        return program[0] in _STDIN if program else not flags & _WITHOUT_PROGRAM
    if not _SHELL.fullmatch(name):
        return False
    letters, rest = "", list(words)
    while rest and _SHELL_OPTION.fullmatch(rest[0]):
        word = rest.pop(0)
        letters += "" if word.startswith("--") else word
        if word[1:] in ("o", "O"):
            rest = rest[1:]
    if "c" in letters or "i" in letters:
        return False
    return "s" in letters or not rest or rest[0] in _STDIN


def _starts_pdb(command: Sequence[str]) -> bool:
    """Whether a command is `python -m pdb train.py`. With `-c continue` it needs no terminal."""
    if not PYTHON.fullmatch(os.path.basename(command[0])):
        return False
    _, program = python_arguments(command[1:])
    given = program[2] if program[2:] else ""
    return program[:2] == ["-m", "pdb"] and not given.startswith(("-c", "--c", "-h", "--h"))
