// A thread per process that keeps ranks informed about each other outside of the votes: which requests wait
// for which ranks, which ranks leave, died or failed. It has a transport of its own and moves no tensors.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/engine.h"
#include "core/watchdog/liveness.h"
#include "core/watchdog/wait_state.h"
#include "transport/transport.h"

namespace tfddl {

struct WatchdogOptions {
  double warning_s =
      60;  // a request that waits longer is reported, with the ranks that have not submitted it
  double limit_s = 1800;  // a request that waits longer fails the job
  // The number of this job, equal on all ranks, and new to each of them. MPI may reuse the number of a freed
  // communicator and deliver late messages of the old one to the new one.
  int64_t generation = 0;
};

class Watchdog {
 public:
  // `engine` is the engine of all ranks of the job.
  Watchdog(std::unique_ptr<Transport> transport, std::shared_ptr<Engine> engine, WatchdogOptions options);
  ~Watchdog();  // Stop(), then cancels the receives

  // Starts to watch a process set; `engine` is null where this process is not a member.
  void Watch(int set, const std::vector<int>& ranks, std::shared_ptr<Engine> engine);
  // Ends it. The watchdog does not use the set's engine after the return.
  void Unwatch(int set);

  // Fails the job in all sets of this process.
  void Fail(const std::string& reason);

  // Fails it because ranks do not go on; before this, all ranks write their flight records.
  void FailStalled(const std::string& reason);

  // Asks the other ranks for their flight records, and waits until each has written its own or has ended,
  // `limit_s` seconds at most.
  void CollectRecords(const std::string& reason, double limit_s);

  // Ends the thread, so that MPI may be finalized. Later messages of peers are not read.
  void Stop();

  // After Stop(): returns the engines, by set, and does not use them any more.
  std::map<int, std::shared_ptr<Engine>> TakeEngines();

  // Tells all peers that this rank wants to leave, so that idle engines answer its vote. Asks all ranks for
  // their wait states after half of `limit_s` seconds, or earlier, for ShutdownReport().
  void AnnounceShutdown(double limit_s);

  // After a shutdown that all ranks agreed to: exchanges last messages with all peers. Returns false when
  // `limit_s` seconds were not enough: then a message may still be under way.
  bool Disconnect(double limit_s);

  // Why the shutdown takes so long; empty when not known yet.
  std::string ShutdownReport() const;

 private:
  enum class Type : int64_t { kFailure, kShutdown, kHello, kQuery, kAnswer, kGoodbye, kRecord, kRecorded };
  enum class Cause { kDifferent, kSlow, kLimit, kShutdown };
  struct Message {
    std::string bytes;
    Transport::Handle handle;
    int peer;
  };
  // The request that has waited longest.
  struct OldestRequest {
    int64_t submitted_us;
    int set;
    std::string key;
    bool operator==(const OldestRequest& other) const {
      return submitted_us == other.submitted_us && set == other.set && key == other.key;
    }
  };
  // Asks all ranks for their wait states.
  struct Query {
    Cause cause;
    OldestRequest request;
    int64_t number;
    int64_t begun_us;
    WaitStates answers;
  };
  struct Peer {
    std::optional<ProcessId> process;  // where this rank can see it
    int64_t gone_us = 0;               // when the process was first seen to have ended
    bool left = false;                 // announced a shutdown: its process may end
    bool lost = false;                 // MPI cannot reach it
    bool goodbye_sent = false;         // our last message to it
    bool goodbye_received = false;     // its last message
  };

  void Loop();
  void RunOnce();
  void NoticeSuspension();
  void Hear(int peer);
  void Lose(int peer, const std::string& why);
  bool FlushSent();
  void PostReceive(int peer);
  void Send(int peer, Type type, const std::string& text);
  void SendToAll(Type type, const std::string& text);
  void Receive(int peer, const std::string& bytes);
  void SendGoodbye(int peer);
  bool HasAllGoodbyes() const;
  void AskForRecords(const std::string& reason);
  void ExpectNoRecord(int peer);
  void NoticeEndedPeers();
  void FailIfPeerDied();
  void FailAll(const std::string& reason);
  void StallAll(const std::string& reason);
  std::optional<std::string> Failure() const;  // of any set
  bool Closed() const;                         // all sets

  // watchdog_stalls.cc
  WaitState MyWaitState() const;
  std::string Answer(const std::string& query) const;
  void ReceiveAnswer(int peer, const std::string& answer);
  void CheckProgress();
  std::optional<OldestRequest> Oldest(bool or_join) const;
  int64_t IdleMicros() const;
  int64_t MicrosSince(int64_t time_us) const;  // without suspensions
  void StartQuery(Cause cause, const OldestRequest& request);
  void FinishQuery();
  void ReportDifferent(const Query& query);
  void ReportStall(const Query& query);
  void ReportShutdown(const Query& query);
  std::string Me() const { return "rank " + std::to_string(transport_->rank()); }

  std::unique_ptr<Transport> transport_;
  const WatchdogOptions options_;
  const int64_t idle_limit_us_;    // without progress for so long, the ranks are compared
  std::vector<Message> incoming_;  // by rank
  std::deque<Message> outgoing_;
  std::vector<Peer> peers_;  // by rank
  std::optional<ProcessId> my_process_;
  int64_t peers_checked_us_ = 0;
  int64_t round_us_ = 0;  // of the last round
  struct Suspension {
    int64_t end_us;
    int64_t length_us;
  };
  std::deque<Suspension> suspensions_;  // the latest last
  std::optional<Query> query_;
  int64_t queries_ = 0;
  std::optional<OldestRequest> warned_;     // of the last report of a slow request
  std::optional<OldestRequest> different_;  // of the last report of ranks that wait for different collectives
  int64_t next_comparison_us_ = 0;
  bool failure_told_ = false;

  mutable std::mutex sets_mutex_;  // of the next two members; held for each round, and taken before mutex_
  std::map<int, std::shared_ptr<Engine>> engines_;  // by set, where this process is a member
  SetDirectory sets_;

  mutable std::mutex mutex_;  // everything below
  std::condition_variable wake_;
  bool announce_ = false;
  std::string records_for_;   // why to ask for flight records; empty: nobody has asked
  std::set<int> unrecorded_;  // other ranks whose flight record is still to come, if this rank asks for it
  std::condition_variable records_changed_;
  bool disconnecting_ = false;
  bool disconnected_ = false;
  std::condition_variable disconnected_changed_;
  int64_t leaving_us_ = 0;        // when AnnounceShutdown() was called
  int64_t query_leaving_us_ = 0;  // when to ask all ranks why the shutdown takes so long
  std::string shutdown_report_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tfddl
