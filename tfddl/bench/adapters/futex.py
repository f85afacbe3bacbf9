"""A ping-pong between the ranks 0 and 1 by futexes in shared memory: one rank changes a word and wakes the other.

One call is one round trip with two wakes: the fastest answer between two sleeping processes of this machine. Each futex
call from Python adds about a microsecond.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform

from tfddl.bench.adapters import Process, Way, Ways
from tfddl.bench.case import Case

_SYSCALLS = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1
_PEER_LIMIT_S = 60


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Word:
    """A 32-bit word that processes share."""

    def __init__(self, memory: mmap.mmap, number: int):
        self._word = ctypes.c_uint32.from_buffer(memory, 64 * number)
        self._address = ctypes.c_void_p(ctypes.addressof(self._word))
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._futex = ctypes.c_long(_SYSCALLS[platform.machine()])
        self._limit = ctypes.byref(_Timespec(_PEER_LIMIT_S, 0))

    def set(self, value: int) -> None:
        self._word.value = value
        self._syscall(self._futex, self._address, _WAKE, 1, None, None, 0)

    def wait(self, value: int) -> None:
        while (seen := self._word.value) != value:
            waited = self._syscall(
                self._futex, self._address, _WAIT, ctypes.c_uint32(seen), self._limit, None, 0
            )
            if waited != 0 and ctypes.get_errno() == errno.ETIMEDOUT:
                raise TimeoutError(
                    f"no answer within {_PEER_LIMIT_S} s: run it again on a host that does less beside"
                )


def ways(process: Process) -> Ways:
    """Maps a page of a file in the directory of the job."""
    descriptor = os.open(process.directory / "futex", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    memory = mmap.mmap(descriptor, mmap.PAGESIZE)
    os.close(descriptor)
    ping, pong = _Word(memory, 0), _Word(memory, 1)
    turn = 0

    def call() -> None:
        nonlocal turn
        turn += 1
        if process.rank == 0:
            ping.set(turn)
            pong.wait(turn)
        elif process.rank == 1:
            ping.wait(turn)
            pong.set(turn)

    def way(case: Case) -> Way | None:
        return Way(call, lambda: 0) if process.size > 1 else None

    return way
