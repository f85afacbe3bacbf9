// What the error of ranks that disagree advises: to make equal what differs, and no more.
#include "base/signature.h"

#include "tests/check.h"

namespace tfddl {
namespace {

using Fields = std::vector<std::string>;
const Fields kAllreduce = {"on the CPU", "allreduce", "Sum", "prescale 1, postscale 1", "float32 [2]"};

// What follows "the same" when rank 1's call has these fields, and rank 0's the first ones.
std::string Advice(const Fields& first, const Fields& second) {
  const std::string text = DescribeMismatch("x", {MakeSignature(first), MakeSignature(second)}, {});
  const std::string before = "Call it with the same ", after = " on every rank";
  const size_t begin = text.find(before) + before.size();
  return text.substr(begin, text.find(after) - begin);
}

std::string Changed(size_t field, const std::string& text) {
  Fields second = kAllreduce;
  second[field] = text;
  return Advice(kAllreduce, second);
}

void TestOneArgument() {
  CHECK(Changed(0, "on a GPU") == "device");
  CHECK(Changed(2, "Average") == "operation");
  CHECK(Changed(3, "prescale 0.5, postscale 1") == "prescale_factor and postscale_factor");
  CHECK(Changed(4, "float32 [3]") == "shape");
  CHECK(Changed(4, "int64 [2]") == "dtype");
  CHECK(Changed(4, "int64 [3]") == "dtype and shape");
  CHECK(Advice({"on the CPU", "broadcast", "root_rank 0", "bool []"},
               {"on the CPU", "broadcast", "root_rank 1", "bool []"}) == "root_rank");
  CHECK(Advice({"on the CPU", "alltoall", "splits int32", "bool [?]"},
               {"on the CPU", "alltoall", "without splits", "bool [?]"}) == "kind of splits");
}

void TestGroups() {
  Fields longer = kAllreduce;
  longer.push_back("float32 [5]");
  CHECK(Advice(kAllreduce, longer) == "number of tensors");
  longer.back() = "float32 [6]";
  longer[2] = "Min";
  CHECK(Advice(kAllreduce, longer) == "operation");
  const Fields members = {"on the CPU", "allgather", "members [0] of 2", "float32 [?]"};
  CHECK(Advice(members, {"on the CPU", "allgather", "members [1] of 2", "float32 [?]"}) ==
        "kinds of tensors in the group");
}

void TestOtherCollective() {
  CHECK(Advice(kAllreduce, {"on the CPU", "broadcast", "root_rank 0", "float32 [2]"}) == "operation");
}

void TestGradientsOfAModel() {
  const auto told = [](const std::string& name, const std::string& context) {
    const Fields first = {"on the CPU", "allreduce", context, "float32 [2]"},
                 second = {"on the CPU", "allreduce", context, "float32 [3]"};
    return DescribeMismatch(name, {MakeSignature(first), MakeSignature(second)}, {});
  };
  for (const char* name : {"step/DistributedOptimizer.0", "DistributedGradientTape/gradient.0"}) {
    CHECK(told(name, "Sum").find("train the same model on all") != std::string::npos);
    CHECK(told(name, "Sum").find("different names") == std::string::npos);
  }
  CHECK(told("x", "Sum").find("or give the calls different names") != std::string::npos);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestOneArgument();
  tfddl::TestGroups();
  tfddl::TestOtherCollective();
  tfddl::TestGradientsOfAModel();
  return 0;
}
