// The participants of collectives from boundary to boundary, as members join and joins end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/agreement/agreement.h"
#include "core/topology/participants.h"

namespace tfddl {

class ParticipantTracker {
 public:
  // `members` has the members' ranks in the job.
  explicit ParticipantTracker(const std::vector<int>& members);

  // The participants of the collectives that this boundary starts; the same object while nobody joins.
  std::shared_ptr<const Participants> At(const Boundary& boundary);

 private:
  const std::shared_ptr<const Participants> all_;
  std::shared_ptr<const Participants> latest_;
  int64_t generations_ = 0;
};

}  // namespace tfddl
