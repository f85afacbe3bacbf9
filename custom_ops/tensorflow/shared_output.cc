#include "tensorflow/shared_output.h"

#include <memory>
#include <utility>

#include "core/collective.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// Holds its block for as long as any tensor refers to it, also when the job has ended.
class ArenaBuffer : public tf::TensorBuffer {
 public:
  ArenaBuffer(std::shared_ptr<char> block, size_t bytes)
      : TensorBuffer(block.get()), block_(std::move(block)), bytes_(bytes) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tf::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocator_name("tfddl");
  }

 private:
  const std::shared_ptr<char> block_;
  const size_t bytes_;
};

// False when there is no output yet.
bool AllocateIn(Arena* arena, tf::OpKernelContext* context, int i, const tf::TensorShape& shape,
                tf::Tensor** out) {
  const tf::DataType dtype = context->expected_output_dtype(i);
  const size_t bytes =
      static_cast<size_t>(shape.num_elements()) * static_cast<size_t>(tf::DataTypeSize(dtype));
  if (!arena || bytes < kSharedBytes) return false;
  // Variables may keep results for ever: half of the room is left to what comes and goes.
  auto block = arena->Allocate(bytes, arena->bytes() / 2);
  if (!block) return false;
  auto* const buffer = new ArenaBuffer(std::move(block), bytes);
  context->set_output(i, tf::Tensor(dtype, shape, buffer));
  buffer->Unref();
  *out = context->mutable_output(i);
  return true;
}

}  // namespace

absl::Status AllocateOutput(tf::OpKernelContext* context, Arena* arena, int i, const tf::TensorShape& shape,
                            tf::Tensor** out) {
  if (AllocateIn(arena, context, i, shape, out)) return absl::OkStatus();
  return context->allocate_output(i, shape, out);
}

absl::Status AllocateOrForward(tf::OpKernelContext* context, Arena* arena, int i, tf::Tensor** out) {
  const tf::Tensor& x = context->input(i);
  const bool reached = arena && arena->Find(x.data()) != Arena::kNowhere;
  if (!reached && AllocateIn(arena, context, i, x.shape(), out)) return absl::OkStatus();
  if (context->forward_input_to_output_with_shape(i, i, x.shape(), out)) return absl::OkStatus();
  return AllocateOutput(context, arena, i, x.shape(), out);
}

}  // namespace tfddl
