// The engine of one process set on one rank: takes requests from any thread, agrees with its peers on
// what runs, and runs it. No globals: tests run many engines as threads of one process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/recorder.h"
#include "base/request.h"
#include "core/agreement/agreement.h"
#include "core/agreement/exchange.h"
#include "core/agreement/vote.h"
#include "core/collectives/collective.h"
#include "core/collectives/device_plane.h"
#include "core/collectives/participants.h"
#include "core/engine/completion.h"
#include "core/engine/live_request.h"
#include "core/trace/timeline.h"
#include "transport/transport.h"

namespace tfddl {

struct EngineOptions {
  size_t plan_capacity = 4096;  // names; see Agreement::Evict
  // The ranks of the members in the job, which messages to people name. Empty: the members' own.
  std::vector<int> members = {};
  std::string set = {};                            // in words; empty: all ranks of the job
  std::shared_ptr<DevicePlane> device_plane = {};  // null: requests for GPUs are refused
  bool shares_gpu = false;                         // with other sets, from the start
  std::shared_ptr<Timeline> timeline = {};         // null: one of its own, which is off
};

class Engine {
 public:
  explicit Engine(std::unique_ptr<Transport> transport, EngineOptions options = {});
  ~Engine() { Stop(); }

  // Among the members, as everywhere but in messages to people.
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Where results should lie, so that peers reach them; null: there is no such memory.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  // The rank in the job of a member, and the member of a rank: -1 when it is none.
  int global_rank(int member) const { return members_[static_cast<size_t>(member)]; }
  int MemberOf(int global_rank) const;
  std::string DescribeMembers() const;  // "in [0, 4)", or "a member of process set 1 [0, 2]"

  // Never blocks. Errors come through request.done too; after Stop() on the calling thread.
  //
  // A request of Kind::kJoin says that this rank has no more of them until all members have joined; then it
  // is done. What was submitted before it is run first; what comes after it is refused.
  void Submit(Request request);

  // For Request::ready: what `stream` of GPU `ordinal` has been given so far. Null where there is no way to
  // GPUs, and the request is refused.
  std::shared_ptr<DeviceEvent> Record(int ordinal, void* stream) {
    return device_plane_ ? device_plane_->Record(ordinal, stream) : nullptr;
  }

  // See DevicePlane.
  Status Store(int ordinal, void* stream, int* where, int value) {
    if (device_plane_) return device_plane_->Store(ordinal, stream, where, value);
    return Status(Code::kInvalidArgument, "this engine has no way to GPUs");
  }

  // The step of `key` was cancelled by TensorFlow. Nothing happens when the request is done or an agreed
  // error has ended its step; otherwise the peers would wait for ever, so the job fails.
  void Cancel(const std::string& key);

  // Asks to leave: whatever is ready on all members still runs, everything else that waits, here and
  // on the peers, fails. Every peer must be told by NoticeShutdown() too (the watchdogs do), or one with
  // nothing to run would not answer. False when `limit_s` seconds were not enough.
  bool Shutdown(double limit_s);

  // A peer announced outside of the votes that it leaves: lets an idle engine answer its vote.
  void NoticeShutdown();

  // Ends the threads; the transport is gone after that. Without a Shutdown() that all members agreed to, what
  // still waits raises, and memory that transfers may touch is leaked. Whoever still holds the engine may use
  // and drop it on any thread; Stop() itself is for none of the engine's own. A second call does nothing.
  void Stop();

  // Ends the job's communication on this rank: all requests, present and future, raise `reason`.
  void Fail(const std::string& reason);
  std::optional<std::string> failure() const;

  // Whether all members have agreed to end.
  bool closed() const;

  // Says of this rank while it waits for `key`: what it has ended, so that it submits nothing else until
  // then. The watchdog shows it, and need not wait for long where other ranks want something else.
  void Note(const std::string& key, const std::string& note);

  // For the watchdog: the requests that wait, the longest first; the first of them, with or without a join,
  // and its time of submission; when anything last moved here.
  std::vector<LiveRequest> Waiting() const;
  std::optional<std::pair<std::string, int64_t>> Oldest(bool or_join) const;
  bool joined() const { return joined_.load(std::memory_order_relaxed); }
  int64_t moved_us() const { return moved_us_.load(std::memory_order_relaxed); }

  Recorder& recorder() { return recorder_; }

 private:
  struct Instance {  // the buckets of one sequence, or a single request
    std::string signature;
    int64_t step = 0;
    int buckets = 1;
    uint64_t ticket = 0;
    std::set<int> submitted;
    std::vector<Request> waiting;
    std::shared_ptr<const Participants> participants;
  };
  struct Running {
    std::shared_ptr<const Participants> participants;
    std::unique_ptr<Transport> part;         // where not all members attend
    std::unique_ptr<Collective> collective;  // null: it could not be started, so that the job has failed
    Request request;
  };
  struct CancelItem {
    std::string key;
  };
  struct ShutdownItem {
    bool mine;
  };
  using Item = std::variant<Request, CancelItem, ShutdownItem>;
  struct Outgoing {
    std::string bytes;
    Transport::Handle handle;
  };

  void Loop();
  bool Push(Item&& item);
  bool Turn();
  bool IsLive(const std::string& key) const;
  bool Idle() const;
  void Wait(int idle_turns, bool failed);
  bool DrainInbox();
  void Admit(Request request);
  std::string Refusal(const Request& request, Code* code) const;
  void Handle(const CancelItem& item);

  void PostVoteReceives();
  bool ProgressVote();
  void Conclude(const std::vector<std::string>& records);
  void Apply(const Boundary& boundary);
  void StartInstance(const std::string& name, Instance instance);
  void FailInstance(Instance instance, Code code, const std::string& message);
  void EndSteps(const std::set<int64_t>& steps, const std::string& name);

  void Start(Request request, uint64_t ticket, const std::shared_ptr<const Participants>& participants);
  std::unique_ptr<Collective> MakeCollective(const Lane& lane, const Request& request);
  std::unique_ptr<Collective> OnHost(const Lane& lane, const Request& request);
  bool PollRunning();
  void Complete(Request request, Status status);
  void Answer(Request request, Status status);
  void RecordEnd(const Request& request, const Status& status);
  void FailEverything();
  std::string ClosedMessage() const;
  std::string Me() const { return "rank " + std::to_string(global_rank(rank_)); }

  // engine_join.cc
  void AnnounceJoin();
  std::string JoinRefusal(const Request& request) const;
  bool CompletesSequence(const Request& request) const;
  std::shared_ptr<const Participants> ParticipantsAt(const Boundary& boundary);
  void EndJoin(const Boundary& boundary);

  std::unique_ptr<Transport> transport_;
  const int rank_;
  const int size_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> members_;  // by rank, their ranks in the job
  const std::string set_;
  Recorder recorder_;
  const std::shared_ptr<const Timeline> timeline_;
  ScratchPool scratch_;
  const std::shared_ptr<DevicePlane> device_plane_;
  std::unique_ptr<DeviceQueue> device_queue_;  // the engine thread's

  // Owned by the engine thread.
  Agreement agreement_;
  Vote vote_;
  std::vector<std::string> vote_buffers_;  // a slot per step
  std::vector<std::pair<size_t, Transport::Handle>> vote_receives_;
  std::list<Outgoing> outgoing_;
  std::optional<VoteRecord> outcome_;  // while its exchange runs
  std::optional<Exchange> exchange_;
  std::map<std::string, Instance> pending_;
  std::list<std::pair<std::string, Instance>> agreed_;  // with buckets still to be submitted here
  std::list<Running> running_;
  std::optional<Request> join_;  // waits
  const std::shared_ptr<const Participants> everybody_;
  std::shared_ptr<const Participants> participants_;  // at the last boundary
  int64_t episodes_ = 0;
  std::deque<int64_t> ended_steps_;  // the latest last

  std::atomic<int64_t> moved_us_;
  std::atomic<bool> joined_{false};

  mutable std::mutex mutex_;  // everything below
  std::condition_variable wake_;
  std::deque<Item> inbox_;
  std::unordered_map<std::string, int64_t> live_;  // key -> time of submission
  std::map<std::string, std::string> notes_;       // key -> note
  std::optional<std::string> failure_;
  bool closed_ = false;
  bool stop_ = false;
  bool stopped_ = false;  // nobody reads the inbox any more
  std::condition_variable closed_or_failed_;

  CompletionThread completion_;
  std::thread thread_;
};

}  // namespace tfddl
