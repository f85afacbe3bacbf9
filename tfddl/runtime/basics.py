"""`init()`, `shutdown()`, and the ranks and sizes of the job."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter
from typing import Any

from tfddl._environment import switched_on
from tfddl.build import discover, support
from tfddl.runtime import (
    debugger,
    exit_code,
    failure,
    flight_record,
    fork,
    gpu,
    job_communicator,
    launcher_check,
    library,
    process_sets,
    processors,
    rank_queries,
    registration,
    software,
    threads,
    timeline,
)
from tfddl.runtime.job import Job, current, process
from tfddl.runtime.watchdog import exit_watchdog, init_watchdog

# Peers answer a shutdown within a fraction of a second, also while they compute. A peer that does not is dead or stopped.
SHUTDOWN_LIMIT = 30.0

# MPI_Finalize may wait for ranks that have died. The ranks that are left have all come to their end before it.
_FINALIZE_LIMIT = 2.0  # seconds

_CLEAN = 1  # tfddl_shutdown() returns it if communicators may be freed
_FOREVER = 1e9  # seconds; C++ clocks do not know infinity

_lock = threading.RLock()  # of init() and shutdown()


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins this process to the job that mpirun or tfddlrun started. Without a launcher the job has size 1.

    Every rank calls it once, before anything else of tfddl. A second call does nothing. The first call in an
    environment may compile the native library.

    Where several processes of a host have a GPU each, TensorFlow sees one GPU in each process from here on
    (`TFDDL_PIN_GPU=0`: all GPUs). The program may call `tf.config.set_visible_devices` before or after it, to choose.

    The processes of a host share out its cores: each process has as many threads for a TensorFlow operation as cores, if
    TensorFlow has not started yet. To choose, set `TF_NUM_INTRAOP_THREADS`, or call
    `tf.config.threading.set_intra_op_parallelism_threads` before or after `init()`.

    Args:
        comm: The processes of the job: an mpi4py communicator, or a list of ranks of `MPI.COMM_WORLD` that includes this
            process and is the same on all of its processes. The ranks of the job follow the order of the communicator,
            or of the ranks. Defaults to all of `MPI.COMM_WORLD`.
        process_sets: A list of `ProcessSet` to add, the same on all ranks. Horovod's `"dynamic"` adds none: sets can be
            added at any time.

    Raises:
        ImportError: This Python, platform, TensorFlow or Keras is not supported; the message says what to install.
        RuntimeError: MPI, its header or a compiler is missing; the message says what to install. Or this process
            was forked or started by a rank. Or a launcher started several processes and MPI knows only this one (`srun`
            without an MPI plugin); `TFDDL_ALLOW_SINGLE=1` allows it.
        ValueError: The engine did not start, the ranks run different software or give different `comm` or
            `process_sets`, an environment variable is not a number, or the file of `TFDDL_TIMELINE` cannot be written.
    """
    if process.job is None:
        fork.check("init")
        fork.refuse_spawned()
    if not fork.is_child():  # a forked child may have inherited the lock in use
        with _lock:
            if process.job is None:
                with failure.during_init():
                    _start(comm, process_sets)


def shutdown() -> None:
    """Leaves the job. Collectives that still wait for other ranks fail on all ranks. `init()` may be called again.

    Ranks that do not answer within 30 seconds (or `TFDDL_STALL_LIMIT`) are reported on stderr.
    """
    if fork.is_child():
        process.job = None
        return
    with _lock:
        if process.job is not None:
            _stop(process.job)


def is_initialized() -> bool:
    """Whether this process is in a job: `init()` has been called, and `shutdown()` has not been called since."""
    return process.job is not None


def rank() -> int:
    """The rank of this process in the job, from 0 to `size() - 1`.

    Raises:
        ValueError: `init()` has not been called, or `shutdown()` has been since.

    Example:
        On 2 ranks:

        >>> hvd.allgather_object(hvd.rank())
        [0, 1]
    """
    rank_queries.note_program("rank", "hvd.rank()")
    return current("rank").rank


def size() -> int:
    """The number of processes in the job.

    Raises:
        ValueError: `init()` has not been called, or `shutdown()` has been since.

    Example:
        On 2 ranks:

        >>> hvd.size()
        2
    """
    rank_queries.note_program("size", "hvd.size()")
    return current("size").size


def local_rank() -> int:
    """The rank of this process among the processes on its host.

    Raises:
        ValueError: `init()` has not been called, or `shutdown()` has been since.
    """
    rank_queries.note_program("rank", "hvd.local_rank()")
    return current("local_rank").local_rank


def local_size() -> int:
    """The number of processes on this host.

    Raises:
        ValueError: `init()` has not been called, or `shutdown()` has been since.
    """
    rank_queries.note_program("size", "hvd.local_size()")
    return current("local_size").local_size


def cross_rank() -> int:
    """The rank of this process among the processes with its `local_rank()`, one on each host.

    Raises:
        ValueError: `init()` has not been called, or `shutdown()` has been since.
    """
    rank_queries.note_program("rank", "hvd.cross_rank()")
    return current("cross_rank").cross_rank


def cross_size() -> int:
    """The number of hosts that have a process of this `local_rank()`.

    Raises:
        ValueError: `init()` has not been called, or `shutdown()` has been since.
    """
    rank_queries.note_program("size", "hvd.cross_size()")
    return current("cross_size").cross_size


def is_homogeneous() -> bool:
    """Whether all hosts run the same number of processes.

    Raises:
        ValueError: `init()` has not been called, or `shutdown()` has been since.
    """
    return len(set(Counter(current("is_homogeneous").hosts).values())) == 1


def _start(comm: Any, sets: Any) -> None:
    limits = _stall_limits()
    exit_limit = _seconds("TFDDL_EXIT_LIMIT", _FOREVER)
    library.native()  # before MPI, so that an error names the missing package first
    flight_record.start()
    MPI = library.mpi()
    with init_watchdog.waiting(*limits, named=comm is None) as next_step:
        next_step()
        library.initialize_mpi()
        launcher_check.check(comm, MPI.COMM_WORLD.size)
        debugger.install()
        if MPI.COMM_WORLD.size > 1:
            failure.install()
            exit_code.observe()
        next_step()
        world = job_communicator.communicator(MPI, comm)
        next_step()
        job = process.job = _join(MPI, world, limits)
        try:
            next_step()
            process_sets.start(job, comm)
            timeline.start_from_environment()
            registration.add_static(sets)
            gpu.pin_once(job)
        except BaseException:
            _stop(job)
            raise
    process.unanswered = False
    process.owners.clear()
    if job.size > 1:
        fork.mark_spawned()
    if job.rank == 0:
        _warn_about_one_core(job)
        _warn_about_untested()
    # Once: functions that were registered after the first init() have to run while the job is there.
    if not process.exit_limits:
        atexit.register(_at_exit)
    process.exit_limits = (*limits, exit_limit)
    threads.limit(job)
    processors.limit_xla(job)


def _stop(job: Job) -> None:
    process.job = None
    native = library.native()
    failed_before = bool(native.tfddl_failure())
    ended = native.tfddl_shutdown(min(SHUTDOWN_LIMIT, job.limits[1]))
    timeline.end(job)
    process_sets.stop(job, free=ended == _CLEAN)
    for communicator in (*job.engine_communicators, job.communicator) if ended == _CLEAN else ():
        communicator.Free()
    if not ended and not failed_before:
        process.unanswered = True
        print(f"tfddl: {native.tfddl_last_error().decode()}", file=sys.stderr)


def _join(MPI: Any, world: Any, limits: tuple[float, float]) -> Job:
    """Starts the engine on `world`, a communicator of all ranks of the job that belongs to tfddl."""
    fork.watch()
    software.check_equal(world)
    native = library.native()
    data, control = world.Dup(), world.Dup()
    if native.tfddl_init(MPI._addressof(data), MPI._addressof(control), *limits) != 0:
        raise ValueError(
            "tfddl initialization failed; run tfddl doctor -np 2 to look for the cause: "
            + native.tfddl_last_error().decode()
        )
    flight_record.joined(world)
    job = _describe(MPI, world, (data, control), limits)
    native.tfddl_set_local(job.local_rank, job.local_size)
    return job


def _describe(MPI: Any, world: Any, engine: tuple[Any, Any], limits: tuple[float, float]) -> Job:
    """MPI says which ranks share a host: under some schedulers the launcher's variables are wrong."""
    local = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    cross = world.Split(color=local.rank, key=world.rank)
    may_go_by_hosts = switched_on("TFDDL_HIERARCHICAL_ALLREDUCE")
    here = (local.bcast(world.rank), may_go_by_hosts, processors.instruction_set())
    hosts, wishes, instruction_sets = zip(*world.allgather(here), strict=True)
    job = Job(
        MPI=MPI,
        communicator=world,
        engine_communicators=engine,
        rank=world.rank,
        size=world.size,
        local_rank=local.rank,
        local_size=local.size,
        cross_rank=cross.rank,
        cross_size=cross.size,
        hosts=hosts,
        by_hosts=all(wishes),
        instruction_sets=instruction_sets,
        cores=threads.part_of(local),
        limits=limits,
    )
    local.Free()
    cross.Free()
    return job


def _stall_limits() -> tuple[float, float]:
    limit = _seconds("TFDDL_STALL_LIMIT", 1800.0) or _FOREVER  # 0 is no limit, as in Horovod
    return _seconds("TFDDL_STALL_WARNING", 60.0), limit


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not seconds >= 0.0:
        raise ValueError(
            f"{variable} must be a number of seconds, 0 or more: set {variable}=60. Received: {text!r}"
        )
    return min(seconds, _FOREVER)


def _warn_about_one_core(job: Job) -> None:
    """By default mpirun pins each of two ranks to one core, which all threads of TensorFlow then share."""
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
    """Leaves the job before MPI is finalized. The engine must not use MPI then, and no peer may be dead."""
    code = process.exit_code
    if fork.is_child():
        library.native().tfddl_set_forked_code(code)
        return
    if process.survives:
        library.native().tfddl_bound_finalize(_FINALIZE_LIMIT)
    else:
        exit_watchdog.begin(*process.exit_limits)
    if process.job is not None and process.job.size > 1:
        reason = library.native().tfddl_failure().decode()
        if reason or code:
            # At once: after a shutdown the peers would raise because this rank has left, and be taken for the cause.
            failure.abort(reason, code or 1)
    shutdown()
    if process.unanswered:
        failure.abort(None, code or 1)
