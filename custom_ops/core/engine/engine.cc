// The engine's thread: inbox, votes, waiting. What happens to requests is in engine_requests.cc, what an
// engine tells in engine_report.cc.
#include "core/engine/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <utility>

namespace tfddl {
namespace {

constexpr int kVoteTag = 0;
constexpr int kExchangeTag = 1;  // and 2

// Waiting: a few turns at once, which take less time than to yield; turns that yield; then sleeps that
// double. The first sleeps are short because a peer's message is usually a few microseconds away; the last
// ones cost under a percent of a core.
constexpr int kBusyTurns = 20;
constexpr int kSpinTurns = 200;
constexpr int kFirstSleepMicros = 20;
constexpr int kLastSleepMicros = 1000;

std::vector<int> Counted(int size) {
  std::vector<int> numbers(static_cast<size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, EngineOptions options)
    : transport_(std::move(transport)),
      rank_(transport_->rank()),
      size_(transport_->size()),
      arena_(transport_->arena()),
      members_(options.members.empty() ? Counted(size_) : std::move(options.members)),
      set_(std::move(options.set)),
      timeline_(options.timeline ? std::move(options.timeline) : std::make_shared<Timeline>()),
      device_plane_(std::move(options.device_plane)),
      device_queue_(device_plane_ ? device_plane_->Join(set_.empty() ? "all ranks" : set_) : nullptr),
      agreement_(rank_, size_, options.plan_capacity, members_),
      vote_(rank_, size_),
      everybody_(std::make_shared<Participants>(Participants{Counted(size_), members_, size_})),
      participants_(everybody_),
      moved_us_(NowMicros()) {
  if (device_queue_ && options.shares_gpu) device_queue_->ShareGpu();
  PostVoteReceives();
  thread_ = std::thread([this] { Loop(); });
}

void Engine::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_ && !failure_)
      failure_ = "tfddl has been shut down on this rank (" + std::to_string(global_rank(rank_)) + ").";
    stop_ = true;
  }
  wake_.notify_one();
  closed_or_failed_.notify_all();
  if (!thread_.joinable()) return;
  thread_.join();
  completion_.Stop();
  device_queue_.reset();
  transport_.reset();
}

// False, and `item` is untouched, when the engine has stopped.
bool Engine::Push(Item&& item) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return false;
    inbox_.push_back(std::move(item));
  }
  wake_.notify_one();
  return true;
}

void Engine::Submit(Request request) {
  recorder_.Record("submit", request.key());
  ++recorder_.counters.requests;
  request.span = timeline_->Begin(request, set_);
  Item item(std::move(request));
  if (Push(std::move(item))) return;
  auto& refused = std::get<Request>(item);
  const Status status(Code::kUnknown, failure().value_or(ClosedMessage()));
  RecordEnd(refused, status);
  refused.done(status);
}

void Engine::Cancel(const std::string& key) { Push(CancelItem{key}); }

void Engine::NoticeShutdown() { Push(ShutdownItem{false}); }

bool Engine::Shutdown(double limit_s) {
  Push(ShutdownItem{true});
  std::unique_lock<std::mutex> lock(mutex_);
  return closed_or_failed_.wait_for(lock, std::chrono::duration<double>(limit_s),
                                    [this] { return closed_ || failure_; });
}

void Engine::Fail(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;  // the first reason is the cause, later ones are its consequences
    failure_ = reason;
  }
  wake_.notify_one();
  closed_or_failed_.notify_all();
}

std::optional<std::string> Engine::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool Engine::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

bool Engine::IsLive(const std::string& key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return live_.count(key) != 0;
}

void Engine::Loop() {
  prctl(PR_SET_NAME, "tfddl-engine");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; the default would add 50 us to every sleep
  int idle_turns = 0;
  for (;;) {
    const bool failed = failure().has_value();
    try {
      if (failed) FailEverything();
      const bool moved = DrainInbox() | (!failed && Turn());
      idle_turns = moved ? 0 : idle_turns + 1;
      if (moved) moved_us_.store(NowMicros(), std::memory_order_relaxed);
    } catch (const std::exception& error) {
      Fail(Me() + ": " + error.what());
      continue;
    }
    if (idle_turns > 0) Wait(idle_turns, failed);
    std::lock_guard<std::mutex> lock(mutex_);
    if (stop_ && inbox_.empty() && (closed_ || failed)) {
      stopped_ = true;
      return;
    }
  }
}

bool Engine::Turn() {
  const uint64_t before = transport_->completed();
  AnnounceJoin();
  const bool voted = ProgressVote();
  const bool ran = PollRunning();
  // Only now may the caller of Shutdown() go: what all had submitted has run, and the messages that tell
  // the peers of the outcome have left.
  if (agreement_.closed() && running_.empty() && outgoing_.empty() && !transport_->unsent()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(closed_, true)) closed_or_failed_.notify_all();
  }
  return voted || ran || transport_->completed() != before;
}

// With the lock held.
bool Engine::Idle() const {
  if (agreement_.closed() && !closed_) return false;  // what is unsent may have left just after Turn() asked
  return pending_.empty() && running_.empty() && !join_ && !vote_.entered() && !exchange_ &&
         outgoing_.empty() && !agreement_.ShouldEnter(vote_) && !transport_->unsent();
}

// `failed` is what this turn has acted on: a failure that came since wakes.
void Engine::Wait(int idle_turns, bool failed) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto woken = [&] { return stop_ || !inbox_.empty() || failure_.has_value() != failed; };
  if (failed || Idle()) {
    wake_.wait(lock, woken);
  } else if (idle_turns <= kSpinTurns) {
    lock.unlock();
    if (idle_turns > kBusyTurns) std::this_thread::yield();
  } else {
    const int doublings = std::min((idle_turns - kSpinTurns) / 8, 10);
    // The end of work on a GPU sends no message: it is seen when it is asked for.
    const bool on_gpu = std::any_of(running_.begin(), running_.end(),
                                    [](const Running& r) { return r.request.device != Device::kHost; });
    const int micros =
        on_gpu ? kFirstSleepMicros : std::min(kFirstSleepMicros << doublings, kLastSleepMicros);
    wake_.wait_for(lock, std::chrono::microseconds(micros), woken);
  }
}

bool Engine::DrainInbox() {
  std::deque<Item> items;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    items.swap(inbox_);
  }
  for (Item& item : items) {
    if (auto* request = std::get_if<Request>(&item)) {
      const bool cancelled = request->cancelled && *request->cancelled;
      const CancelItem again{cancelled ? request->key() : ""};
      Admit(std::move(*request));
      if (cancelled) Handle(again);  // nothing was known of it when the word came
    } else if (auto* cancel = std::get_if<CancelItem>(&item)) {
      Handle(*cancel);
    } else if (std::get<ShutdownItem>(item).mine) {
      agreement_.RequestShutdown();
    } else {
      agreement_.NoticeShutdown();
    }
  }
  return !items.empty();
}

// The receives of the next vote stand ready from one boundary to the next: their first message is the
// notice that a peer has opened it. The length of a record follows from the plan at the boundary.
void Engine::PostVoteReceives() {
  const auto& steps = vote_.steps();
  vote_buffers_.assign(
      steps.size(),
      std::string(VoteRecord::EncodedSize(agreement_.plan_size(), static_cast<size_t>(size_)), '\0'));
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].receive) continue;
    std::string& buffer = vote_buffers_[i];
    vote_receives_.emplace_back(i,
                                transport_->Receive(steps[i].peer, kVoteTag, buffer.data(), buffer.size()));
  }
}

bool Engine::ProgressVote() {
  bool moved = false;
  for (auto it = vote_receives_.begin(); it != vote_receives_.end();) {
    if (transport_->Test(it->second)) {
      vote_.Receive(it->first, VoteRecord::Decode(vote_buffers_[it->first]));
      it = vote_receives_.erase(it);
    } else {
      ++it;
    }
  }
  if (!exchange_ && agreement_.ShouldEnter(vote_)) {
    vote_.Enter(agreement_.Enter(vote_));
    moved = true;
  }
  while (auto message = vote_.NextMessage()) {
    outgoing_.push_back({message->record.Encode(), Transport::kNothing});
    Outgoing& out = outgoing_.back();
    out.handle = transport_->Send(message->peer, kVoteTag, out.bytes.data(), out.bytes.size());
  }
  outgoing_.remove_if([this](Outgoing& out) { return transport_->Test(out.handle); });
  if (exchange_) {
    if (!exchange_->Poll()) return moved;
    Conclude(exchange_->records());
    return true;
  }
  if (!vote_.complete()) return moved;
  outcome_ = vote_.Take();
  if (agreement_.NeedsExchange(*outcome_)) {
    exchange_.emplace(transport_.get(), kExchangeTag, agreement_.ExchangeRecord(*outcome_));
  } else {
    Conclude({});
  }
  return true;
}

void Engine::Conclude(const std::vector<std::string>& records) {
  const Boundary boundary = agreement_.Conclude(*outcome_, records);
  outcome_.reset();
  exchange_.reset();
  ++recorder_.counters.votes;
  if (boundary.decisions.empty()) ++recorder_.counters.empty_votes;
  timeline_->MarkVote(set_, boundary.decisions.size());
  if (!boundary.closed) PostVoteReceives();
  Apply(boundary);
}

}  // namespace tfddl
