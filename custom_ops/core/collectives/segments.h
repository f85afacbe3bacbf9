// The segments of a reduction over several hosts, whose three steps overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/arithmetic/reduce.h"
#include "core/collectives/collective.h"
#include "core/topology/hosts.h"
#include "core/topology/participants.h"
#include "core/topology/two_steps.h"

namespace tfddl {

// The state that all segments of a reduction share.
struct HostLevels {
  HostLevels(Lane lane, ScratchPool* scratch, const Reduction& whole, const Hosts& hosts)
      : near(TransportAmong(lane.transport, hosts.local())),
        local{near.get(), lane.tag, lane.participants},
        pool(scratch),
        reduction(whole),
        steps(InTwoSteps(whole, hosts)) {
    std::vector<int> owners = hosts.across();
    if (!owners.empty()) far = TransportAmong(lane.transport, std::move(owners));
    across = {far.get(), lane.tag, lane.participants};
  }

  bool owns() const { return far != nullptr; }

  std::unique_ptr<Transport> near, far;
  Lane local;   // the ranks of this host
  Lane across;  // the owners of this rank's part, one on each host; unused if this rank owns none
  ScratchPool* pool;
  Reduction reduction;
  TwoSteps steps;
};

// The bytes of a segment that each owner reduces.
constexpr size_t kSegmentBytes = size_t{1} << 20;

// A Segment has the functions ReduceOnHost, ReduceAcross and SendOnHost, which run one after the other; each
// returns true once it is complete. At most one segment is in each step, and segments pass each step in
// order, so all segments can use the same tags. Messages inside a host and messages between hosts have
// different peers, so they cannot be confused.
template <typename Segment>
class Segments {
 public:
  // `begin` appends the segment with a number to a deque.
  Segments(size_t count, std::function<void(size_t, std::deque<Segment>*)> begin)
      : count_(count), begin_(std::move(begin)) {}

  // True once all segments are complete.
  bool Poll() {
    bool moved = true;
    while (moved) {
      const bool on_host = Step(0, &Segment::ReduceOnHost);
      const bool across = Step(1, &Segment::ReduceAcross);
      moved = Step(2, &Segment::SendOnHost) || across || on_host;
    }
    return ended_[2] == count_;
  }

 private:
  static constexpr size_t kInFlight = 4;

  bool Step(size_t step, bool (Segment::*run)()) {
    const size_t index = ended_[step];
    if (index == (step == 0 ? std::min(count_, ended_[2] + kInFlight) : ended_[step - 1])) return false;
    if (index == begun_) begin_(begun_++, &segments_);
    if (!(segments_[index - ended_[2]].*run)()) return false;
    ++ended_[step];
    if (step == 2) segments_.pop_front();
    return true;
  }

  size_t count_;
  std::function<void(size_t, std::deque<Segment>*)> begin_;
  size_t begun_ = 0;
  std::array<size_t, 3> ended_{};  // for each step, the number of segments that have completed it
  std::deque<Segment> segments_;   // in progress
};

}  // namespace tfddl
