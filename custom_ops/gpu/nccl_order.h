// The order of collectives of different process sets on one GPU. NCCL needs the same order on all processes
// that share two sets, but each set agrees on its own order separately.
//
// Skeen's algorithm for totally ordered multicast: each member proposes a time later than all times that it
// has seen; the time of the collective is the latest proposal (Settle). A process may start a collective once
// no other collective that it knows can get an earlier time: an unsettled one gets no time before its
// proposal.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace tfddl {

// From any thread.
class NcclOrder {
 public:
  // For a set that shares no GPU: after all appended collectives, before all collectives with a time.
  void Append(const void* collective);

  // Returns this process's proposal. Set and tag, equal on all members, break ties.
  int64_t Propose(const void* collective, const std::string& set, int tag);
  void Settle(const void* collective, int64_t time);

  // Whether a collective may start. It blocks all later ones until it leaves.
  bool IsNext(const void* collective) const;
  void Leave(const void* collective);

 private:
  struct Entry {
    std::tuple<int64_t, std::string, int64_t> key;  // time, set, tag
    bool settled;
  };

  mutable std::mutex mutex_;
  std::map<const void*, Entry> entries_;
  int64_t appended_ = 0;
  int64_t now_ = 0;
};

}  // namespace tfddl
