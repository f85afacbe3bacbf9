// hvd.join(): this rank submits no more requests until all members have joined.
#include <utility>

#include "core/engine/engine.h"

namespace tfddl {

// Only when no request of this rank is undecided: the peers may wait for it.
void Engine::AnnounceJoin() {
  if (!join_ || agreement_.joined() || !pending_.empty() || !agreed_.empty()) return;
  agreement_.Join(join_->average_over);
  joined_.store(true, std::memory_order_relaxed);
}

bool Engine::CompletesSequence(const Request& request) const {
  for (const auto& [name, sequence] : agreed_) {
    if (name == request.name && !sequence.submitted.count(request.bucket)) return true;
  }
  const auto it = pending_.find(request.name);
  return it != pending_.end() && !it->second.submitted.count(request.bucket);
}

std::string Engine::JoinRefusal(const Request& request) const {
  if (request.kind == Kind::kJoin) {
    return "hvd.join() was called on " + Me() +
           " while an earlier call still waits for the other ranks. Call it once on every rank, when its "
           "data has ended.";
  }
  if (CompletesSequence(request)) return "";
  return "'" + request.name + "' was called on " + Me() +
         " after hvd.join(), which says that this rank takes no more part until all ranks have joined. Call "
         "it "
         "before hvd.join(), or after that has returned.";
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
    status = Status(Code::kUnknown, ClosedMessage(kJoinKey));
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
