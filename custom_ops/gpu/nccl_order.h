// The order in which collectives of all process sets of a process are put on its GPU. NCCL needs it to be the
// same wherever two sets meet, and sets agree on what they run apart from each other.
//
// It is a total order of messages to overlapping groups (Skeen's): every member proposes a time later than
// all that it has seen, the collective gets the latest of them, and a process starts it when nothing that it
// knows of can come before: what has no time yet gets none before its proposal.
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
  // Behind all that were appended, before all that have a time: for a set that is alone on its GPUs.
  void Append(const void* collective);

  // This process's proposal. `tag` tells collectives of one set that have the same time apart; it and the
  // set's name are equal on all members.
  int64_t Propose(const void* collective, const std::string& set, int tag);
  void Settle(const void* collective, int64_t time);

  // Whether it may start. It is in the way of all others until it leaves.
  bool IsNext(const void* collective) const;
  void Leave(const void* collective);

 private:
  struct Place {
    std::tuple<int64_t, std::string, int64_t> key;  // time, set, tag
    bool settled;
  };

  mutable std::mutex mutex_;
  std::map<const void*, Place> places_;
  int64_t appended_ = 0;
  int64_t now_ = 0;
};

}  // namespace tfddl
