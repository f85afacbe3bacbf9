// The signature of a request lists all that the ranks must agree on: fields "name=value", separated by '|',
// in words that a mismatch shows to people. Example: "collective=allreduce|op=Sum|tensor=float32 [3, 4]".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace tfddl {

// Names of fields. Python adds "group", "gradients" and "slices" (the attribute `context` of an op).
constexpr char kDeviceField[] = "device";
constexpr char kCollectiveField[] = "collective";
constexpr char kOpField[] = "op";
constexpr char kPrescaleField[] = "prescale_factor";
constexpr char kPostscaleField[] = "postscale_factor";
constexpr char kBucketsField[] = "buckets";
constexpr char kRootField[] = "root_rank";
constexpr char kSplitsField[] = "dtype of splits";
constexpr char kTensorField[] = "tensor";  // one for each tensor

// Builds a signature.
class Signature {
 public:
  explicit Signature(Kind kind) { Add(kCollectiveField, NameOf(kind)); }

  Signature& Add(std::string_view name, std::string_view value);
  // "tensor=float32 [3, 4]"; a negative dimension, which may differ by rank, is shown as "?".
  Signature& AddTensor(DataType dtype, const std::vector<int64_t>& shape);
  // Adds fields that are text already; may be empty.
  Signature& AddFields(std::string_view fields);

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Puts the device of the tensors first.
void PrependDevice(Device device, std::string* signature);

// The error that all ranks get when they submitted `name` with different signatures: the fields that differ,
// by rank ("ranks 0, 2: float32 [3, 4]; rank 1: float32 [4, 4]"), and how to make them equal. `signatures` is
// indexed by rank, and empty where a rank has joined. `members` has the ranks in the job; empty: the indices.
std::string DescribeMismatch(const std::string& name, const std::vector<std::string>& signatures,
                             const std::vector<int>& members = {});

// The error that the joined ranks get when they asked for different divisors of an average.
std::string DescribeDivisors(const std::vector<int>& over_size, const std::vector<int>& over_active);

}  // namespace tfddl
