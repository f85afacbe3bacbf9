// A collective, send or receive that waits for its stream.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/double/nccl/nccl_comm.h"

namespace fake {

enum class Kind { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv };

struct Operation {
  std::shared_ptr<Comm> comm;
  std::shared_ptr<Stream> stream;
  Kind kind;
  const void* in;
  void* out;
  size_t count;  // as in the call: elements of the smaller buffer
  int type;
  int op = 0;
  int root = 0;  // or the peer
  uint64_t factor = 0;
  const void* factor_pointer = nullptr;  // on the device

  bool point_to_point() const { return kind == Kind::kSend || kind == Kind::kRecv; }
};

// "ncclAllReduce of 4 float, sum"
std::string Describe(const Operation& operation);

// Runs on the stream's thread.
void RunCollective(const Operation& operation);
void RunPointToPoint(const std::vector<Operation>& operations);

// Enqueues the operation at the end of the thread's group, or of a group of its own.
int Submit(const Operation& operation);

// Marks the thread's group as failed: ncclGroupEnd returns the code and launches nothing.
void FailGroup(int code);

}  // namespace fake
