"""Faults of the code for GPUs; their tests run over doubles of CUDA, NCCL and of TensorFlow's list of devices."""

from tests.mutants.fault import Fault

_VISIBLE = "tests/gpu/test_visible_gpu.py::"

FAULTS = {
    "the engine waits while NCCL ends a communicator": Fault(
        "custom_ops/gpu/nccl_ends.cc",
        "    std::thread(run).detach();",
        "    run();",
        "nccl_rows_test",
    ),
    "NCCL ends a communicator without a context": Fault(
        "custom_ops/gpu/nccl_ends.cc",
        "    const WithContext current(*device);  // else",
        "    // else",
        "nccl_rows_test",
    ),
    "all programs of XLA on a GPU are one run": Fault(
        "custom_ops/core/compiled/run_call.cc",
        "return step ? step : ++last;",
        "return last;",
        "nccl_xla_test",
    ),
    "the thread that frees memory waits for memory": Fault(
        "custom_ops/core/engine/engine_requests.cc",
        "  allocation_->Post(std::move(function));\n",
        "  completion_.Post(std::move(function));\n",
        "nccl_allocation_test",
    ),
    "a failed request ends during its allocation": Fault(
        "custom_ops/core/engine/engine_requests.cc",
        "status, allocates ? allocation_.get() : nullptr);",
        "status);",
        "nccl_allocation_test",
    ),
    "done before completion": Fault(
        "custom_ops/gpu/nccl.cc",
        "const bool passed = end_->Passed();",
        "const bool passed = true;",
        "nccl_order_test",
    ),
    "no wait for the input": Fault(
        "custom_ops/gpu/nccl.cc",
        "    ready_->HoldBack(device.stream);\n",
        "",
        "nccl_order_test",
    ),
    "no wait for the memory of a result": Fault(
        "custom_ops/gpu/nccl.cc",
        "    if (*allocated_) (*allocated_)->HoldBack(device.stream);\n",
        "",
        "nccl_order_test",
    ),
    "completion recorded too early": Fault(
        "custom_ops/gpu/nccl.cc",
        "          if (communicator_->Busy()) return false;\n",
        "",
        "nccl_order_test",
    ),
    "what has no time yet is passed over": Fault(
        "custom_ops/gpu/nccl_order.cc",
        "return other.first == collective || mine.key < other.second.key;",
        "return other.first == collective || !other.second.settled || mine.key < other.second.key;",
        "nccl_sets_test",
    ),
    "memory given back while it is used": Fault(
        "custom_ops/gpu/nccl.cc",
        "          phase_ = Phase::kRun;\n          break;\n",
        "          return true;\n",
        "nccl_order_test",
    ),
    "wrong operation": Fault(
        "custom_ops/gpu/nccl_calls.cc",
        "      return kNcclMax;",
        "      return kNcclMin;",
        "nccl_reduce_test",
    ),
    "average without its division": Fault(
        "custom_ops/gpu/nccl_calls.cc",
        "if (NcclAverages(request_, participants_)) return kNcclAvg;",
        "if (NcclAverages(request_, participants_)) return kNcclSum;",
        "nccl_reduce_test",
    ),
    "nothing called for one rank": Fault(
        "custom_ops/gpu/nccl_calls.cc",
        """  for (const Buffer& buffer : request_.buffers) {
    if (buffer.count == 0) continue;
    KeepError(api_.ncclAllReduce(""",
        """  for (const Buffer& buffer : request_.buffers) {
    if (buffer.count == 0 || size_ == 1) continue;
    KeepError(api_.ncclAllReduce(""",
        "nccl_reduce_test",
    ),
    "no abort of what runs": Fault(
        "custom_ops/gpu/nccl.cc",
        "    for (auto& [generation, communicator] : communicators_) communicator->Abort();\n",
        "",
        "nccl_faults_test",
    ),
    "asynchronous errors not looked at": Fault(
        "custom_ops/gpu/nccl_communicator.cc",
        '  device_->api->CheckNccl(state, "asynchronous work");\n',
        "",
        "nccl_faults_test",
    ),
    "a program of XLA goes on before the result is there": Fault(
        "custom_ops/core/compiled/run_call.cc",
        "  const Status held = HoldBack(end, context.stream);",
        "  const Status held;",
        "nccl_xla_test",
    ),
    "a program of XLA overtakes its run before": Fault(
        "custom_ops/core/compiled/calls_in_flight.cc",
        "  engine->Help([&] { return last->ended(); });\n  last->Wait();\n",
        "",
        "nccl_xla_test",
    ),
    "a program of XLA leaves calls behind": Fault(
        "custom_ops/core/compiled/run_call.cc",
        "  return status.ok() ? status : Abandon(context, status);\n}\n\nStatus RunCall",
        "  return status;\n}\n\nStatus RunCall",
        "nccl_xla_test",
    ),
    "collectives of a failed job hold up the next one": Fault(
        "custom_ops/gpu/nccl.cc",
        "    for (const Collective* collective : entered_) devices_->order().Leave(collective);\n",
        "",
        "nccl_faults_test",
    ),
    "a program that fails leaves the GPU at its memory": Fault(
        "custom_ops/core/compiled/run_call.cc",
        "  const Status held = HoldBack(end, context.stream);  // after an error too: the GPU may still write\n"
        "  if (!status.ok()) return status;\n",
        "  if (!status.ok()) return status;\n  const Status held = HoldBack(end, context.stream);\n",
        "nccl_xla_test",
    ),
    "a program that fails leaves calls of other process sets behind": Fault(
        "custom_ops/core/compiled/run_call.cc",
        "if (engine && !started->outcome->ended()) engine->Cancel(started->key);",
        "if (engine && engine == nullptr) engine->Cancel(started->key);",
        "call_test",
    ),
    "each init looks for a GPU": Fault(
        "tfddl/runtime/gpu.py",
        "    process.pinning_is_done = True\n",
        "",
        _VISIBLE + "test_tensorflow_has_started_is_one_warning",
    ),
    "init overrules the program's choice of a GPU": Fault(
        "tfddl/runtime/gpu.py",
        'if tf.config.get_visible_devices("GPU") != gpus:',
        "if not gpus:",
        _VISIBLE + "test_the_programs_choice_before_init",
    ),
    "all ranks beyond the GPUs share the last one": Fault(
        "tfddl/runtime/gpu.py",
        "_show_one(job, gpus[job.local_rank % len(gpus)])",
        "_show_one(job, gpus[min(job.local_rank, len(gpus) - 1)])",
        _VISIBLE + "test_shared_gpus_go_round",
    ),
}
