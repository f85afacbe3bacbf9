"""init, shutdown, and who I am: the ranks of the job."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

from tfddl.build import discover, support
from tfddl.runtime import (
    exit_code,
    failure,
    fork,
    init_watchdog,
    job_communicator,
    library,
    process_sets,
    registration,
    software,
    timeline,
)

# Peers answer a shutdown within a fraction of a second, also while they compute; who does not is dead or stopped.
SHUTDOWN_LIMIT = 30.0

_CLEAN = 1  # what tfddl_shutdown() returns when communicators may be freed
_FOREVER = 1e9  # seconds; C++ clocks do not know infinity


@dataclass(frozen=True)
class _Job:
    """One generation of the job, from `init()` to `shutdown()`."""

    communicators: tuple[Any, ...]
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


_lock = threading.RLock()  # of init() and shutdown()
_job: _Job | None = None
_unanswered = False  # a shutdown: then MPI_Finalize might wait for ever


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins this process to the job that mpirun or tfddlrun started; alone it is a job of size 1.

    Every rank calls it once, before anything else of tfddl. A second call does nothing. The first one in an
    environment may compile the native library.

    Args:
        comm: Which processes make up the job: an mpi4py communicator, or a list of ranks of `MPI.COMM_WORLD`, this
            process's among them and the same on all of these. They are numbered as in the communicator, or by their
            ranks. Defaults to all of `MPI.COMM_WORLD`.
        process_sets: A list of `ProcessSet`, alike on all ranks, to add at once. `"dynamic"` is taken and means
            none: sets can be added at any time.

    Raises:
        ImportError: This Python, platform, TensorFlow or Keras is not supported; the message says what to install.
        RuntimeError: MPI, its header or a compiler is missing; the message says what to install. Or this process
            was forked from a rank.
        ValueError: The engine did not start, the ranks run different software or give different `comm` or
            `process_sets`, an environment variable is not a number, or the file of `TFDDL_TIMELINE` cannot be written.
    """
    if _job is None:
        fork.check("init")  # before the lock, which a forked child may have inherited in use
        with _lock:
            if _job is None:
                _start(comm, process_sets)


def shutdown() -> None:
    """Leaves the job. What still waits for other ranks fails, here and there; `init()` may be called again.

    Ranks that do not answer within 30 seconds (or `TFDDL_STALL_LIMIT`) are reported on stderr.
    """
    global _job
    if fork.is_child():
        _job = None
        return
    with _lock:
        if _job is not None:
            job, _job = _job, None
            _stop(job)


def is_initialized() -> bool:
    """Whether `init()` has been called, and `shutdown()` not since."""
    return _job is not None


def rank() -> int:
    """This process's number in the job, from 0 to `size() - 1`."""
    return _current("rank").rank


def size() -> int:
    """The number of processes in the job."""
    return _current("size").size


def local_rank() -> int:
    """This process's number among those on its host."""
    return _current("local_rank").local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return _current("local_size").local_size


def cross_rank() -> int:
    """The number of this process's host among the hosts that have a process of this `local_rank()`."""
    return _current("cross_rank").cross_rank


def cross_size() -> int:
    """The number of hosts that have a process of this `local_rank()`."""
    return _current("cross_size").cross_size


def is_homogeneous() -> bool:
    """Whether all hosts run the same number of processes."""
    return _current("is_homogeneous").homogeneous


def _start(comm: Any, sets: Any) -> None:
    global _job, _unanswered
    warning, limit = _stall_limits()
    library.native()  # before MPI, since it says first what this environment lacks
    MPI = library.mpi()
    with init_watchdog.waiting(warning, limit, named=comm is None):
        if not MPI.Is_initialized():
            MPI.Init_thread()
        if MPI.COMM_WORLD.size > 1:
            failure.install(MPI.COMM_WORLD)
            exit_code.observe()
        job = _join(MPI, job_communicator.communicator(MPI, comm), warning, limit)
        try:
            timeline.start_from_environment()
            registration.add_static(sets)
        except BaseException:
            _stop(job)
            raise
    _job, _unanswered = job, False
    from tfddl.ops import names

    names.reset()
    if _job.rank == 0:
        _warn_about_pinning(_job)
        _warn_about_untested()
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _stop(job: _Job) -> None:
    global _unanswered
    native = library.native()
    failed_before = bool(native.tfddl_failure())
    ended = native.tfddl_shutdown(min(SHUTDOWN_LIMIT, _stall_limits()[1]))
    timeline.end()
    process_sets.stop(free=ended == _CLEAN)
    for communicator in job.communicators if ended == _CLEAN else ():
        communicator.Free()
    if not ended and not failed_before:
        _unanswered = True
        print(f"tfddl: {native.tfddl_last_error().decode()}", file=sys.stderr)


def check_initialized(call: str) -> None:
    """Refuses a call of `hvd.<call>()` before `init()` and after `shutdown()`.

    Raises:
        ValueError: tfddl is not initialized.
    """
    _current(call)


def _current(call: str) -> _Job:
    if _job is None:
        raise ValueError(f"tfddl has not been initialized; use hvd.init(). Received: a call of hvd.{call}()")
    return _job


def _join(MPI: Any, world: Any, warning: float, limit: float) -> _Job:
    """`world` has all ranks of the job, and belongs to it."""
    fork.watch()
    software.check_equal(world)
    native = library.native()
    data, control = world.Dup(), world.Dup()
    if native.tfddl_init(MPI._addressof(data), MPI._addressof(control), warning, limit) != 0:
        raise ValueError(f"tfddl initialization failed: {native.tfddl_last_error().decode()}")
    process_sets.start(MPI, world, (warning, limit))
    job = _describe(MPI, world, (data, control, world))
    native.tfddl_set_local(job.local_rank, job.local_size)
    return job


def _describe(MPI: Any, world: Any, communicators: tuple[Any, ...]) -> _Job:
    """Who shares a host is asked of MPI: variables of the launcher are wrong under some schedulers."""
    local = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    cross = world.Split(color=local.rank, key=world.rank)
    sizes = world.allgather(local.size)
    job = _Job(
        communicators,
        world.rank,
        world.size,
        local.rank,
        local.size,
        cross.rank,
        cross.size,
        len(set(sizes)) == 1,
    )
    local.Free()
    cross.Free()
    return job


def _stall_limits() -> tuple[float, float]:
    return _seconds("TFDDL_STALL_WARNING", 60.0), _seconds("TFDDL_STALL_LIMIT", 1800.0)


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not seconds >= 0.0:
        raise ValueError(f"{variable} must be a number of seconds, 0 or more. Received: {text!r}")
    return min(seconds, _FOREVER)


def _warn_about_pinning(job: _Job) -> None:
    """mpirun pins each of two ranks to one core by default, which makes TensorFlow's threads share it."""
    cores = os.cpu_count() or 1
    if job.size > 1 and len(os.sched_getaffinity(0)) == 1 and cores > job.local_size:
        print(
            f"tfddl: mpirun has pinned each rank to one of {cores} cores; start it with --bind-to none, or use tfddlrun.",
            file=sys.stderr,
        )


def _warn_about_untested() -> None:
    version = discover.tensorflow_version()
    text = version and support.untested(version, discover.keras_version())
    if text:
        print(f"tfddl: {text}", file=sys.stderr)


def _at_exit() -> None:
    """Runs before mpi4py's own exit handler: nobody may finalize MPI while the engine uses it, or with a dead peer."""
    code = exit_code.of_program()
    if fork.is_child():
        library.native().tfddl_set_forked_code(code)
        return
    if _job is not None and _job.size > 1:
        reason = library.native().tfddl_failure().decode()
        if reason or code:
            # At once: the others would raise because this rank has left, and be taken for the cause.
            failure.abort(reason, code or 1)
    shutdown()
    if _unanswered:
        failure.abort(None, code or 1)
