// The watchdog's thread and its letters. What it makes of requests that wait is in watchdog_stalls.cc.
#include "core/watchdog/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/wire.h"

namespace tfddl {
namespace {

// Fixed, so that a receive can stand ready; small enough for MPI to deliver it although the sender dies next.
constexpr size_t kMessageBytes = 2048;
constexpr size_t kMaxText = kMessageBytes - 3 * sizeof(int64_t);
constexpr int kTag = 0;
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kPartingTick = std::chrono::milliseconds(1);
constexpr int64_t kDeliveryMicros = 1000000;
constexpr int64_t kLivesMicros = 500000;
// mpirun is quicker where it ends the job itself; a rank that left in good order has been heard by then.
constexpr int64_t kGoneMicros = 1000000;
// The comparison of ranks costs nothing while anything moves, so it comes well before the warning.
constexpr double kStillPart = 1.0 / 6.0;

}  // namespace

Watchdog::Watchdog(std::unique_ptr<Transport> transport, std::shared_ptr<Engine> engine,
                   WatchdogOptions options)
    : transport_(std::move(transport)),
      options_(options),
      still_us_(static_cast<int64_t>(options.warning_s * kStillPart * 1e6)),
      inboxes_(static_cast<size_t>(transport_->size())),
      peers_(inboxes_.size()),
      me_(ProcessId::Mine()) {
  engines_[0] = std::move(engine);
  for (int peer = 0; peer < transport_->size(); ++peer) Listen(peer);
  if (me_) SendToAll(Type::kHello, me_->Encode());
  thread_ = std::thread([this] { Loop(); });
}

Watchdog::~Watchdog() {
  Stop();
  for (size_t peer = 0; peer < inboxes_.size(); ++peer) {
    if (!peers_[peer].said_goodbye) transport_->Cancel(inboxes_[peer].handle);
  }
}

void Watchdog::Watch(int set, const std::vector<int>& ranks, std::shared_ptr<Engine> engine) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  sets_.Add(set, ranks);
  if (engine) engines_[set] = std::move(engine);
}

void Watchdog::Forget(int set) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  sets_.Remove(set);
  engines_.erase(set);
}

void Watchdog::Fail(const std::string& reason) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  FailAll(reason);
}

void Watchdog::FailAll(const std::string& reason) {
  for (const auto& [set, engine] : engines_) engine->Fail(reason);
}

std::optional<std::string> Watchdog::Failure() const {
  for (const auto& [set, engine] : engines_) {
    if (auto reason = engine->failure()) return reason;
  }
  return std::nullopt;
}

bool Watchdog::Closed() const {
  return std::all_of(engines_.begin(), engines_.end(), [](auto& entry) { return entry.second->closed(); });
}

void Watchdog::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (!thread_.joinable()) return;
  thread_.join();
  if (const auto reason = Failure(); reason && !failure_told_) SendToAll(Type::kFailure, *reason);
  const int64_t begun = NowMicros();
  while (!Delivered() && NowMicros() - begun < kDeliveryMicros) std::this_thread::yield();
  if (!outgoing_.empty()) new std::deque<Letter>(std::move(outgoing_));  // the transport may still read it
  outgoing_.clear();
}

void Watchdog::AnnounceShutdown(double limit_s) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    announce_ = true;
    leaving_us_ = NowMicros();
    ask_leaving_us_ = leaving_us_ + std::min(still_us_, static_cast<int64_t>(limit_s * 0.5e6));
  }
  wake_.notify_one();
}

bool Watchdog::Part(double limit_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  parting_ = true;
  wake_.notify_one();
  return parted_changed_.wait_for(lock, std::chrono::duration<double>(limit_s), [this] { return parted_; });
}

std::string Watchdog::ShutdownReport() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return shutdown_report_;
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
    const bool parting = parting_;
    bool parted = false;
    lock.unlock();
    try {
      if (announce) SendToAll(Type::kShutdown, "");
      for (int peer = 0; parting && peer < transport_->size(); ++peer) SayGoodbye(peer);
      Tick();
      parted = parting && HeardAllGoodbyes();
    } catch (const std::exception& error) {
      Fail(Me() + ": " + error.what());
      return;
    }
    lock.lock();
    parted_ = parted;
    if (parted) parted_changed_.notify_all();
    const bool asked = announce_ || (parting_ && !parting);
    if (!stop_ && !asked) wake_.wait_for(lock, parting && !parted ? kPartingTick : kTick);
  }
}

void Watchdog::Tick() {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  for (int peer = 0; peer < transport_->size(); ++peer) {
    Letter& inbox = inboxes_[static_cast<size_t>(peer)];
    const Peer& sender = peers_[static_cast<size_t>(peer)];
    while (peer != transport_->rank() && !sender.said_goodbye && transport_->Test(inbox.handle)) {
      Receive(peer, inbox.bytes);
      if (!sender.said_goodbye) Listen(peer);
    }
  }
  Delivered();
  if (const auto reason = Failure()) {
    FailAll(*reason);  // one set's failure is the job's
    if (!std::exchange(failure_told_, true)) SendToAll(Type::kFailure, *reason);
    return;
  }
  if (Closed()) return;
  LookForDead();
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

// MPI may give a new communicator the number of one that was freed. A letter that comes to it late would be
// counted among its messages, and displace one. So nobody frees before the last letter of each peer has come,
// and who goes on after a peer has left writes to it no more.
void Watchdog::SayGoodbye(int peer) {
  Peer& to = peers_[static_cast<size_t>(peer)];
  if (peer == transport_->rank() || to.told_goodbye) return;
  Send(peer, Type::kGoodbye, "");
  to.told_goodbye = true;
}

bool Watchdog::HeardAllGoodbyes() const {
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer != transport_->rank() && !peers_[static_cast<size_t>(peer)].said_goodbye) return false;
  }
  return true;
}

void Watchdog::Send(int peer, Type type, const std::string& text) {
  if (peers_[static_cast<size_t>(peer)].told_goodbye) return;
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
      FailAll(text);
      break;
    case Type::kShutdown:
      peers_[static_cast<size_t>(peer)].left = true;
      for (const auto& [set, engine] : engines_) {
        if (sets_.Includes(set, peer)) engine->NoticeShutdown();
      }
      break;
    case Type::kHello: {
      auto process = ProcessId::Decode(text);
      if (me_ && process.host == me_->host) peers_[static_cast<size_t>(peer)].process = std::move(process);
      break;
    }
    case Type::kQuestion:
      Send(peer, Type::kAnswer, Answer(text));
      break;
    case Type::kAnswer:
      Hear(peer, text);
      break;
    case Type::kGoodbye:
      peers_[static_cast<size_t>(peer)].said_goodbye = true;
      SayGoodbye(peer);
      break;
  }
}

// A process that has ended can neither answer nor leave. mpirun mostly ends the job then; not always.
void Watchdog::LookForDead() {
  const int64_t now = NowMicros();
  if (now - lives_checked_us_ < kLivesMicros) return;
  lives_checked_us_ = now;
  const bool may_leave = engines_.at(0)->closed();  // sets without the leavers go on
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.process || (peer.left && may_leave) || !peer.process->Gone()) continue;
    if (peer.gone_us == 0) peer.gone_us = now;
    if (now - peer.gone_us < kGoneMicros) continue;
    FailAll("rank " + std::to_string(rank) + " has died: its process " + std::to_string(peer.process->pid) +
            " ended without leaving the job.");
  }
}

}  // namespace tfddl
