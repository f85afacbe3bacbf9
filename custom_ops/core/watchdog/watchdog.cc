// The watchdog's thread and its messages. watchdog_stalls.cc deals with requests that wait long.
#include "core/watchdog/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/wire.h"
#include "core/trace/flight_record.h"

namespace tfddl {
namespace {

// A fixed length lets receives be posted early. MPI delivers a message of this size even if its sender dies
// next.
constexpr size_t kMessageBytes = 2048;
constexpr size_t kMaxText = kMessageBytes - 3 * sizeof(int64_t);
constexpr int kTag = 0;
constexpr auto kRoundPause = std::chrono::milliseconds(50);
constexpr auto kLeavingPause = std::chrono::milliseconds(1);
constexpr int64_t kDeliveryMicros = 1000000;
constexpr int64_t kPeerCheckMicros = 500000;
constexpr int64_t kSuspendedMicros = 2000000;  // a round that comes later than this was not only slow
constexpr size_t kMaxSuspensions = 100;
// Longer than mpirun takes when it ends the job itself, and than the message of a rank that leaves.
constexpr int64_t kGoneMicros = 1000000;
// The ranks are compared after this part of the time until the warning. The comparison costs nothing while
// there is progress.
constexpr double kIdlePart = 1.0 / 6.0;

}  // namespace

Watchdog::Watchdog(std::unique_ptr<Transport> transport, std::shared_ptr<Engine> engine,
                   WatchdogOptions options)
    : transport_(std::move(transport)),
      options_(options),
      idle_limit_us_(static_cast<int64_t>(options.warning_s * kIdlePart * 1e6)),
      incoming_(static_cast<size_t>(transport_->size())),
      peers_(incoming_.size()),
      my_process_(ProcessId::Mine()) {
  engines_[0] = std::move(engine);
  for (int peer = 0; peer < transport_->size(); ++peer) {
    PostReceive(peer);
    if (peer != transport_->rank()) unrecorded_.insert(peer);
  }
  if (my_process_) SendToAll(Type::kHello, my_process_->Encode());
  thread_ = std::thread([this] { Loop(); });
}

Watchdog::~Watchdog() {
  Stop();
  for (size_t peer = 0; peer < incoming_.size(); ++peer) {
    if (!peers_[peer].goodbye_received) transport_->Cancel(incoming_[peer].handle);
  }
}

void Watchdog::Watch(int set, const std::vector<int>& ranks, std::shared_ptr<Engine> engine) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  sets_.Add(set, ranks);
  if (engine) engines_[set] = std::move(engine);
}

void Watchdog::Unwatch(int set) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  sets_.Remove(set);
  engines_.erase(set);
}

void Watchdog::Fail(const std::string& reason) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  FailAll(reason);
}

void Watchdog::FailStalled(const std::string& reason) {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  StallAll(reason);
}

void Watchdog::AskForRecords(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    records_for_ = reason;
  }
  wake_.notify_one();
}

void Watchdog::CollectRecords(const std::string& reason, double limit_s) {
  AskForRecords(reason);
  std::unique_lock<std::mutex> lock(mutex_);
  records_changed_.wait_for(lock, std::chrono::duration<double>(limit_s),
                            [this] { return unrecorded_.empty(); });
}

void Watchdog::ExpectNoRecord(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  unrecorded_.erase(peer);
  records_changed_.notify_all();
}

// The records show the requests that still wait.
void Watchdog::StallAll(const std::string& reason) {
  AskForRecords(reason);
  FailAll(reason + FlightRecord::OfProcess().WriteStall(reason));
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
  if (!records_for_.empty()) SendToAll(Type::kRecord, records_for_);
  if (const auto reason = Failure(); reason && !failure_told_) SendToAll(Type::kFailure, *reason);
  const int64_t begun = NowMicros();
  while (!FlushSent() && NowMicros() - begun < kDeliveryMicros) std::this_thread::yield();
  if (!outgoing_.empty()) new std::deque<Message>(std::move(outgoing_));  // the transport may still read them
  outgoing_.clear();
}

std::map<int, std::shared_ptr<Engine>> Watchdog::TakeEngines() {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  return std::exchange(engines_, {});
}

void Watchdog::AnnounceShutdown(double limit_s) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    announce_ = true;
    leaving_us_ = NowMicros();
    query_leaving_us_ = leaving_us_ + std::min(idle_limit_us_, static_cast<int64_t>(limit_s * 0.5e6));
  }
  wake_.notify_one();
}

bool Watchdog::Disconnect(double limit_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  disconnecting_ = true;
  wake_.notify_one();
  return disconnected_changed_.wait_for(lock, std::chrono::duration<double>(limit_s),
                                        [this] { return disconnected_; });
}

std::string Watchdog::ShutdownReport() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return shutdown_report_;
}

void Watchdog::PostReceive(int peer) {
  if (peer == transport_->rank()) return;
  Message& incoming = incoming_[static_cast<size_t>(peer)];
  incoming.bytes.assign(kMessageBytes, '\0');
  incoming.handle = transport_->Receive(peer, kTag, incoming.bytes.data(), kMessageBytes);
}

void Watchdog::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    const bool announce = std::exchange(announce_, false);
    const std::string records_for = std::exchange(records_for_, "");
    const bool disconnecting = disconnecting_;
    bool disconnected = false;
    lock.unlock();
    try {
      if (announce) SendToAll(Type::kShutdown, "");
      if (!records_for.empty()) SendToAll(Type::kRecord, records_for);
      for (int peer = 0; disconnecting && peer < transport_->size(); ++peer) SendGoodbye(peer);
      RunOnce();
      disconnected = disconnecting && HasAllGoodbyes();
    } catch (const std::exception& error) {
      Fail(Me() + ": " + error.what());
      return;
    }
    lock.lock();
    disconnected_ = disconnected;
    if (disconnected) disconnected_changed_.notify_all();
    const bool asked = announce_ || !records_for_.empty() || (disconnecting_ && !disconnecting);
    if (!stop_ && !asked) wake_.wait_for(lock, disconnecting && !disconnected ? kLeavingPause : kRoundPause);
  }
}

// A scheduler may suspend a whole job. Nobody has waited in that time.
void Watchdog::NoticeSuspension() {
  const int64_t now = NowMicros();
  if (round_us_ != 0 && now - round_us_ > kSuspendedMicros) {
    suspensions_.push_back({now, now - round_us_});
    if (suspensions_.size() > kMaxSuspensions) suspensions_.pop_front();
    query_.reset();  // its answers are old
  }
  round_us_ = now;
}

void Watchdog::RunOnce() {
  std::lock_guard<std::mutex> lock(sets_mutex_);
  NoticeSuspension();
  for (int peer = 0; peer < transport_->size(); ++peer) Hear(peer);
  FlushSent();
  NoticeEndedPeers();
  if (const auto reason = Failure()) {
    FailAll(*reason);  // a failure in one set fails the job
    if (std::exchange(failure_told_, true)) return;
    SendToAll(Type::kFailure, *reason);
    FlightRecord::OfProcess().WriteFailure(*reason);
    return;
  }
  if (Closed()) return;
  FailIfPeerDied();
  if (query_) {
    FinishQuery();
  } else {
    CheckProgress();
  }
}

void Watchdog::Hear(int peer) {
  Message& incoming = incoming_[static_cast<size_t>(peer)];
  const Peer& sender = peers_[static_cast<size_t>(peer)];
  try {
    while (peer != transport_->rank() && !sender.goodbye_received && !sender.lost &&
           transport_->Test(incoming.handle)) {
      Receive(peer, incoming.bytes);
      if (!sender.goodbye_received) PostReceive(peer);
    }
  } catch (const std::exception& error) {
    Lose(peer, error.what());
  }
}

// An MPI with fault tolerance (ULFM) reports a dead peer so. The other peers still have to learn of it.
void Watchdog::Lose(int peer, const std::string& why) {
  if (std::exchange(peers_[static_cast<size_t>(peer)].lost, true)) return;
  ExpectNoRecord(peer);
  FailAll("rank " + std::to_string(peer) +
          " has died, or its host cannot be reached. See its last lines. MPI says: " + why);
}

bool Watchdog::FlushSent() {
  while (!outgoing_.empty()) {
    try {
      if (!transport_->Test(outgoing_.front().handle)) return false;
    } catch (const std::exception& error) {
      Lose(outgoing_.front().peer, error.what());
    }
    outgoing_.pop_front();
  }
  return true;
}

// MPI may give a new communicator the number of a freed one. A late message of the old communicator would
// then displace a message of the new one. So a rank frees its communicator only after the last message
// (goodbye) of each peer, and sends nothing to a peer after its own goodbye.
void Watchdog::SendGoodbye(int peer) {
  Peer& to = peers_[static_cast<size_t>(peer)];
  if (peer == transport_->rank() || to.goodbye_sent) return;
  Send(peer, Type::kGoodbye, "");
  to.goodbye_sent = true;
}

bool Watchdog::HasAllGoodbyes() const {
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer != transport_->rank() && !peers_[static_cast<size_t>(peer)].goodbye_received) return false;
  }
  return true;
}

void Watchdog::Send(int peer, Type type, const std::string& text) {
  const Peer& to = peers_[static_cast<size_t>(peer)];
  if (to.goodbye_sent || to.lost) return;
  WireWriter writer;
  writer.Int(options_.generation);
  writer.Int(static_cast<int64_t>(type));
  writer.String(text.substr(0, kMaxText));
  std::string bytes = writer.bytes();
  bytes.resize(kMessageBytes);
  outgoing_.push_back({std::move(bytes), Transport::kNothing, peer});
  Message& out = outgoing_.back();
  try {
    out.handle = transport_->Send(peer, kTag, out.bytes.data(), kMessageBytes);
  } catch (const std::exception& error) {
    outgoing_.pop_back();
    Lose(peer, error.what());
  }
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
      failure_told_ = true;  // the sender has told all ranks
      FlightRecord::OfProcess().WriteFailure(text);
      FailAll(text);
      break;
    case Type::kRecord:
      FlightRecord::OfProcess().WriteStall(text);
      Send(peer, Type::kRecorded, "");
      break;
    case Type::kRecorded:
      ExpectNoRecord(peer);
      break;
    case Type::kShutdown:
      peers_[static_cast<size_t>(peer)].left = true;
      for (const auto& [set, engine] : engines_) {
        if (sets_.Includes(set, peer)) engine->NoticeShutdown();
      }
      break;
    case Type::kHello: {
      auto process = ProcessId::Decode(text);
      if (my_process_ && process.host == my_process_->host)
        peers_[static_cast<size_t>(peer)].process = std::move(process);
      break;
    }
    case Type::kQuery:
      Send(peer, Type::kAnswer, Answer(text));
      break;
    case Type::kAnswer:
      ReceiveAnswer(peer, text);
      break;
    case Type::kGoodbye:
      peers_[static_cast<size_t>(peer)].goodbye_received = true;
      SendGoodbye(peer);
      break;
  }
}

void Watchdog::NoticeEndedPeers() {
  const int64_t now = NowMicros();
  if (now - peers_checked_us_ < kPeerCheckMicros) return;
  peers_checked_us_ = now;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.process || peer.gone_us != 0 || !peer.process->Gone()) continue;
    peer.gone_us = now;
    ExpectNoRecord(static_cast<int>(rank));
  }
}

// A process that has ended without leaving fails the job. mpirun does not always end the job then.
void Watchdog::FailIfPeerDied() {
  const bool may_leave = engines_.at(0)->closed();  // sets without the leaving ranks go on
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.gone_us == 0 || (peer.left && may_leave) || NowMicros() - peer.gone_us < kGoneMicros) continue;
    FailAll("rank " + std::to_string(rank) + " has died: its process " + std::to_string(peer.process->pid) +
            " ended without leaving the job. See its last lines; dmesg tells if the memory ran out.");
  }
}

}  // namespace tfddl
