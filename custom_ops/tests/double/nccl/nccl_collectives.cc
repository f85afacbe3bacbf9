// Runs a collective on the thread of its stream: the ranks compare their calls, then exchange the data in
// chunks through slots that all ranks can read.
#include <algorithm>
#include <cstring>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/device.h"
#include "tests/double/nccl/nccl_operation.h"
#include "tests/double/nccl/nccl_reduce.h"

namespace fake {
namespace {

constexpr const char* kKindNames[] = {"ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclAllGather",
                                      "ncclBroadcast", "ncclSend",   "ncclRecv"};

class Collective {
 public:
  explicit Collective(const Operation& operation)
      : operation_(operation),
        comm_(*operation.comm),
        label_("rank " + std::to_string(comm_.rank) + ": " + Describe(operation)),
        element_(SizeOfType(operation.type)),
        bytes_(operation.count * element_) {}

  void Run() {
    ++comm_.collectives;
    if (comm_.rank == Setting("fail_rank") && comm_.collectives == Setting("fail_at")) return Hang();
    // Checks again, because memory may have been freed during the collective.
    if (!Accessible() || !Agreed() || !MoveData()) return;
    Accessible();
  }

 private:
  const RankArea& Area(int rank) const { return comm_.segment->ranks[rank]; }
  char* Slot(int rank) const { return comm_.segment->ranks[rank].slot; }
  bool Meet() { return comm_.Meet(&RankArea::stream_step, Describe(operation_)); }
  char* Out(size_t offset) const { return static_cast<char*>(operation_.out) + offset; }

  void Hang() {
    comm_.Fail(static_cast<int>(Setting("fail_code")), "an error that the test asked for");
    while (!comm_.aborted()) SleepMicroseconds(50);
  }

  // The bytes that this rank reads and writes.
  size_t InBytes() const {
    if (operation_.kind == Kind::kBroadcast && comm_.rank != operation_.root) return 0;
    return operation_.kind == Kind::kReduceScatter ? bytes_ * comm_.size : bytes_;
  }
  size_t OutBytes() const {
    if (operation_.kind == Kind::kReduce && comm_.rank != operation_.root) return 0;
    return operation_.kind == Kind::kAllGather ? bytes_ * comm_.size : bytes_;
  }

  bool Accessible() {
    if (CheckAccess(comm_.device, operation_.in, InBytes(), label_ + " (in)") &&
        CheckAccess(comm_.device, operation_.out, OutBytes(), label_ + " (out)") && NoOverlap())
      return true;
    comm_.Fail(ncclUnhandledCudaError, label_);
    return false;
  }

  // In place means at the same offset; any other overlap is undefined.
  bool NoOverlap() {
    const char* in = static_cast<const char*>(operation_.in);
    const char* out = static_cast<const char*>(operation_.out);
    const bool apart = in + InBytes() <= out || out + OutBytes() <= in || !InBytes() || !OutBytes();
    const size_t mine = bytes_ * comm_.rank;
    const bool in_place = operation_.kind == Kind::kAllGather       ? in == out + mine
                          : operation_.kind == Kind::kReduceScatter ? out == in + mine
                                                                    : in == out;
    if (!apart && !in_place) Fault(label_ + ": in and out overlap, and not as in place");
    return apart || in_place;
  }

  bool Agreed() {
    uint64_t factor = operation_.factor;
    if (operation_.factor_pointer) {
      if (!CheckAccess(comm_.device, operation_.factor_pointer, element_, label_ + " (scalar)")) return false;
      std::memcpy(&factor, operation_.factor_pointer, element_);
    }
    const Announcement call{static_cast<int>(operation_.kind), operation_.type, operation_.op,
                            operation_.root, operation_.count};
    comm_.segment->ranks[comm_.rank].call = call;
    factor_ = factor;
    if (!Meet()) return false;
    for (int peer = 0; peer < comm_.size; ++peer) {
      const Announcement& theirs = Area(peer).call;
      if (!std::memcmp(&theirs, &call, sizeof call)) continue;
      Fault("collective " + std::to_string(comm_.collectives) + " of a communicator does not match: " +
            label_ + "; rank " + std::to_string(peer) + ": " + Describe(theirs));
      comm_.Fail(ncclInvalidUsage, "the ranks call different collectives");
      return false;
    }
    return true;
  }

  static std::string Describe(const Operation& operation) { return fake::Describe(operation); }
  static std::string Describe(const Announcement& call) {
    Operation operation{};
    operation.kind = static_cast<Kind>(call.kind);
    operation.type = call.type;
    operation.op = call.op;
    operation.root = call.root;
    operation.count = call.count;
    return fake::Describe(operation);
  }

  bool MoveData() {
    if (operation_.kind != Kind::kReduceScatter) return MoveBlock(0, comm_.rank);
    for (int target = 0; target < comm_.size; ++target)
      if (!MoveBlock(bytes_ * target, target)) return false;
    return true;
  }

  // One block of the input with `count` elements, for one rank or for all ranks.
  bool MoveBlock(size_t from, int target) {
    constexpr size_t kChunk = kSlotBytes / 8 * 8;
    for (size_t offset = 0; offset < bytes_; offset += kChunk) {
      const size_t bytes = std::min(kChunk, bytes_ - offset);
      if (InBytes()) {
        std::memcpy(Slot(comm_.rank), static_cast<const char*>(operation_.in) + from + offset, bytes);
        if (operation_.op == kPreMulSum) Scale(bytes);
      }
      if (!Meet()) return false;
      Receive(offset, bytes, target);
      if (!Meet()) return false;
    }
    return true;
  }

  void Scale(size_t bytes) {
    const char* slot = Slot(comm_.rank);
    Reduce(Slot(comm_.rank), &slot, 1, bytes / element_, operation_.type, kPreMulSum, factor_);
  }

  void Receive(size_t offset, size_t bytes, int target) {
    switch (operation_.kind) {
      case Kind::kBroadcast:
        std::memcpy(Out(offset), Slot(operation_.root), bytes);
        return;
      case Kind::kAllGather:
        for (int rank = 0; rank < comm_.size; ++rank)
          std::memcpy(Out(bytes_ * rank + offset), Slot(rank), bytes);
        return;
      case Kind::kReduce:
        target = operation_.root;
        break;
      default:
        break;
    }
    if (target != comm_.rank) return;
    const char* slots[kMaxRanks];
    for (int rank = 0; rank < comm_.size; ++rank) slots[rank] = Slot(rank);
    const int op = operation_.op == kPreMulSum ? ncclSum : operation_.op;
    Reduce(Out(offset), slots, comm_.size, bytes / element_, operation_.type, op, 0);
  }

  const Operation& operation_;
  Comm& comm_;
  const std::string label_;
  const size_t element_;
  const size_t bytes_;
  uint64_t factor_ = 0;
};

}  // namespace

std::string Describe(const Operation& operation) {
  std::string text = kKindNames[static_cast<int>(operation.kind)];
  text += " of " + std::to_string(operation.count) + " " + NameOfType(operation.type);
  if (operation.kind == Kind::kAllReduce || operation.kind == Kind::kReduce ||
      operation.kind == Kind::kReduceScatter)
    text += std::string(", ") + NameOfOp(operation.op);
  if (operation.kind == Kind::kReduce || operation.kind == Kind::kBroadcast)
    text += ", root " + std::to_string(operation.root);
  if (operation.point_to_point()) text += ", peer " + std::to_string(operation.root);
  return text;
}

void RunCollective(const Operation& operation) { Collective(operation).Run(); }

}  // namespace fake
