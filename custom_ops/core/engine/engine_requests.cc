// The way of a request through the engine: admitted, agreed on, started, completed.
#include <algorithm>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <utility>

#include "base/signature.h"
#include "core/engine/engine.h"

namespace tfddl {
namespace {

constexpr int kFirstDataTag = 4;  // the lower ones are for the Voter
static_assert(kFirstDataTag >= Voter::kTags);
constexpr size_t kMaxEndedSteps = 1024;

using Post = std::function<void(std::function<void()>)>;

std::unique_ptr<Collective> MakeHostCollective(const Lane& lane, ScratchPool* scratch, const Request& request,
                                               Post post) {
  switch (request.kind) {
    case Kind::kAllreduce:
      return MakeAllreduce(lane, scratch, request);
    case Kind::kReducescatter:
      return MakeReducescatter(lane, scratch, request);
    case Kind::kBroadcast:
      return MakeBroadcast(lane, request);
    case Kind::kAllgather:
    case Kind::kAlltoall:
      return MakeRowExchange(lane, request, std::move(post));
    case Kind::kBarrier:
    case Kind::kJoin:  // never comes here
      break;
  }
  return MakeBarrier();
}

}  // namespace

std::string Engine::ShutDownMessage() const {
  return "tfddl has been shut down on this rank (" + std::to_string(global_rank(rank_)) +
         "); call hvd.init() on all ranks to start anew.";
}

std::string Engine::ClosedMessage(const std::string& key) const {
  const int departing = agreement_.departing();
  const std::string who = "rank " + std::to_string(global_rank(departing));
  if (!set_.empty()) {
    return who + " has left " + set_ +
           ": it removed the set, or shut down tfddl (its program ended, raised, or called hvd.shutdown()). "
           "Run the same collectives on all members.";
  }
  if (departing == rank()) return ShutDownMessage();
  const std::string note = live_.NoteOf(key);
  return who +
         " has shut down tfddl (its program ended, raised, or called hvd.shutdown()), so no collective can "
         "complete any more. Run the same collectives the same number of times on all ranks: move this call "
         "out of a block such as if hvd.rank() == 0, deal equal parts with hvd.data.shard, or call "
         "hvd.join() when a rank's data has ended." +
         (note.empty() ? "" : " This one was for " + note + ".");
}

// Returns why a request is refused; empty: it is admitted.
std::string Engine::Refusal(const Request& request, Code* code) const {
  *code = Code::kUnknown;
  if (auto reason = failure()) return *reason;
  const bool ended = std::find(ended_steps_.begin(), ended_steps_.end(), request.step) != ended_steps_.end();
  if (request.step != 0 && ended) {
    *code = Code::kCancelled;
    return "another collective of this step failed; see the error of that one";
  }
  if (agreement_.closed()) return ClosedMessage(request.key());
  *code = Code::kInvalidArgument;
  if (request.device != Device::kHost && !device_queue_) {
    return "internal error: '" + request.name + "' lies " + NameOf(request.device) +
           ", and this engine has no way to GPUs.";
  }
  if (join_) {
    std::string reason = JoinRefusal(request);
    if (!reason.empty()) return reason;
  }
  if (live_.Contains(request.key())) {
    return "'" + request.name +
           "' was submitted while an earlier call with the same name is still in flight on this rank. "
           "Give concurrent collectives different names (name=...). Under tf.vectorized_map and a tape's "
           "jacobian, many copies of one call run at once: call it outside, or jacobian(..., "
           "experimental_use_pfor=False).";
  }
  const auto it = pending_.find(request.name);
  if (it != pending_.end() && it->second.signature != request.signature) {
    return "internal error: the buckets of '" + request.name + "' do not belong together. Received: '" +
           request.signature + "' and '" + it->second.signature + "'.";
  }
  return "";
}

void Engine::Admit(Request request) {
  PrependDevice(request.device, &request.signature);
  Code code;
  const std::string refusal = Refusal(request, &code);
  if (!refusal.empty()) {
    const Status status(code, refusal);
    RecordEnd(request, status);
    Answer(std::move(request), status);
    return;
  }
  live_.Add(request.key());
  if (request.kind == Kind::kJoin) {
    join_ = std::move(request);
    return;
  }
  // The other buckets of an agreed sequence need no vote.
  for (auto it = agreed_.begin(); it != agreed_.end(); ++it) {
    Sequence& sequence = it->second;
    if (it->first != request.name || !sequence.submitted.insert(request.bucket).second) continue;
    if (sequence.step != request.step) {
      Fail(Me() + ": a step ended in the middle of '" + request.name +
           "', which the other ranks have begun, and the next step has submitted it again. See the error of "
           "that step on this rank.");
    }
    const uint64_t ticket = sequence.ticket + static_cast<uint64_t>(request.bucket);
    const auto participants = sequence.participants;
    if (static_cast<int>(sequence.submitted.size()) == sequence.buckets) agreed_.erase(it);
    Start(std::move(request), ticket, participants);
    return;
  }
  Sequence& sequence = pending_[request.name];
  if (sequence.submitted.empty()) {
    sequence.signature = request.signature;
    sequence.step = request.step;
    sequence.buckets = request.buckets;
    agreement_.Submit(request.name, request.signature, request.buckets);
  }
  sequence.submitted.insert(request.bucket);
  sequence.waiting.push_back(std::move(request));
}

void Engine::CancelRequest(const std::string& key) {
  if (!live_.Contains(key)) return;
  const bool running =
      std::any_of(running_.begin(), running_.end(), [&](const Running& r) { return r.request.key() == key; });
  if (running && agreed_.empty()) return;  // all members have submitted it: it completes by itself
  Fail(Me() + ": the step that '" + key +
       "' belongs to failed or was cancelled on this rank, while the other ranks count on it. See the error "
       "raised on " +
       Me() + " for the cause.");
}

void Engine::Apply(const Boundary& boundary) {
  ++recorder_.counters.votes;
  if (boundary.decisions.empty()) ++recorder_.counters.empty_votes;
  timeline_->MarkVote(set_, boundary.decisions.size());
  std::map<std::string, std::set<int64_t>> ended;  // name of the failed request -> steps
  const auto participants = participants_.At(boundary);
  for (const Decision& decision : boundary.decisions) {
    auto node = pending_.extract(decision.name);
    if (node.empty()) continue;  // this rank has joined
    Sequence& sequence = node.mapped();
    sequence.ticket = decision.ticket;
    sequence.participants = participants;
    const Request& first = sequence.waiting.front();
    std::string error = decision.error.empty() ? Objection(first, *participants) : decision.error;
    if (error.empty() && first.device != Device::kHost)
      error = device_plane_->Objection(first, *participants);
    if (error.empty()) {
      StartSequence(decision.name, std::move(sequence));
    } else {
      if (sequence.step != 0) ended[decision.name].insert(sequence.step);
      FailSequence(std::move(sequence), Code::kFailedPrecondition, error);
    }
  }
  for (const auto& [name, steps] : ended) EndSteps(steps, name);
  EndJoin(boundary);
  if (!boundary.closed) return;
  auto pending = std::exchange(pending_, {});
  for (auto& [name, sequence] : pending) {
    agreement_.Withdraw(name);
    FailSequence(std::move(sequence), Code::kUnknown, ClosedMessage(name));
  }
  if (!agreed_.empty()) {
    Fail("rank " + std::to_string(global_rank(boundary.departing)) + " shut down tfddl in the middle of '" +
         agreed_.front().first + "'. Run the same collectives the same number of times on all ranks.");
  }
}

void Engine::StartSequence(const std::string& name, Sequence sequence) {
  auto requests = std::exchange(sequence.waiting, {});
  const uint64_t ticket = sequence.ticket;
  const auto participants = sequence.participants;
  if (static_cast<int>(sequence.submitted.size()) < sequence.buckets) {
    agreed_.emplace_back(name, std::move(sequence));
  }
  for (Request& request : requests) {
    const auto bucket = static_cast<uint64_t>(request.bucket);
    Start(std::move(request), ticket + bucket, participants);
  }
}

void Engine::FailSequence(Sequence sequence, Code code, const std::string& message) {
  for (Request& request : sequence.waiting) Complete(std::move(request), Status(code, message));
}

// After an op has failed, TensorFlow waits for all other ops of the step that have started. The peers end the
// same step at the same boundary, so no peer waits for these ops any more.
void Engine::EndSteps(const std::set<int64_t>& steps, const std::string& name) {
  ended_steps_.insert(ended_steps_.end(), steps.begin(), steps.end());
  while (ended_steps_.size() > kMaxEndedSteps) ended_steps_.pop_front();
  const std::string not_run =
      "not run, because '" + name + "' of the same step failed; see the error of that one";
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (!steps.count(it->second.step)) {
      ++it;
      continue;
    }
    agreement_.Withdraw(it->first);
    FailSequence(std::move(it->second), Code::kCancelled, not_run);
    it = pending_.erase(it);
  }
  if (join_ && !agreement_.joined() && steps.count(join_->step)) {
    Complete(std::move(*join_), Status(Code::kCancelled, not_run));
    join_.reset();
  }
  for (const auto& [other, sequence] : agreed_) {
    if (steps.count(sequence.step)) {
      Fail(Me() + ": '" + name + "' failed in the middle of '" + other +
           "', which the other ranks have begun. See the error of '" + name + "'.");
    }
  }
}

// Has `launched` say that nobody waits any more, and end a poll: a compiled program does not wait for the
// GPU.
void Engine::NoteLaunch(Running* running) {
  Request& request = running->request;
  if (!request.launched) return;
  request.launched = [this, running,
                      launched = std::move(request.launched)](std::shared_ptr<DeviceEvent> end) {
    running->launched = true;
    launched(std::move(end));
    if (polled_ == running->request.number) polled_ = 0;
  };
}

// Also when this fails, the request is among the running ones, so that it will be answered.
void Engine::Start(Request request, uint64_t ticket,
                   const std::shared_ptr<const Participants>& participants) {
  recorder_.Started(request.number, ticket);
  running_.push_back({participants, nullptr, nullptr, std::move(request)});
  Running& running = running_.back();
  NoteLaunch(&running);
  try {
    const auto lanes = static_cast<uint64_t>((transport_->tags() - kFirstDataTag) / 2);
    if (!participants->complete()) running.transport = TransportAmong(transport_.get(), participants->ranks);
    const Lane lane{running.transport ? running.transport.get() : transport_.get(),
                    kFirstDataTag + 2 * static_cast<int>(ticket % lanes), participants.get()};
    if (running.request.span) running.request.span->Agreed(running.request, ticket);
    if (running.request.divisor) *running.request.divisor = participants->divisor;
    running.collective = MakeCollective(lane, running.request);
  } catch (const std::exception& error) {  // no memory, or the transport's
    Fail(Me() + " could not start '" + running.request.key() + "': " + error.what());
  }
}

std::unique_ptr<Collective> Engine::MakeCollective(const Lane& lane, const Request& request) {
  if (request.kind == Kind::kAllreduce || request.kind == Kind::kReducescatter) {
    recorder_.counters.bytes_reduced += static_cast<uint64_t>(request.bytes());
  }
  if (request.shares_gpu && device_queue_) device_queue_->ShareGpu();
  if (request.device == Device::kHost) {
    Post post = [this](auto function) { completion_.Post(std::move(function)); };
    return MakeHostCollective(lane, &scratch_, request, std::move(post));
  }
  return device_queue_->Start(lane, request, [this](auto function) { PostAllocation(std::move(function)); });
}

// Without memory, TensorFlow's allocator of a GPU waits up to ten seconds for tensors to be freed. The
// completion thread frees them, so that it must not be the one that waits.
void Engine::PostAllocation(std::function<void()> function) {
  if (!allocation_) allocation_ = std::make_unique<CompletionThread>();
  allocation_->Post(std::move(function));
}

bool Engine::PollRunning() {
  bool moved = false;
  for (auto it = running_.begin(); it != running_.end();) {
    if (!it->collective || !it->collective->Poll()) {
      ++it;
      continue;
    }
    const Status status = it->collective->status();
    it->collective.reset();
    Complete(std::move(it->request), status);
    it = running_.erase(it);
    moved = true;
  }
  return moved;
}

void Engine::Complete(Request request, Status status, CompletionThread* on) {
  RecordEnd(request, status);
  live_.Remove(request.key());  // before done(): the next step may submit this name at once
  Answer(std::move(request), std::move(status), on);
}

void Engine::RecordEnd(const Request& request, const Status& status) {
  recorder_.Ended(request.number, status.ok());
  if (!status.ok()) ++recorder_.counters.errors;
  if (request.span) request.span->End(status);
}

void Engine::Answer(Request request, Status status, CompletionThread* on) {
  if (polled_ != 0 && request.number == polled_) {
    polled_ = 0;
    // Its thread delivers a result. An error must not overtake the error that caused it, since TensorFlow
    // raises the first one.
    if (status.ok()) {
      polled_result_ = std::move(request);
      return;
    }
  }
  if (status.ok() && request.launched) return Deliver(&request, status);
  (on ? on : &completion_)
      ->Post([request = std::make_shared<Request>(std::move(request)), status = std::move(status)] {
        Deliver(request.get(), status);
      });
}

void Engine::Deliver(Request* request, const Status& status) {
  // Before done(): the ops behind it change a tensor in place only if nobody else holds the tensor.
  request->allocate = nullptr;
  request->keep_alive = nullptr;
  request->done(status);
}

// Transfers and allocations may still be under way, so the collectives stay until FreeFailed().
void Engine::FailEverything() {
  const Status status(Code::kUnknown, *failure());
  for (Running& running : running_) {
    Request request = running.request;  // shares keep_alive with the one that stays
    // An allocation that is under way uses the caller's context until its end.
    const bool allocates = allocation_ && request.device != Device::kHost && request.allocate;
    Complete(std::move(request), status, allocates ? allocation_.get() : nullptr);
  }
  failed_.splice(failed_.end(), running_);
  if (device_queue_) device_queue_->Abort();
  for (auto& [name, sequence] : std::exchange(pending_, {})) {
    for (Request& request : sequence.waiting) Complete(std::move(request), status);
  }
  if (join_) Complete(std::move(*join_), status);
  join_.reset();
  agreed_.clear();
}

// The threads have ended, and peers have mapped shared memory themselves. Only MPI and a GPU may still touch
// memory of this engine: that part is leaked.
void Engine::FreeFailed() {
  const bool by_itself = transport_->moves_by_itself();
  std::list<Running> touched;
  for (auto it = failed_.begin(); it != failed_.end();) {
    const auto next = std::next(it);
    if (by_itself || it->request.device != Device::kHost) touched.splice(touched.end(), failed_, it);
    it = next;
  }
  {
    static std::mutex mutex;
    static auto* leaked = new std::list<Running>;
    const std::lock_guard<std::mutex> lock(mutex);
    leaked->splice(leaked->end(), touched);
  }
  failed_.clear();
  if (!by_itself) return;
  voter_.release();  // its receives are posted
  device_queue_.release();
}

}  // namespace tfddl
