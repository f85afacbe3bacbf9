#include "core/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "core/wire.h"

namespace tfddl {
namespace {

constexpr size_t kMessageBytes = 2048;  // fixed, so that a receive can stand ready
constexpr size_t kMaxText = kMessageBytes - 3 * sizeof(int64_t);
constexpr int kTag = 0;
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr int64_t kAnswerTimeMicros = 1000000;
constexpr char kWaitsToo[] = "waits";

std::string Seconds(int64_t micros) { return std::to_string(micros / 1000000) + " s"; }

}  // namespace

Watchdog::Watchdog(std::unique_ptr<Transport> transport, Engine* engine, WatchdogOptions options)
    : transport_(std::move(transport)),
      engine_(engine),
      options_(options),
      inboxes_(static_cast<size_t>(transport_->size())) {
  for (int peer = 0; peer < transport_->size(); ++peer) Listen(peer);
  thread_ = std::thread([this] { Loop(); });
}

Watchdog::~Watchdog() {
  Stop();
  for (Letter& inbox : inboxes_) transport_->Cancel(inbox.handle);
}

void Watchdog::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (!thread_.joinable()) return;
  thread_.join();
  if (const auto reason = engine_->failure(); reason && !failure_told_) SendToAll(Type::kFailure, *reason);
  const int64_t begun = NowMicros();
  while (!Delivered() && NowMicros() - begun < kAnswerTimeMicros) std::this_thread::yield();
  if (!outgoing_.empty()) new std::deque<Letter>(std::move(outgoing_));  // the transport may still read it
  outgoing_.clear();
}

void Watchdog::AnnounceShutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    announce_ = true;
  }
  wake_.notify_one();
}

void Watchdog::Listen(int peer) {
  if (peer == transport_->rank()) return;
  Letter& inbox = inboxes_[static_cast<size_t>(peer)];
  inbox.bytes.assign(kMessageBytes, '\0');
  inbox.handle = transport_->Receive(peer, kTag, inbox.bytes.data(), kMessageBytes);
}

void Watchdog::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    const bool announce = std::exchange(announce_, false);
    lock.unlock();
    try {
      if (announce) SendToAll(Type::kShutdown, "");
      Tick();
    } catch (const std::exception& error) {
      engine_->Fail("rank " + std::to_string(transport_->rank()) + ": " + error.what());
      return;
    }
    lock.lock();
    if (!stop_ && !announce_) wake_.wait_for(lock, kTick);
  }
}

void Watchdog::Tick() {
  for (int peer = 0; peer < transport_->size(); ++peer) {
    Letter& inbox = inboxes_[static_cast<size_t>(peer)];
    while (peer != transport_->rank() && transport_->Test(inbox.handle)) {
      Receive(peer, inbox.bytes);
      Listen(peer);
    }
  }
  Delivered();
  if (const auto reason = engine_->failure(); reason && !failure_told_) {
    failure_told_ = true;
    SendToAll(Type::kFailure, *reason);
  }
  if (inquiry_) {
    ConcludeInquiry();
  } else {
    LookForStalls();
  }
}

bool Watchdog::Delivered() {
  while (!outgoing_.empty() && transport_->Test(outgoing_.front().handle)) outgoing_.pop_front();
  return outgoing_.empty();
}

void Watchdog::Send(int peer, Type type, const std::string& text) {
  WireWriter writer;
  writer.Int(options_.generation);
  writer.Int(static_cast<int64_t>(type));
  writer.String(text.substr(0, kMaxText));
  std::string bytes = writer.bytes();
  bytes.resize(kMessageBytes);
  outgoing_.push_back({std::move(bytes), Transport::kNothing});
  Letter& out = outgoing_.back();
  out.handle = transport_->Send(peer, kTag, out.bytes.data(), kMessageBytes);
}

void Watchdog::SendToAll(Type type, const std::string& text) {
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer != transport_->rank()) Send(peer, type, text);
  }
}

void Watchdog::Receive(int peer, const std::string& bytes) {
  WireReader reader(bytes);
  if (reader.Int() != options_.generation) return;
  const auto type = static_cast<Type>(reader.Int());
  const std::string text = reader.String();
  switch (type) {
    case Type::kFailure:
      failure_told_ = true;  // whoever failed first has told everybody
      engine_->Fail(text);
      break;
    case Type::kShutdown:
      engine_->NoticeShutdown();
      break;
    case Type::kQuestion:
      Send(peer, Type::kAnswer, Answer(text));
      break;
    case Type::kAnswer:
      if (inquiry_) inquiry_->answers[static_cast<size_t>(peer)] = text;
      break;
  }
}

std::string Watchdog::Answer(const std::string& key) const {
  if (engine_->IsLive(key)) return kWaitsToo;
  const auto events = engine_->recorder().Events();
  if (events.empty()) return "it is alive and has not called any collective yet";
  const Event& last = events.back();
  return "it is alive; its last collective was '" + last.name + "' (" + last.what + "), " +
         Seconds(NowMicros() - last.time_us) + " ago";
}

void Watchdog::LookForStalls() {
  const auto oldest = engine_->Oldest();
  if (!oldest || engine_->failure()) return;
  const double waited_s = static_cast<double>(NowMicros() - oldest->submitted_us) * 1e-6;
  const bool fatal = waited_s > options_.limit_s;
  const bool warned = warned_key_ == oldest->key && warned_submission_ == oldest->submitted_us;
  if (!fatal && (waited_s <= options_.warning_s || warned)) return;
  warned_key_ = oldest->key;
  warned_submission_ = oldest->submitted_us;
  inquiry_ = std::make_unique<Inquiry>(
      Inquiry{oldest->key, NowMicros(), fatal, std::vector<std::string>(inboxes_.size())});
  SendToAll(Type::kQuestion, oldest->key);
}

void Watchdog::ConcludeInquiry() {
  const auto me = static_cast<size_t>(transport_->rank());
  const auto& answers = inquiry_->answers;
  bool complete = true;
  for (size_t rank = 0; rank < answers.size(); ++rank) complete &= rank == me || !answers[rank].empty();
  if (!complete && NowMicros() - inquiry_->begun_us < kAnswerTimeMicros) return;
  const auto inquiry = std::move(inquiry_);
  if (!engine_->IsLive(inquiry->key)) return;  // it came through meanwhile

  std::string missing;
  bool lowest = true;  // of the ranks that wait: the one that speaks for all
  for (size_t rank = 0; rank < inquiry->answers.size(); ++rank) {
    const std::string& answer = inquiry->answers[rank];
    if (rank == me) continue;
    if (answer == kWaitsToo) {
      lowest &= me < rank;
      continue;
    }
    missing += "; rank " + std::to_string(rank) + " has not submitted it (" +
               (answer.empty() ? "no answer: dead, stopped or unreachable" : answer) + ")";
  }
  if (missing.empty()) missing = "; all ranks have submitted it, the transfer itself does not advance";
  const std::string report = "rank " + std::to_string(me) + " has waited " +
                             Seconds(NowMicros() - warned_submission_) + " for '" + inquiry->key + "'" +
                             missing;
  if (inquiry->fatal) {
    engine_->Fail("Stalled: " + report + ". The limit is TFDDL_STALL_LIMIT=" +
                  std::to_string(static_cast<int64_t>(options_.limit_s)) + " seconds.");
  } else if (lowest) {
    std::fprintf(stderr, "tfddl: %s. Ranks must run the same collectives; the job goes on waiting.\n",
                 report.c_str());
  }
}

}  // namespace tfddl
