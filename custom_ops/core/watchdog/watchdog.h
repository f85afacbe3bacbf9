// A thread per process that keeps ranks informed about each other outside of the votes: who waits for
// whom, who leaves, who died, what failed. It has a transport of its own and never touches data.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/engine.h"
#include "core/watchdog/liveness.h"
#include "core/watchdog/wait_state.h"
#include "transport/transport.h"

namespace tfddl {

struct WatchdogOptions {
  double warning_s = 60;  // a request that waits longer is reported, with the ranks that miss it
  double limit_s = 1800;  // one that waits longer ends the job
  // Counts the jobs of this process, alike on all ranks. MPI may give a new communicator the number of
  // one that was freed, and deliver there what a peer sent late to the old one.
  int64_t generation = 0;
};

class Watchdog {
 public:
  // `engine` is that of all ranks of the job.
  Watchdog(std::unique_ptr<Transport> transport, std::shared_ptr<Engine> engine, WatchdogOptions options);
  ~Watchdog();  // Stop(), then takes back the receives

  // Also looks after a process set; `engine` is null where this process is not a member.
  void Watch(int set, const std::vector<int>& ranks, std::shared_ptr<Engine> engine);
  // No more. Whatever has been begun for the set is over when it returns.
  void Forget(int set);

  // Ends the communication of this process in all sets.
  void Fail(const std::string& reason);

  // Ends the thread, so that MPI may be finalized. What peers send afterwards is not read.
  void Stop();

  // Tells all peers that this rank wants to leave, so that idle engines answer its vote. Halfway to `limit_s`
  // seconds it finds out who does not.
  void AnnounceShutdown(double limit_s);

  // After a shutdown that all agreed to: tells all peers that no letter follows, and waits until they have
  // said so too. False when `limit_s` seconds were not enough: then a letter may still be under way.
  bool Part(double limit_s);

  // Why the shutdown takes so long, as far as it is known by now.
  std::string ShutdownReport() const;

 private:
  enum class Type : int64_t { kFailure, kShutdown, kHello, kQuestion, kAnswer, kGoodbye };
  enum class Cause { kDifferent, kSlow, kLimit, kShutdown };
  struct Letter {
    std::string bytes;
    Transport::Handle handle;
  };
  struct Waited {  // the request that has waited longest
    int64_t submitted_us;
    int set;
    std::string key;
    bool operator==(const Waited& other) const {
      return submitted_us == other.submitted_us && set == other.set && key == other.key;
    }
  };
  struct Inquiry {
    Cause cause;
    Waited waited;
    int64_t number;
    int64_t begun_us;
    WaitStates answers;
  };
  struct Peer {
    std::optional<ProcessId> process;  // where this rank can see it
    int64_t gone_us = 0;               // when it was first seen to have ended
    bool left = false;                 // in good order: it may end
    bool told_goodbye = false;         // to it: our last letter
    bool said_goodbye = false;         // its last letter
  };

  void Loop();
  void Tick();
  bool Delivered();
  void Listen(int peer);
  void Send(int peer, Type type, const std::string& text);
  void SendToAll(Type type, const std::string& text);
  void Receive(int peer, const std::string& bytes);
  void SayGoodbye(int peer);
  bool HeardAllGoodbyes() const;
  void LookForDead();
  void FailAll(const std::string& reason);
  std::optional<std::string> Failure() const;  // of any set
  bool Closed() const;                         // all sets

  // watchdog_stalls.cc
  WaitState Mine() const;
  std::string Answer(const std::string& question) const;
  void Hear(int peer, const std::string& answer);
  void LookForStalls();
  std::optional<Waited> Oldest(bool or_join) const;
  int64_t StillMicros() const;
  void Ask(Cause cause, const Waited& waited);
  void ConcludeInquiry();
  void ReportDifferent(const Inquiry& inquiry);
  void ReportStall(const Inquiry& inquiry);
  void ReportShutdown(const Inquiry& inquiry);
  std::string Me() const { return "rank " + std::to_string(transport_->rank()); }

  std::unique_ptr<Transport> transport_;
  const WatchdogOptions options_;
  const int64_t still_us_;       // how long nothing moves before the ranks are compared
  std::vector<Letter> inboxes_;  // by rank
  std::deque<Letter> outgoing_;
  std::vector<Peer> peers_;  // by rank
  std::optional<ProcessId> me_;
  int64_t lives_checked_us_ = 0;
  std::optional<Inquiry> inquiry_;
  int64_t inquiries_ = 0;
  std::optional<Waited> warned_;     // what was reported last
  std::optional<Waited> different_;  // what had waited longest when that ranks differ was told
  int64_t next_comparison_us_ = 0;
  bool failure_told_ = false;

  mutable std::mutex sets_mutex_;  // of the next two; held for each look around, and taken before mutex_
  std::map<int, std::shared_ptr<Engine>> engines_;  // by set, where this process is a member
  SetDirectory sets_;

  mutable std::mutex mutex_;  // everything below
  std::condition_variable wake_;
  bool announce_ = false;
  bool parting_ = false;
  bool parted_ = false;
  std::condition_variable parted_changed_;
  int64_t leaving_us_ = 0;      // when it was announced
  int64_t ask_leaving_us_ = 0;  // when to find out who keeps us
  std::string shutdown_report_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tfddl
