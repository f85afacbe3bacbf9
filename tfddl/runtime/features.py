"""Features of this installation, under Horovod's names."""

from __future__ import annotations

from tfddl.runtime import library
from tfddl.runtime.job import current


def nccl_built() -> int:
    """NCCL's version as one number (22707 is 2.27.7), or 0 if tfddl finds no usable NCCL.

    NCCL is opened at run time: `TFDDL_NCCL_LIBRARY`, else the package nvidia-nccl-cu12, else the system's.
    """
    return int(library.native().tfddl_nccl_version())


def cuda_built() -> bool:
    """Whether this TensorFlow is a build for NVIDIA's GPUs. tfddl itself has one build for all."""
    import tensorflow as tf

    return bool(tf.test.is_built_with_cuda())


def gpu_available(ext_base_name: str | None = None, verbose: bool = False) -> bool:
    """Whether TensorFlow may use a GPU in this process.

    Args:
        ext_base_name: For Horovod's signature; not used.
        verbose: For Horovod's signature; not used.
    """
    from tfddl import _compat

    return _compat.sees_gpus()


def mpi_built() -> bool:
    """True: the ranks connect through MPI."""
    return True


def mpi_enabled() -> bool:
    """True: every job runs under MPI."""
    return True


def mpi_threads_supported() -> bool:
    """Whether several threads may call MPI at once (MPI_THREAD_MULTIPLE), mpi4py included. Else `init()` raises.

    Raises:
        ValueError: tfddl is not initialized.
    """
    MPI = current("mpi_threads_supported").MPI
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def rocm_built() -> bool:
    """False: AMD GPUs are not supported."""
    return False


def gloo_built() -> bool:
    """False: tfddl does not use Gloo."""
    return False


def gloo_enabled() -> bool:
    """False: tfddl does not use Gloo."""
    return False


def ccl_built() -> bool:
    """False: tfddl does not use oneCCL."""
    return False


def ddl_built() -> bool:
    """False: tfddl does not use DDL."""
    return False
