#include "tensorflow/shared_output.h"

#include <memory>
#include <utility>

#include "core/collectives/collective.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// Keeps its block for as long as a tensor refers to it, even after the end of the job.
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

// Sets output `i` to a tensor in `block`.
void SetOutput(std::shared_ptr<char> block, tf::OpKernelContext* context, int i, const tf::TensorShape& shape,
               size_t bytes, tf::Tensor** out) {
  auto* const buffer = new ArenaBuffer(std::move(block), bytes);
  context->set_output(i, tf::Tensor(context->expected_output_dtype(i), shape, buffer));
  buffer->Unref();
  *out = context->mutable_output(i);
}

// Null if there is no room, or if `bytes` is small.
std::shared_ptr<char> AllocateBlock(Arena* arena, size_t bytes) {
  if (!arena || bytes < kSharedBytes) return nullptr;
  // Leaves half of the arena free for scratch blocks, because variables may keep outputs for ever.
  return arena->Allocate(bytes, arena->bytes() / 2);
}

// False if output `i` was not allocated.
bool AllocateIn(Arena* arena, tf::OpKernelContext* context, int i, const tf::TensorShape& shape,
                tf::Tensor** out) {
  const tf::DataType dtype = context->expected_output_dtype(i);
  const size_t bytes =
      static_cast<size_t>(shape.num_elements()) * static_cast<size_t>(tf::DataTypeSize(dtype));
  auto block = AllocateBlock(arena, bytes);
  if (!block) return false;
  SetOutput(std::move(block), context, i, shape, bytes, out);
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

absl::Status AllocateGroup(tf::OpKernelContext* context, Arena* arena, std::vector<tf::Tensor*>* outs,
                           std::shared_ptr<char>* packed) {
  const int count = context->num_inputs();
  size_t total = 0, begin = 0;
  for (int i = 0; i < count; ++i) total += context->input(i).TotalBytes();
  *packed = AllocateBlock(arena, total);
  outs->resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const tf::TensorShape& shape = context->input(i).shape();
    const size_t bytes = context->input(i).TotalBytes();
    tf::Tensor** out = &(*outs)[static_cast<size_t>(i)];
    if (*packed && bytes > 0 && begin % Arena::kLine == 0) {
      SetOutput(std::shared_ptr<char>(*packed, packed->get() + begin), context, i, shape, bytes, out);
    } else {
      TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output({i}, i, shape, out));
    }
    begin += bytes;
  }
  return absl::OkStatus();
}

}  // namespace tfddl
