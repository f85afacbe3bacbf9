// How a rank joins: it has no more requests until all members have joined.
#include <utility>

#include "core/engine/engine.h"

namespace tfddl {

// Only once nothing of this rank's is undecided: its peers may count on that.
void Engine::AnnounceJoin() {
  if (!join_ || agreement_.joined() || !pending_.empty() || !agreed_.empty()) return;
  agreement_.Join(join_->average_over);
  joined_.store(true, std::memory_order_relaxed);
}

bool Engine::CompletesSequence(const Request& request) const {
  for (const auto& [name, instance] : agreed_) {
    if (name == request.name && !instance.submitted.count(request.bucket)) return true;
  }
  const auto it = pending_.find(request.name);
  return it != pending_.end() && !it->second.submitted.count(request.bucket);
}

std::string Engine::JoinRefusal(const Request& request) const {
  if (request.kind == Kind::kJoin) {
    return "hvd.join() was called on " + Me() +
           " while an earlier call still waits for the other ranks. Call it once on every rank, when its "
           "data "
           "has ended.";
  }
  if (CompletesSequence(request)) return "";
  return "'" + request.name + "' was called on " + Me() +
         " after hvd.join(), which says that this rank takes no more part until all ranks have joined. Call "
         "it "
         "before hvd.join(), or after that has returned.";
}

std::shared_ptr<const Participants> Engine::ParticipantsAt(const Boundary& boundary) {
  const auto active = static_cast<int>(boundary.active.size());
  const int divisor = boundary.average_over == AverageOver::kActive ? active : size_;
  if (active == size_) {
    participants_ = everybody_;
  } else if (participants_->ranks != boundary.active) {
    participants_ =
        std::make_shared<Participants>(Participants{boundary.active, members_, divisor, ++episodes_});
  }
  return participants_;
}

void Engine::EndJoin(const Boundary& boundary) {
  if (!join_) return;
  Status status;
  if (joined() && !agreement_.joined()) {
    if (boundary.join_error.empty()) {
      *static_cast<int32_t*>(join_->buffers.at(0).out) = global_rank(boundary.last_joined);
    } else {
      status = Status(Code::kFailedPrecondition, boundary.join_error);
    }
  } else if (boundary.closed) {
    status = Status(Code::kUnknown, ClosedMessage());
  } else {
    return;
  }
  joined_.store(false, std::memory_order_relaxed);
  Request request = std::move(*join_);
  join_.reset();
  if (status.code() == Code::kFailedPrecondition && request.step != 0) EndSteps({request.step}, request.name);
  Complete(std::move(request), std::move(status));
}

}  // namespace tfddl
