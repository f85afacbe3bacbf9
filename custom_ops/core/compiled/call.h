// One call of an op as a compiler knows it: everything but the memory. It travels as text inside a compiled
// program, so that the program may outlive the process that compiled it.
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

  // The fields of a Request (request.h); the factors as the op's attributes have them, the root a rank of the
  // job.
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

  // Of alltoall, for the signature: the dtype of the splits, or "None". The call itself has no splits,
  // because all ranks get equally many rows.
  std::string splits;

  std::vector<Shape> shapes;  // of the inputs

  // This rank's number in the process set and the set's size, when the shapes of the outputs were computed.
  int rank = 0;
  int size = 1;

  // What must be equal on all ranks, also where some of them compile and others do not. `inputs` are the
  // shapes of the tensors.
  std::string Signature(const std::vector<Shape>& inputs) const;

  // The shapes of the results on this rank, for the shapes of the inputs here.
  std::vector<Shape> OutputShapes() const;

  std::string Encode() const;                   // letters and digits only
  static Call Decode(const std::string& text);  // raises std::runtime_error
};

// The numbers of elements of a tensor and, where it has a first dimension, of one of its rows.
int64_t Elements(const Shape& shape);
int64_t RowElements(const Shape& shape);

}  // namespace tfddl
