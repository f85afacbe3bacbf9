"""The public names of Horovod 0.28 for TensorFlow and Keras, by module, and where tfddl has them."""

from __future__ import annotations

VERSION = "0.28.1"
"""The version of Horovod whose names these are. Programs compare it."""

_HERE = "tfddl.compat.horovod"


def _from(home: str, names: str) -> dict[str, str]:
    """`name` or `name=original` of one module, as name -> home:original."""
    pairs = (name.partition("=") for name in names.split())
    return {name: f"{home}:{original or name}" for name, _, original in pairs}


_BASICS = _from(
    "tfddl.runtime.basics",
    "cross_rank cross_size init is_homogeneous is_initialized local_rank local_size rank shutdown size",
) | _from("tfddl.runtime.timeline", "start_timeline stop_timeline")
_FEATURES = _from(
    "tfddl.runtime.features",
    "ccl_built cuda_built ddl_built gloo_built gloo_enabled mpi_built mpi_enabled mpi_threads_supported nccl_built "
    "rocm_built",
)
_SETS = _from("tfddl.runtime.process_sets", "ProcessSet global_process_set") | _from(
    "tfddl.runtime.registration", "add_process_set remove_process_set"
)
_OPERATIONS = _from("tfddl.ops.constants", "Adasum Average Max Min Product Sum")
_COMPRESSION = _from("tfddl.ops.compression", "Compression")
_COLLECTIVES = _from(
    f"{_HERE}.collectives",
    "allgather allreduce alltoall broadcast broadcast_ grouped_allgather grouped_allreduce grouped_reducescatter "
    "reducescatter",
) | _from("tfddl.ops.join", "join")
_REDUCTIONS = _from(
    f"{_HERE}.collectives", "_allreduce _grouped_allreduce _reducescatter _grouped_reducescatter"
)
_TOPOLOGY = _from("tfddl.ops.topology", "local_rank_op local_size_op process_set_included_op rank_op size_op")
_OBJECTS = _from("tfddl.ops.objects", "allgather_object broadcast_object broadcast_object_fn")
_VARIABLES = _from(
    f"{_HERE}.variables", "broadcast_variables broadcast_global_variables BroadcastGlobalVariablesHook"
)
_UTIL = _from(
    f"{_HERE}.util",
    "_cache _executing_eagerly _make_subgraph check_num_rank_power_of_2 gpu_available refs_to_vars split_list "
    "vars_to_refs handle_average_backwards_compatibility",
)
_COMMON_UTIL = _from(
    f"{_HERE}.util",
    "check_extension env extension_available get_average_backwards_compatibility_fun is_iterable "
    "is_version_greater_equal_than num_rank_is_power_2 split_list gpu_available",
)
_CALLBACKS = _from(
    f"{_HERE}.callbacks",
    "BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback LearningRateWarmupCallback "
    "MetricAverageCallback",
)
_TAPES = _from(f"{_HERE}.tape", "DistributedGradientTape PartialDistributedGradientTape")
_KERAS = (
    _BASICS
    | _FEATURES
    | _SETS
    | _from("tfddl.ops.constants", "Adasum Average Sum")
    | _COMPRESSION
    | _from(f"{_HERE}.values", "allgather allreduce broadcast reducescatter")
    | _from(f"{_HERE}.variables", "broadcast_global_variables")
    | _from(f"{_HERE}.load", "load_model")
)
_PARTIAL = _from(f"{_HERE}.optimizer", "PartialDistributedOptimizer")

_ELASTIC_KERAS = (
    _from("tfddl.elastic.variables_state", "KerasState")
    | _from(
        "tfddl.elastic.callbacks", "CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback"
    )
    | _from("tfddl.elastic.training", "run")
)

MODULES: dict[str, dict[str, str]] = {
    "horovod": _from("tfddl.compat.horovod_run", "run")
    | _from("tfddl.compat.horovod_names", "__version__=VERSION"),
    "horovod.tensorflow": _BASICS
    | _FEATURES
    | _SETS
    | _OPERATIONS
    | _COMPRESSION
    | _COLLECTIVES
    | _TOPOLOGY
    | _OBJECTS
    | _VARIABLES
    | _UTIL
    | _TAPES
    | _from(f"{_HERE}.util", "check_extension")
    | _REDUCTIONS
    | _from(f"{_HERE}.optimizer", "DistributedOptimizer=DistributedOptimizerOfTensorFlow")
    | _from("tfddl.keras.sync_batch_normalization", "SyncBatchNormalization"),
    "horovod.tensorflow.mpi_ops": _BASICS
    | _FEATURES
    | _OPERATIONS
    | _COLLECTIVES
    | _REDUCTIONS
    | _TOPOLOGY
    | _SETS
    | _UTIL
    | _from(f"{_HERE}.util", "_basics=BASICS"),
    "horovod.tensorflow.compression": _from("tfddl.ops.compression", "Compression Compressor"),
    "horovod.tensorflow.functions": _OBJECTS | _VARIABLES,
    "horovod.tensorflow.util": _UTIL,
    "horovod.tensorflow.sync_batch_norm": _from(
        "tfddl.keras.sync_batch_normalization", "SyncBatchNormalization"
    ),
    "horovod.tensorflow.keras": _KERAS
    | _PARTIAL
    | _from(f"{_HERE}.optimizer", "DistributedOptimizer=DistributedOptimizerOfKeras"),
    "horovod.tensorflow.keras.callbacks": _CALLBACKS,
    "horovod.tensorflow.keras.elastic": _ELASTIC_KERAS,
    "horovod.keras.elastic": _ELASTIC_KERAS,
    "horovod.tensorflow.elastic": _from(
        "tfddl.elastic.variables_state", "TensorFlowKerasState TensorFlowState"
    )
    | _from("tfddl.elastic.training", "run"),
    "horovod.keras": _KERAS
    | _PARTIAL
    | _from(f"{_HERE}.optimizer", "DistributedOptimizer=DistributedOptimizerOfKeras"),
    "horovod.keras.callbacks": _CALLBACKS,
    "horovod._keras": {},
    "horovod.common": {},
    "horovod.common.basics": _BASICS | _FEATURES,
    "horovod.common.elastic": _from("tfddl.elastic.state", "State ObjectState"),
    "horovod.common.exceptions": _from("tfddl.elastic.errors", "HorovodInternalError HostsUpdatedInterrupt")
    | _from(f"{_HERE}.exceptions", "HorovodVersionMismatchError"),
    "horovod.common.process_sets": _SETS
    | _from("tfddl.runtime.process_sets", "_temp_process_set_object=by_id"),
    "horovod.common.util": _COMMON_UTIL,
    "horovod.data": _from(f"{_HERE}.data", "AsyncDataLoaderMixin BaseDataLoader"),
    "horovod.data.data_loader_base": _from(f"{_HERE}.data", "AsyncDataLoaderMixin BaseDataLoader"),
    "horovod.runner": _from("tfddl.compat.horovod_run", "run"),
    "horovod.runner.common": {},
    "horovod.runner.common.util": {},
    "horovod.runner.common.util.env": _from(f"{_HERE}.util", "get_env_rank_and_size"),
    "horovod.runner.util": {},
    "horovod.runner.util.threads": _from(f"{_HERE}.util", "in_thread"),
}
"""Module -> name -> `module of tfddl:name there`."""

KERAS_MODULES = frozenset(name for name in MODULES if name.split(".")[1:2] in (["tensorflow"], ["keras"]))
"""The modules whose import makes Keras 3 take the spellings of Keras 2."""

_PASSES = "use DistributedOptimizer(..., backward_passes_per_step=n)"
_CLUSTER = "start the training on the hosts of the cluster by tfddlrun or mpirun"
_OTHER = "tfddl is for TensorFlow and Keras"

ABSENT: dict[str, str] = {
    "gradient_aggregation": _PASSES,
    "gradient_aggregation_eager": _PASSES,
    "LocalGradientAggregationHelper": _PASSES,
    "_make_allreduce_grads_fn": "use DistributedGradientTape, or the method _allreduce_grads of a DistributedOptimizer",
    "data": "use the service of tf.data itself, tf.data.experimental.service",
    "compute_service": "use the service of tf.data itself, tf.data.experimental.service",
    "spark": _CLUSTER,
    "ray": _CLUSTER,
    "torch": _OTHER,
    "mxnet": _OTHER,
}
"""Last part of a name of Horovod that tfddl does not have -> the sentence of the error."""


def advice(name: str) -> str:
    """Says where a name of Horovod is that `tfddl` itself does not have. Empty for other names."""
    if name in ABSENT:
        return ABSENT[name]
    if any(name in homes or f"{module}.{name}" in MODULES for module, homes in MODULES.items()):
        return "it is for programs that import horovod; start them by tfddlrun --horovod"
    return ""
