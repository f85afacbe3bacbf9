// The engine's thread: commands, votes, waiting. engine_requests.cc has the way of a request.
#include "core/engine/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <utility>

namespace tfddl {
namespace {

// An idle engine first polls a few rounds without a pause, which is faster than a yield. Then it yields after
// each round. Then it sleeps, twice as long each time. The first sleeps are short because a peer's message is
// usually a few microseconds away. The longest sleeps take less than a percent of a core.
constexpr int kBusyRounds = 20;
constexpr int kSpinRounds = 200;
constexpr int kFirstSleepMicros = 20;
constexpr int kLastSleepMicros = 1000;

// 0, 1, ..., size - 1
std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, EngineOptions options)
    : transport_(std::move(transport)),
      rank_(transport_->rank()),
      size_(transport_->size()),
      arena_(transport_->arena()),
      members_(options.members.empty() ? AllRanks(size_) : std::move(options.members)),
      set_(std::move(options.set)),
      timeline_(options.timeline ? std::move(options.timeline) : std::make_shared<Timeline>()),
      device_plane_(std::move(options.device_plane)),
      device_queue_(device_plane_ ? device_plane_->Join(set_.empty() ? "all ranks" : set_) : nullptr),
      agreement_(rank_, size_, options.plan_capacity, members_),
      voter_(transport_.get(), &agreement_),
      participants_(members_),
      moved_us_(NowMicros()) {
  if (device_queue_ && options.shares_gpu) device_queue_->ShareGpu();
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

// Returns false, and does not touch `command`, when the engine has stopped.
bool Engine::Push(Command&& command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return false;
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
  return true;
}

void Engine::Submit(Request request) {
  recorder_.Record("submit", request.key());
  ++recorder_.counters.requests;
  request.span = timeline_->Begin(request, set_);
  Command command(std::move(request));
  if (Push(std::move(command))) return;
  auto& refused = std::get<Request>(command);
  const Status status(Code::kUnknown, failure().value_or(ClosedMessage()));
  RecordEnd(refused, status);
  refused.done(status);
}

void Engine::Cancel(const std::string& key) { Push(CancelCommand{key}); }

void Engine::NoticeShutdown() { Push(ShutdownCommand{false}); }

bool Engine::Shutdown(double limit_s) {
  Push(ShutdownCommand{true});
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

int Engine::MemberOf(int global_rank) const {
  const auto it = std::lower_bound(members_.begin(), members_.end(), global_rank);
  return it != members_.end() && *it == global_rank ? static_cast<int>(it - members_.begin()) : -1;
}

std::string Engine::DescribeMembers() const {
  return set_.empty() ? "in [0, " + std::to_string(size_) + ")" : "a member of " + set_;
}

std::optional<std::string> Engine::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool Engine::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

void Engine::Loop() {
  prctl(PR_SET_NAME, "tfddl-engine");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; the default would add 50 us to every sleep
  int idle_rounds = 0;
  for (;;) {
    const bool failed = failure().has_value();
    try {
      if (failed) FailEverything();
      const bool moved = RunCommands() | (!failed && RunOnce());
      idle_rounds = moved ? 0 : idle_rounds + 1;
      if (moved) moved_us_.store(NowMicros(), std::memory_order_relaxed);
    } catch (const std::exception& error) {
      Fail(Me() + ": " + error.what());
      continue;
    }
    if (idle_rounds > 0) Wait(idle_rounds, failed);
    std::lock_guard<std::mutex> lock(mutex_);
    if (stop_ && commands_.empty() && (closed_ || failed)) {
      stopped_ = true;
      return;
    }
  }
}

// Returns whether anything made progress.
bool Engine::RunOnce() {
  const uint64_t before = transport_->completed();
  AnnounceJoin();
  bool moved = false;
  if (const auto boundary = voter_.Progress(&moved)) Apply(*boundary);
  moved |= PollRunning();
  // The caller of Shutdown() may go when all requests of all members have run, and the peers have been sent
  // the outcome of the last vote.
  if (agreement_.closed() && running_.empty() && voter_.all_sent() && !transport_->unsent()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(closed_, true)) closed_or_failed_.notify_all();
  }
  return moved || transport_->completed() != before;
}

// Call it with the lock held.
bool Engine::IsIdle() const {
  if (agreement_.closed() && !closed_) return false;  // the last messages may have left after RunOnce() asked
  return pending_.empty() && running_.empty() && !join_ && voter_.idle() && !transport_->unsent();
}

// `failed`: the last round knew of a failure. A later failure ends the wait.
void Engine::Wait(int idle_rounds, bool failed) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto woken = [&] { return stop_ || !commands_.empty() || failure_.has_value() != failed; };
  if (failed || IsIdle()) {
    wake_.wait(lock, woken);
  } else if (idle_rounds <= kSpinRounds) {
    lock.unlock();
    if (idle_rounds > kBusyRounds) std::this_thread::yield();
  } else {
    const int doublings = std::min((idle_rounds - kSpinRounds) / 8, 10);
    // No message tells of the end of work on a GPU.
    const bool on_gpu = std::any_of(running_.begin(), running_.end(),
                                    [](const Running& r) { return r.request.device != Device::kHost; });
    const int micros =
        on_gpu ? kFirstSleepMicros : std::min(kFirstSleepMicros << doublings, kLastSleepMicros);
    wake_.wait_for(lock, std::chrono::microseconds(micros), woken);
  }
}

// Returns whether there were any.
bool Engine::RunCommands() {
  std::deque<Command> commands;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (auto* request = std::get_if<Request>(&command)) {
      const bool cancelled = request->cancelled && *request->cancelled;
      const std::string key = request->key();
      Admit(std::move(*request));
      if (cancelled) CancelRequest(key);  // the cancel command may have come before the request
    } else if (auto* cancel = std::get_if<CancelCommand>(&command)) {
      CancelRequest(cancel->key);
    } else if (std::get<ShutdownCommand>(command).mine) {
      agreement_.RequestShutdown();
    } else {
      agreement_.NoticeShutdown();
    }
  }
  return !commands.empty();
}

}  // namespace tfddl
