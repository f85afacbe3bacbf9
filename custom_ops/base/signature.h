// A signature says what all ranks must agree on. It is a string of fields that people can read,
// because a mismatch is shown to them: "allreduce|Sum|float32 [3, 4]".
#pragma once

#include <string>
#include <vector>

#include "base/types.h"

namespace tfddl {

constexpr char kSignatureSeparator = '|';

// "float32 [3, 4]"
std::string DescribeTensor(DataType dtype, const std::vector<int64_t>& shape);

// Joins the fields of a signature.
std::string MakeSignature(const std::vector<std::string>& fields);

// The error that all ranks get when they submitted `name` with different signatures. `signatures` is indexed
// by rank, empty where one has joined, and `members` has the numbers to call them by (empty: their own); only
// the fields that differ are quoted: "rank 0: float32 [3, 4]; rank 1: float32 [4, 4]".
std::string DescribeMismatch(const std::string& name, const std::vector<std::string>& signatures,
                             const std::vector<int>& members = {});

// The error that the ranks get that have joined and asked for different divisors.
std::string DescribeDivisors(const std::vector<int>& over_size, const std::vector<int>& over_active);

}  // namespace tfddl
