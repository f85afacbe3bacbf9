#include "core/engine/participant_tracker.h"

#include "base/ranks.h"

namespace tfddl {
namespace {

std::shared_ptr<const Participants> AllOf(const std::vector<int>& members) {
  const int size = static_cast<int>(members.size());
  return std::make_shared<Participants>(Participants{AllRanks(size), members, size});
}

}  // namespace

ParticipantTracker::ParticipantTracker(const std::vector<int>& members)
    : all_(AllOf(members)), latest_(all_) {}

std::shared_ptr<const Participants> ParticipantTracker::At(const Boundary& boundary) {
  if (boundary.active.size() == all_->ranks.size()) {
    latest_ = all_;
  } else if (latest_->ranks != boundary.active) {
    const bool over_active = boundary.average_over == AverageOver::kActive;
    const int divisor = over_active ? static_cast<int>(boundary.active.size()) : all_->divisor;
    latest_ =
        std::make_shared<Participants>(Participants{boundary.active, all_->members, divisor, ++generations_});
  }
  return latest_;
}

}  // namespace tfddl
