// The engine's thread: commands, votes, waiting. engine_requests.cc has the way of a request.
#include "core/engine/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <exception>
#include <utility>

#include "base/ranks.h"

namespace tfddl {
namespace {

// An idle engine first polls a few rounds without a pause, which is faster than a yield. Then it yields after
// each round. Then it sleeps, twice as long each time. The first sleeps are short because a peer's message is
// usually a few microseconds away. The longest sleeps take less than a percent of a core.
constexpr int kBusyRounds = 20;
constexpr int kSpinRounds = 200;
constexpr int kFirstSleepMicros = 20;
constexpr int kLastSleepMicros = 1000;

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
      busy_poll_(options.busy_poll),
      device_queue_(device_plane_ ? device_plane_->Join(set_.empty() ? "all ranks" : set_) : nullptr),
      agreement_(rank_, size_, options.plan_capacity, members_),
      voter_(std::make_unique<Voter>(transport_.get(), &agreement_)),
      participants_(members_),
      moved_us_(NowMicros()) {
  if (device_queue_ && options.shares_gpu) device_queue_->ShareGpu();
  thread_ = std::thread([this] { Loop(); });
}

void Engine::Stop() {
  control_.Stop(ShutDownMessage());
  if (!thread_.joinable()) return;
  thread_.join();
  {
    std::lock_guard<std::mutex> lock(driving_);
    stopped_ = true;
  }
  if (allocation_) allocation_->Stop();
  completion_.Stop();
  if (failure()) FreeFailed();
  device_queue_.reset();
  transport_.reset();
}

void Engine::Submit(Request request) {
  request.number = recorder_.Submitted(request);
  ++recorder_.counters.requests;
  request.span = timeline_->Begin(request, set_);
  const bool polls = BeginPoll(&request);
  EngineCommand command(std::move(request));
  const bool pushed = control_.Push(std::move(command));
  if (polls) pushed ? PollUntilEnd() : EndPoll(true, Wake::kNo);
  if (pushed) return;
  auto& refused = std::get<Request>(command);
  const auto reason = failure();
  const Status status(Code::kUnknown, reason ? *reason : ClosedMessage(refused.key()));
  RecordEnd(refused, status);
  refused.done(status);
}

void Engine::Cancel(const std::string& key) { control_.Push(CancelCommand{key}); }

void Engine::NoticeShutdown() { control_.Push(ShutdownCommand{false}); }

bool Engine::Shutdown(double limit_s) {
  control_.Push(ShutdownCommand{true});
  return control_.WaitUntilClosed(limit_s);
}

int Engine::MemberOf(int global_rank) const {
  const auto it = std::lower_bound(members_.begin(), members_.end(), global_rank);
  return it != members_.end() && *it == global_rank ? static_cast<int>(it - members_.begin()) : -1;
}

std::string Engine::DescribeMembers() const {
  return set_.empty() ? "in [0, " + std::to_string(size_) + ")" : "a member of " + set_;
}

void Engine::Loop() {
  prctl(PR_SET_NAME, "tfddl-engine");
  prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds; the default would add 50 us to every sleep
  std::fesetenv(FE_DFL_ENV);       // reductions give the same bits on all ranks, whatever the program has set
  int idle_rounds = 0;
  for (;;) {
    Round round;
    {
      std::lock_guard<std::mutex> lock(driving_);
      round = RunRound();
    }
    idle_rounds = round.moved || round.idle() ? 0 : idle_rounds + 1;
    if (!round.moved) Wait(idle_rounds, round);
    if (control_.Ends(round.failed)) return;
  }
}

Engine::Round Engine::RunRound() {
  Round round{failure().has_value(), true, false, false};
  try {
    if (round.failed) FailEverything();
    round.moved = RunCommands() | (!round.failed && RunOnce());
    if (round.moved) moved_us_.store(NowMicros(), std::memory_order_relaxed);
    round.quiet = IsQuiet();
  } catch (const std::exception& error) {
    Fail(Me() + ": " + error.what());
  }
  round.on_gpu = std::any_of(running_.begin(), running_.end(),
                             [](const Running& r) { return r.request.device != Device::kHost; });
  return round;
}

// Returns whether anything made progress.
bool Engine::RunOnce() {
  const uint64_t before = transport_->completed();
  AnnounceJoin();
  bool moved = false;
  if (const auto boundary = voter_->Progress(&moved)) Apply(*boundary);
  moved |= PollRunning();
  // The caller of Shutdown() may go when all requests of all members have run, and the peers have been sent
  // the outcome of the last vote.
  if (agreement_.closed() && running_.empty() && voter_->all_sent() && !transport_->unsent())
    control_.Close();
  return moved || transport_->completed() != before;
}

// Whether nothing is to be done before a command or the end of launched work.
bool Engine::IsQuiet() const {
  if (agreement_.closed() && !control_.closed())
    return false;  // the last messages may have left after RunOnce() asked
  return pending_.empty() && AllLaunched() && !join_ && voter_->idle() && !transport_->unsent();
}

bool Engine::AllLaunched() const {
  return std::all_of(running_.begin(), running_.end(), [](const Running& r) { return r.launched; });
}

void Engine::Wait(int idle_rounds, const Round& round) {
  if (round.failed || round.idle()) return control_.Wait(round.failed, std::nullopt);
  const std::chrono::microseconds first(kFirstSleepMicros);
  // At first, whoever waits for launched work looks for its end itself (Help).
  if (round.quiet)
    return control_.Wait(false, busy_poll_.on() && idle_rounds == 1 ? BusyPoll::kLimit : first);
  if (idle_rounds <= kSpinRounds) {
    if (idle_rounds > kBusyRounds) std::this_thread::yield();
    return;
  }
  const int doublings = std::min((idle_rounds - kSpinRounds) / 8, 10);
  // No message tells of the end of work on a GPU.
  const int longest = round.on_gpu ? kFirstSleepMicros : kLastSleepMicros;
  control_.Wait(round.failed, std::chrono::microseconds(std::min(kFirstSleepMicros << doublings, longest)));
}

// Returns whether there were any.
bool Engine::RunCommands() {
  std::deque<EngineCommand> commands = control_.TakeCommands();
  for (EngineCommand& command : commands) {
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
