#include <memory>
#include <string>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/kernel.h"

namespace tfddl {
namespace {

namespace tf = tensorflow;

// What Horovod's process_set_included_op answers where there is no set.
constexpr int32_t kNotInitialized = -1;
constexpr int32_t kUnknownSet = -3;

// Stateful, so that no graph keeps the number of the job in which it was optimised. `included` raises
// nothing.
REGISTER_OP("TfddlPlace")
    .Output("y: int32")
    .Attr("what: {'rank', 'size', 'local_rank', 'local_size', 'included'}")
    .Attr("process_set: int = 0")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class PlaceKernel : public tf::OpKernel {
 public:
  explicit PlaceKernel(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
    OP_REQUIRES_OK(context, context->GetAttr("process_set", &process_set_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const ProcessSets sets = CurrentSets();
    const auto it = sets.entries.find(process_set_);
    int32_t answer = 0;
    if (what_ == "included") {
      answer = sets.entries.empty()       ? kNotInitialized
               : it == sets.entries.end() ? kUnknownSet
                                          : !!it->second.engine;
    } else if (what_ == "size" && it != sets.entries.end()) {
      answer = static_cast<int32_t>(it->second.ranks.size());
    } else {
      std::shared_ptr<Engine> engine;
      const Status found = FindEngine(process_set_, &engine);
      OP_REQUIRES_OK(context, ToStatus(found, what_));
      const LocalPlace local = CurrentLocalPlace();
      answer = what_ == "rank" ? engine->rank() : what_ == "local_rank" ? local.rank : local.size;
    }
    tf::Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &y));
    y->scalar<int32_t>()() = answer;
  }

 private:
  std::string what_;
  int process_set_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfddlPlace").Device(tf::DEVICE_CPU), PlaceKernel);

}  // namespace
}  // namespace tfddl
