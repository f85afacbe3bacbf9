#include "tensorflow/gpu.h"

#include "gpu/nccl_support.h"
#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace tfddl {

namespace tf = tensorflow;

GpuStream GpuStreamOf(tf::OpKernelContext* context) {
  const auto* stream = context->op_device_context()->stream();
  int ordinal = stream->parent()->device_ordinal();
  // A plugin's device does not know its ordinal. TensorFlow's own number counts visible GPUs only.
  if (ordinal < 0) ordinal = context->device()->tensorflow_accelerator_device_info()->gpu_id;
  return {ordinal, stream->platform_specific_handle().stream};
}

std::vector<tf::DataType> TypesReducedOnGpu() {
  std::vector<tf::DataType> types;
  for (const auto type :
       {tf::DT_HALF, tf::DT_BFLOAT16, tf::DT_FLOAT, tf::DT_DOUBLE, tf::DT_INT8, tf::DT_INT16, tf::DT_INT32,
        tf::DT_INT64, tf::DT_UINT8, tf::DT_UINT16, tf::DT_UINT32, tf::DT_UINT64, tf::DT_BOOL,
        tf::DT_COMPLEX64, tf::DT_COMPLEX128}) {  // kTypeAttr
    if (NcclReduces(ReduceOp::kSum, ToDataType(type))) types.push_back(type);
  }
  return types;
}

}  // namespace tfddl
