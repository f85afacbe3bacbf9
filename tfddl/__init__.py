"""tfddl: one TensorFlow/Keras training script on many GPUs, hosts or CPU cores.

    import tfddl as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=...)
    model.fit(data, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Start it with `tfddlrun -np 2 python train.py`. Names are loaded on first use, so that the command line tools start
without TensorFlow.
"""

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tfddl import callbacks as callbacks
    from tfddl import data as data
    from tfddl import elastic as elastic
    from tfddl.gradients.power_sgd import PowerSGD as PowerSGD
    from tfddl.gradients.tape import DistributedGradientTape as DistributedGradientTape
    from tfddl.gradients.tape import PartialDistributedGradientTape as PartialDistributedGradientTape
    from tfddl.keras import optimizers as optimizers
    from tfddl.keras.evaluation import evaluate as evaluate
    from tfddl.keras.load import load_model as load_model
    from tfddl.keras.local_steps import DiLoCo as DiLoCo
    from tfddl.keras.local_steps import LocalSGD as LocalSGD
    from tfddl.keras.optimizer import DistributedOptimizer as DistributedOptimizer
    from tfddl.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
    from tfddl.keras.parallel.data_parallel import DataParallel as DataParallel
    from tfddl.keras.sharded.checkpoint import ShardedCheckpoint as ShardedCheckpoint
    from tfddl.keras.sharded.optimizer import ShardedOptimizer as ShardedOptimizer
    from tfddl.keras.sync_batch_normalization import SyncBatchNormalization as SyncBatchNormalization
    from tfddl.launch.function import run as run
    from tfddl.ops.allgather import allgather as allgather
    from tfddl.ops.allgather import grouped_allgather as grouped_allgather
    from tfddl.ops.allreduce import allreduce as allreduce
    from tfddl.ops.allreduce import grouped_allreduce as grouped_allreduce
    from tfddl.ops.alltoall import alltoall as alltoall
    from tfddl.ops.barrier import barrier as barrier
    from tfddl.ops.broadcast import broadcast as broadcast
    from tfddl.ops.compression import Compression as Compression
    from tfddl.ops.constants import Adasum as Adasum
    from tfddl.ops.constants import Average as Average
    from tfddl.ops.constants import Max as Max
    from tfddl.ops.constants import Min as Min
    from tfddl.ops.constants import Product as Product
    from tfddl.ops.constants import Sum as Sum
    from tfddl.ops.join import join as join
    from tfddl.ops.objects import allgather_object as allgather_object
    from tfddl.ops.objects import broadcast_object as broadcast_object
    from tfddl.ops.objects import broadcast_object_fn as broadcast_object_fn
    from tfddl.ops.reducescatter import grouped_reducescatter as grouped_reducescatter
    from tfddl.ops.reducescatter import reducescatter as reducescatter
    from tfddl.ops.topology import local_rank_op as local_rank_op
    from tfddl.ops.topology import local_size_op as local_size_op
    from tfddl.ops.topology import process_set_included_op as process_set_included_op
    from tfddl.ops.topology import rank_op as rank_op
    from tfddl.ops.topology import size_op as size_op
    from tfddl.ops.variables import broadcast_ as broadcast_
    from tfddl.ops.variables import broadcast_variables as broadcast_variables
    from tfddl.runtime import stats as stats
    from tfddl.runtime.basics import cross_rank as cross_rank
    from tfddl.runtime.basics import cross_size as cross_size
    from tfddl.runtime.basics import init as init
    from tfddl.runtime.basics import is_homogeneous as is_homogeneous
    from tfddl.runtime.basics import is_initialized as is_initialized
    from tfddl.runtime.basics import local_rank as local_rank
    from tfddl.runtime.basics import local_size as local_size
    from tfddl.runtime.basics import rank as rank
    from tfddl.runtime.basics import shutdown as shutdown
    from tfddl.runtime.basics import size as size
    from tfddl.runtime.features import ccl_built as ccl_built
    from tfddl.runtime.features import cuda_built as cuda_built
    from tfddl.runtime.features import ddl_built as ddl_built
    from tfddl.runtime.features import gloo_built as gloo_built
    from tfddl.runtime.features import gloo_enabled as gloo_enabled
    from tfddl.runtime.features import gpu_available as gpu_available
    from tfddl.runtime.features import mpi_built as mpi_built
    from tfddl.runtime.features import mpi_enabled as mpi_enabled
    from tfddl.runtime.features import mpi_threads_supported as mpi_threads_supported
    from tfddl.runtime.features import nccl_built as nccl_built
    from tfddl.runtime.features import rocm_built as rocm_built
    from tfddl.runtime.flight_record import write_flight_record as write_flight_record
    from tfddl.runtime.gpu import set_visible_gpu as set_visible_gpu
    from tfddl.runtime.process_sets import ProcessSet as ProcessSet
    from tfddl.runtime.process_sets import global_process_set as global_process_set
    from tfddl.runtime.registration import add_process_set as add_process_set
    from tfddl.runtime.registration import remove_process_set as remove_process_set
    from tfddl.runtime.timeline import start_timeline as start_timeline
    from tfddl.runtime.timeline import stop_timeline as stop_timeline
    from tfddl.runtime.xla import xla_built as xla_built
    from tfddl.v1.broadcast import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
    from tfddl.v1.broadcast import broadcast_global_variables as broadcast_global_variables

_MODULES = {
    "tfddl.gradients.power_sgd": ["PowerSGD"],
    "tfddl.gradients.tape": ["DistributedGradientTape", "PartialDistributedGradientTape"],
    "tfddl.keras.load": ["load_model"],
    "tfddl.keras.local_steps": ["DiLoCo", "LocalSGD"],
    "tfddl.keras.sharded.checkpoint": ["ShardedCheckpoint"],
    "tfddl.keras.sharded.optimizer": ["ShardedOptimizer"],
    "tfddl.keras.parallel.data_parallel": ["DataParallel"],
    "tfddl.keras.optimizer": ["DistributedOptimizer", "PartialDistributedOptimizer"],
    "tfddl.keras.evaluation": ["evaluate"],
    "tfddl.keras.sync_batch_normalization": ["SyncBatchNormalization"],
    "tfddl.launch.function": ["run"],
    "tfddl.ops.allgather": ["allgather", "grouped_allgather"],
    "tfddl.ops.allreduce": ["allreduce", "grouped_allreduce"],
    "tfddl.ops.alltoall": ["alltoall"],
    "tfddl.ops.barrier": ["barrier"],
    "tfddl.ops.broadcast": ["broadcast"],
    "tfddl.ops.compression": ["Compression"],
    "tfddl.ops.constants": ["Adasum", "Average", "Max", "Min", "Product", "Sum"],
    "tfddl.ops.join": ["join"],
    "tfddl.ops.objects": ["allgather_object", "broadcast_object", "broadcast_object_fn"],
    "tfddl.ops.reducescatter": ["grouped_reducescatter", "reducescatter"],
    "tfddl.ops.topology": ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"],
    "tfddl.ops.variables": ["broadcast_", "broadcast_variables"],
    "tfddl.runtime.basics": [
        "cross_rank",
        "cross_size",
        "init",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "rank",
        "shutdown",
        "size",
    ],
    "tfddl.runtime.features": [
        "ccl_built",
        "cuda_built",
        "ddl_built",
        "gloo_built",
        "gloo_enabled",
        "gpu_available",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "rocm_built",
    ],
    "tfddl.runtime": ["stats"],
    "tfddl.runtime.flight_record": ["write_flight_record"],
    "tfddl.runtime.gpu": ["set_visible_gpu"],
    "tfddl.runtime.process_sets": ["ProcessSet", "global_process_set"],
    "tfddl.runtime.registration": ["add_process_set", "remove_process_set"],
    "tfddl.runtime.timeline": ["start_timeline", "stop_timeline"],
    "tfddl.runtime.xla": ["xla_built"],
    "tfddl.v1.broadcast": ["BroadcastGlobalVariablesHook", "broadcast_global_variables"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

_PACKAGES = {
    "callbacks": "tfddl.callbacks",
    "data": "tfddl.data",
    "elastic": "tfddl.elastic",
    "optimizers": "tfddl.keras.optimizers",
}

__all__ = ["__version__", *_PACKAGES, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(_PACKAGES[name])
    if name not in _HOMES:
        # Imported here, since it is for a mistake only.
        advice = importlib.import_module("tfddl.compat.horovod_names").advice(name)
        raise AttributeError(f"module 'tfddl' has no attribute {name!r}{advice and ': ' + advice}")
    if name == "init":
        _register_ops()
    return getattr(importlib.import_module(_HOMES[name]), name)


def _register_ops() -> None:
    """Tells TensorFlow the gradients of the ops and the order of their calls: a SavedModel may bring ops with it."""
    with contextlib.suppress(ImportError):  # init() says what is missing, and how to install it
        for module in _MODULES:
            if module.startswith("tfddl.ops."):
                importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted(__all__)
