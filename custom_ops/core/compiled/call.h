// One call of an op as XLA's compiler knows it: all but the memory. It is encoded as text in the compiled
// program, so that another process may load the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace tfddl {

using Shape = std::vector<int64_t>;

struct Call {
  // Empty for a collective. Else the call returns a rank or a size: the query of QueryRank() in
  // core/process/rank_query.h.
  std::string rank_query;
  int process_set = 0;

  // The fields of a Request (request.h). The factors are the strings of the op's attributes; the root is a
  // rank of the job.
  std::string name;
  Kind kind = Kind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::string prescale = "1.0";
  std::string postscale = "1.0";
  std::string context;  // fields that are added to the signature (base/signature.h); may be empty
  int bucket = 0;
  int buckets = 1;
  int root = 0;

  // For the signature of an alltoall: the dtype of the splits, or "None". The call itself has no splits,
  // because all ranks get equally many rows.
  std::string splits;

  std::vector<Shape> shapes;  // of the inputs

  // The rank in the process set and the set's size, at the time when the shapes of the outputs were computed.
  int rank = 0;
  int size = 1;

  // The signature of the request (base/signature.h), equal for compiled and other calls. `inputs` has the
  // shapes of the tensors.
  std::string Signature(const std::vector<Shape>& inputs) const;

  // The shapes of the results on this rank.
  std::vector<Shape> OutputShapes() const;

  std::string Encode() const;                   // letters and digits only
  static Call Decode(const std::string& text);  // raises std::runtime_error
};

// The number of elements of a tensor, and of one row of a tensor with at least one dimension.
int64_t Elements(const Shape& shape);
int64_t RowElements(const Shape& shape);

}  // namespace tfddl
