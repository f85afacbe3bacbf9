// What NCCL can do of what the engine is asked for: one table, for the engine, the documentation and the
// tests.
#pragma once

#include <string>

#include "base/request.h"
#include "core/collectives/participants.h"

namespace tfddl {

// Whether op=`op` of `dtype` runs on GPUs. What only moves bytes takes any dtype.
bool NcclReduces(ReduceOp op, DataType dtype);

// Whether ncclAvg does it, which divides by the number of those that attend.
bool NcclAverages(const Request& request, const Participants& participants);

// What all values are multiplied by before they are added up: both factors, and an Average's divisor where
// ncclAvg would not do. 1: nothing is multiplied.
double NcclFactor(const Request& request, const Participants& participants);

// Why `request` cannot run on GPUs, and what to do instead; equal for equal signatures. Empty when it can.
std::string NcclObjection(const Request& request, const Participants& participants);

// NCCL's number of a dtype in NcclReduces().
int NcclTypeOf(DataType dtype);

}  // namespace tfddl
