"""What this installation can do, under the names of Horovod's questions."""

from __future__ import annotations

from tfddl.runtime import basics, library


def nccl_built() -> int:
    """NCCL's version as it counts them (22707 is 2.27.7), or 0 where there is none that tfddl can use.

    NCCL is opened at run time: `TFDDL_NCCL_LIBRARY`, else the package nvidia-nccl-cu12, else the system's.
    """
    return int(library.native().tfddl_nccl_version())


def cuda_built() -> bool:
    """Whether this TensorFlow is a build for NVIDIA's GPUs; tfddl itself is the same for all of them."""
    import tensorflow as tf

    return bool(tf.test.is_built_with_cuda())


def gpu_available(ext_base_name: str | None = None, verbose: bool = False) -> bool:
    """Whether TensorFlow may use a GPU in this process.

    Args:
        ext_base_name: Horovod's, for the framework; not used.
        verbose: Horovod's; not used.
    """
    from tfddl import _compat

    return _compat.sees_gpus()


def mpi_built() -> bool:
    """True: ranks meet through MPI."""
    return True


def mpi_enabled() -> bool:
    """True: every job runs under MPI."""
    return True


def mpi_threads_supported() -> bool:
    """Whether MPI lets several threads call it at once, mpi4py's among them; `init()` raises where it does not.

    Raises:
        ValueError: tfddl is not initialized.
    """
    basics.rank()
    MPI = library.mpi()
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def rocm_built() -> bool:
    """False: GPUs of AMD are not supported."""
    return False


def gloo_built() -> bool:
    """False: there is no Gloo."""
    return False


def gloo_enabled() -> bool:
    """False: there is no Gloo."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL."""
    return False


def ddl_built() -> bool:
    """False: there is no DDL."""
    return False
