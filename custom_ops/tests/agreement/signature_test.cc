// The error of ranks that disagree names the fields that differ, and the ranks of each value.
#include "base/signature.h"

#include "tests/check.h"

namespace tfddl {
namespace {

using Texts = std::vector<std::string>;

Signature Allreduce(const char* op = "Sum", const char* prescale = "1.0") {
  Signature signature(Kind::kAllreduce);
  signature.Add(kOpField, op).Add(kPrescaleField, prescale).Add(kPostscaleField, "1.0");
  return signature;
}

std::string Tensor(DataType dtype, const std::vector<int64_t>& shape) {
  return Allreduce().AddTensor(dtype, shape).text();
}

std::string OnGpu(std::string signature) {
  PrependDevice(Device::kGpu, &signature);
  return signature;
}

std::string Between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t begin = text.find(before) + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

std::string Error(const Texts& signatures) { return DescribeMismatch("x", signatures); }
std::string Advice(const Texts& signatures) {
  return Between(Error(signatures), "Call it with the same ", " on every rank");
}
std::string Sides(const Texts& signatures) {
  return Between(Error(signatures), "arguments: ", ". Call it with");
}

const std::string kCall = Tensor(DataType::kFloat32, {2});

void TestText() {
  CHECK(OnGpu(Tensor(DataType::kBool, {3, -1})) ==
        "device=on a GPU|collective=allreduce|op=Sum|prescale_factor=1.0|postscale_factor=1.0|tensor=bool "
        "[3, ?]");
  CHECK(Signature(Kind::kBarrier).AddFields("").AddFields("group=a|slices=b").text() ==
        "collective=barrier|group=a|slices=b");
}

void TestOneArgument() {
  CHECK(Advice({kCall, OnGpu(kCall)}) == "device");
  CHECK(Advice({kCall, Allreduce("Min").AddTensor(DataType::kFloat32, {2}).text()}) == "op");
  CHECK(Advice({kCall, Allreduce("Sum", "0.5").AddTensor(DataType::kFloat32, {2}).text()}) ==
        "prescale_factor");
  CHECK(Advice({kCall, Tensor(DataType::kFloat32, {3})}) == "shape");
  CHECK(Advice({kCall, Tensor(DataType::kInt64, {2})}) == "dtype");
  CHECK(Advice({kCall, Tensor(DataType::kInt64, {3})}) == "dtype and shape");
  const auto root = [](const char* rank) { return Signature(Kind::kBroadcast).Add(kRootField, rank).text(); };
  CHECK(Advice({root("0"), root("1")}) == "root_rank");
  CHECK(Sides({root("0"), root("1")}) == "rank 0: root_rank=0; rank 1: root_rank=1");
  const auto splits = [](const char* dtype) {
    return Signature(Kind::kAlltoall).Add(kSplitsField, dtype).text();
  };
  CHECK(Advice({splits("None"), splits("int32")}) == "dtype of splits");  // the splits may differ
}

// The name of a field may come again after another one; a value may have any character but '|'.
void TestRepeatedNames() {
  const auto fields = [](const char* text) { return Signature(Kind::kBarrier).AddFields(text).text(); };
  CHECK(Sides({fields("a=1|b=2|a=3"), fields("a=5|b=2|a=3")}) == "rank 0: a=1; rank 1: a=5");
  CHECK(Sides({fields("a=1|b=2|a=3"), fields("a=1|b=2|a=4")}) == "rank 0: a=3; rank 1: a=4");
  CHECK(Sides({fields("a=x=1; y"), fields("a=x=2; y")}) == "rank 0: a=x=1; y; rank 1: a=x=2; y");
}

void TestGroups() {
  const std::string two =
      Allreduce().AddTensor(DataType::kFloat32, {2}).AddTensor(DataType::kInt8, {5}).text();
  CHECK(Advice({kCall, two}) == "number of tensors");
  CHECK(Sides({kCall, two}) == "rank 0: no such tensor; rank 1: int8 [5]");
  const std::string mixed = Signature(Kind::kAllgather)
                                .AddFields("group=bool [1], float32 [0] of 2")
                                .AddTensor(DataType::kBool, {-1})
                                .text();
  const std::string one = Signature(Kind::kAllgather).AddTensor(DataType::kBool, {-1}).text();
  CHECK(Advice({one, mixed}) == "kinds of tensors in the group");
  CHECK(Sides({one, mixed}) == "rank 0: all of one dtype; rank 1: bool [1], float32 [0] of 2");
}

// The fields of different collectives are not compared.
void TestOtherCollective() {
  const std::string other =
      Signature(Kind::kBroadcast).Add(kRootField, "0").AddTensor(DataType::kInt8, {1}).text();
  CHECK(Advice({kCall, OnGpu(other)}) == "collective");
  CHECK(Sides({kCall, other}) == "rank 0: allreduce; rank 1: broadcast");
}

void TestRanks() {
  const std::string other = Tensor(DataType::kFloat32, {4});
  CHECK(Sides({kCall, other, kCall}) == "ranks 0, 2: float32 [2]; rank 1: float32 [4]");
  CHECK(Sides({"", other, kCall}) == "rank 1: float32 [4]; rank 2: float32 [2]");  // rank 0 has joined
  CHECK(DescribeMismatch("x", {kCall, other}, {3, 5}).find("rank 3: float32 [2]; rank 5: ") !=
        std::string::npos);
}

void TestManyFields() {
  Signature many = Allreduce("Min", "2.0"), few = Allreduce();
  for (int64_t i = 0; i < 5; ++i) many.AddTensor(DataType::kInt8, {i});
  CHECK(Sides({many.text(), few.text()}) ==
        "rank 0: op=Min, prescale_factor=2.0, int8 [0], ...; rank 1: op=Sum, prescale_factor=1.0, no such "
        "tensor, "
        "...");
}

void TestGradientsOfAModel() {
  const auto bucket = [](const char* gradients, int64_t length) {
    return Allreduce().Add("gradients", gradients).AddTensor(DataType::kFloat32, {length}).text();
  };
  for (const std::string& error :
       {Error({bucket("2", 3), bucket("2", 4)}), Error({bucket("2", 3), bucket("3", 3)})}) {
    CHECK(error.find("train the same model on all") != std::string::npos);
    CHECK(error.find("different names") == std::string::npos);
  }
  CHECK(Error({kCall, Tensor(DataType::kInt8, {})}).find("or give the calls different names") !=
        std::string::npos);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestText();
  tfddl::TestOneArgument();
  tfddl::TestRepeatedNames();
  tfddl::TestGroups();
  tfddl::TestOtherCollective();
  tfddl::TestRanks();
  tfddl::TestManyFields();
  tfddl::TestGradientsOfAModel();
  return 0;
}
