"""The names of Horovod, with the order and the defaults of their arguments."""

import inspect
import json
import subprocess
import sys

import pytest

from tests.harness.job import REPOSITORY
from tfddl.compat import horovod_names

# Horovod 0.28.1.
REDUCTION = "compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = {
    "horovod": {
        "run": "func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, reset_limit=None, "
        "cooldown_range=None, hosts=None, hostfile=None, host_discovery_script=None, start_timeout=None, ssh_port=None, "
        "ssh_identity_file=None, disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None, "
        "mpi_args=None, network_interface=None, network_interfaces=None, executable=None, np=None, min_np=None, max_np=None",
    },
    "horovod.tensorflow": {
        "init": "comm=None, process_sets=None",
        "start_timeline": "file_path, mark_cycles=False",
        "allreduce": f"tensor, average=None, device_dense='', device_sparse='', {REDUCTION}, name=None, process_set=SET, "
        "ignore_name_scope=False",
        "grouped_allreduce": f"tensors, average=None, device_dense='', device_sparse='', {REDUCTION}, process_set=SET, "
        "ignore_name_scope=False, name=None",
        "allgather": "tensor, name=None, ignore_name_scope=False, process_set=SET",
        "grouped_allgather": "tensors, name=None, ignore_name_scope=False, process_set=SET",
        "broadcast": "tensor, root_rank, name=None, ignore_name_scope=False, process_set=SET",
        "broadcast_": "variables, root_rank, name=None, process_set=SET",
        "reducescatter": "tensor, device_dense='', compression=Compression.none, op=Average, name=None, process_set=SET, "
        "ignore_name_scope=False, prescale_factor=1.0, postscale_factor=1.0",
        "grouped_reducescatter": "tensors, device_dense='', compression=Compression.none, op=Average, process_set=SET, "
        "prescale_factor=1.0, postscale_factor=1.0",
        "alltoall": "tensor, splits=None, name=None, ignore_name_scope=False, process_set=SET",
        "broadcast_variables": "variables, root_rank, process_set=SET, inplace=False",
        "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set=SET",
        "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set=SET",
        "allgather_object": "obj, session=None, name=None, process_set=SET",
        "BroadcastGlobalVariablesHook": "root_rank, device=''",
        "size_op": "process_set_id=0, name=None",
        "rank_op": "name=None",
        "process_set_included_op": "process_set_id=0, name=None",
        "DistributedGradientTape": "gradtape, device_dense='', device_sparse='', compression=Compression.none, "
        "sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=SET, "
        "scale_local_gradients=True",
        "DistributedOptimizer": "optimizer, name=None, use_locking=False, device_dense='', device_sparse='', "
        "compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average, "
        "gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None, process_set=SET, "
        "scale_local_gradients=True",
    },
    "horovod.tensorflow.keras": {
        "DistributedOptimizer": "optimizer, name=None, device_dense='', device_sparse='', compression=Compression.none, "
        "sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, "
        "average_aggregated_gradients=False, num_groups=0, groups=None, process_set=SET, scale_local_gradients=True",
        "allreduce": "value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, "
        "compression=Compression.none",
        "allgather": "value, name=None",
        "broadcast": "value, root_rank, name=None",
        "reducescatter": "value, name=None, op=Average",
        "load_model": "filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, "
        "legacy_opts=False",
    },
    "horovod.keras": {
        "PartialDistributedOptimizer": "optimizer, name=None, device_dense='', device_sparse='', "
        "compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, "
        "backward_passes_per_step=1, average_aggregated_gradients=False, groups=None, process_set=SET, local_layers=None, "
        "scale_local_gradients=True",
    },
    "horovod.keras.callbacks": {
        "BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
        "MetricAverageCallback": "device=''",
        "LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
        "momentum_correction=True, steps_per_epoch=None",
        "LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, momentum_correction=True, "
        "steps_per_epoch=None, verbose=0",
    },
    "horovod.data": {"AsyncDataLoaderMixin": "async_loader_queue_size=64, debug_data_loader=False"},
}
# Modules and names of Horovod for TensorFlow and Keras that programs import, less those for elastic jobs.
NAMES = {
    "horovod.tensorflow": "allreduce grouped_allreduce allgather grouped_allgather broadcast broadcast_ reducescatter "
    "grouped_reducescatter alltoall join broadcast_variables broadcast_object broadcast_object_fn allgather_object "
    "broadcast_global_variables BroadcastGlobalVariablesHook DistributedOptimizer DistributedGradientTape "
    "PartialDistributedGradientTape SyncBatchNormalization Compression init shutdown is_initialized start_timeline "
    "stop_timeline size local_size cross_size rank local_rank cross_rank is_homogeneous rank_op local_rank_op size_op "
    "local_size_op process_set_included_op mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built "
    "ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set Average "
    "Sum Adasum Min Max Product handle_average_backwards_compatibility check_num_rank_power_of_2 check_extension "
    "gpu_available split_list vars_to_refs refs_to_vars _executing_eagerly _make_subgraph _cache _allreduce "
    "_grouped_allreduce _reducescatter _grouped_reducescatter mpi_ops util functions compression sync_batch_norm keras",
    "horovod.tensorflow.mpi_ops": "_allreduce _grouped_allreduce _reducescatter _grouped_reducescatter _basics",
    "horovod.common.process_sets": "ProcessSet global_process_set _temp_process_set_object",
    "horovod.tensorflow.keras": "DistributedOptimizer broadcast_global_variables allreduce allgather broadcast "
    "reducescatter load_model callbacks init shutdown is_initialized start_timeline stop_timeline size local_size "
    "cross_size rank "
    "local_rank cross_rank mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built ProcessSet "
    "global_process_set add_process_set remove_process_set nccl_built ddl_built ccl_built cuda_built rocm_built "
    "Average Sum Compression",
    "horovod.keras": "DistributedOptimizer broadcast_global_variables allreduce allgather broadcast reducescatter "
    "load_model callbacks init size rank global_process_set Average Sum Adasum Compression PartialDistributedOptimizer",
    "horovod.keras.callbacks": "BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback "
    "LearningRateWarmupCallback BestModelCheckpoint",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError",
    "horovod.common.util": "check_extension gpu_available split_list is_version_greater_equal_than num_rank_is_power_2",
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod": "run __version__ tensorflow keras common data runner",
}
LOOK = f"""
import importlib, inspect, json
import tfddl.compat.horovod
found = {{}}
for module, names in {NAMES!r}.items():
    for name in names.split():
        value = getattr(importlib.import_module(module), name)
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError):
            continue
        found[f"{{module}}.{{name}}"] = [
            (each.name, None if each.default is each.empty else repr(each.default), each.kind.name) for each in parameters
        ]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """The signature of each name, in a process of its own: the stand-in changes Keras."""
    result = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def expected_parameters(text):
    from tfddl.ops.compression import Compression
    from tfddl.ops.constants import Average
    from tfddl.runtime.process_sets import global_process_set

    names = {"Compression": Compression, "Average": Average, "SET": global_process_set}
    signature = eval(f"lambda {text}: 0", names)
    return [
        (each.name, None if each.default is each.empty else repr(each.default))
        for each in inspect.signature(signature).parameters.values()
    ]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in SIGNATURES.items() for name in names]
)
def test_arguments_by_position(found, module, name):
    """Programs give arguments by position, so names, order and defaults are Horovod's; others may follow."""
    wanted = expected_parameters(SIGNATURES[module][name])
    parameters = found[f"{module}.{name}"]
    positional = [(each, default) for each, default, kind in parameters if kind == "POSITIONAL_OR_KEYWORD"]
    given = [(each.rstrip("_"), default) for each, default in positional[: len(wanted)]]
    assert given == [(each.rstrip("_"), default) for each, default in wanted]


def test_import_finds_nothing_without_the_stand_in():
    assert "horovod" not in sys.modules
    assert horovod_names.MODULES.keys() >= NAMES.keys()
