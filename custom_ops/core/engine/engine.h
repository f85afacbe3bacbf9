// The engine of one process set on one rank: takes requests from any thread, agrees with its peers on the
// collectives to run, and runs them. No globals: tests run many engines as threads of one process.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/recorder.h"
#include "base/request.h"
#include "core/agreement/agreement.h"
#include "core/agreement/voter.h"
#include "core/collectives/collective.h"
#include "core/collectives/device_plane.h"
#include "core/engine/busy_poll.h"
#include "core/engine/completion.h"
#include "core/engine/engine_control.h"
#include "core/engine/live_requests.h"
#include "core/engine/participant_tracker.h"
#include "core/topology/participants.h"
#include "core/trace/timeline.h"
#include "transport/transport.h"

namespace tfddl {

struct EngineOptions {
  size_t plan_capacity = 4096;  // names; see Agreement::Evict
  // The ranks of the members in the job, for messages to people. Empty: the ranks in the set.
  std::vector<int> members = {};
  std::string set = {};                            // the name of the process set; empty: all ranks of the job
  std::shared_ptr<DevicePlane> device_plane = {};  // null: requests for GPUs are refused
  bool shares_gpu = false;                         // the GPUs run collectives of other sets too
  bool busy_poll = false;                          // each rank of this host has a core (engine_poll.cc)
  std::shared_ptr<Timeline> timeline = {};         // null: nothing is recorded
};

class Engine {
 public:
  explicit Engine(std::unique_ptr<Transport> transport, EngineOptions options = {});
  ~Engine() { Stop(); }

  // Among the members of the set. Only messages to people name ranks of the job.
  int rank() const { return rank_; }
  int size() const { return size_; }

  // The memory for results that peers can reach; null: there is none.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  // The rank in the job of a member, and the member with a rank in the job; -1: no member has it.
  int global_rank(int member) const { return members_[static_cast<size_t>(member)]; }
  int MemberOf(int global_rank) const;
  std::string DescribeMembers() const;  // "in [0, 4)", or "a member of process set 1 [0, 2]"

  // Does not wait for peers, except a busy poll for a bounded time (BusyPoll). Errors come through
  // request.done too; after Stop() on the calling thread.
  //
  // A request of Kind::kJoin says that this rank submits no more requests until all members have joined; then
  // the join is done. Requests from before the join run first. Later ones are refused.
  void Submit(Request request);

  // For Request::ready: the work that `stream` of GPU `ordinal` has been given so far. Null without a device
  // plane; then the request is refused.
  std::shared_ptr<DeviceEvent> Record(int ordinal, void* stream) {
    return device_plane_ ? device_plane_->Record(ordinal, stream) : nullptr;
  }

  // See DevicePlane.
  Status Store(int ordinal, void* stream, int* where, int value) {
    if (device_plane_) return device_plane_->Store(ordinal, stream, where, value);
    return Status(Code::kInvalidArgument, "internal error: this engine has no way to GPUs");
  }

  // TensorFlow cancelled the step of request `key`. If the request is not done, and no agreed error has ended
  // its step, the peers would wait forever: the job fails.
  void Cancel(const std::string& key);

  // Asks to leave. Requests that are ready on all members still run; all others, here and on the peers, fail.
  // Each peer also needs a NoticeShutdown() (the watchdogs send it): an idle peer would not answer the vote.
  // Returns false when not all members agreed within `limit_s` seconds.
  bool Shutdown(double limit_s);

  // A peer said, outside of the votes, that it leaves: an idle engine then answers that peer's vote.
  void NoticeShutdown();

  // Ends the threads and the transport. Without a completed Shutdown(), waiting requests fail, and memory
  // that MPI or a GPU may still touch is leaked. Not to be called on the engine's own threads. The engine may
  // be used and dropped afterwards on any thread. A second call does nothing.
  void Stop();

  // Fails the job on this rank: all requests, present and future, end with `reason`.
  void Fail(const std::string& reason) { control_.Fail(reason); }
  std::optional<std::string> failure() const { return control_.failure(); }

  // Whether all members have agreed to end.
  bool closed() const { return control_.closed(); }

  // For a caller that is about to wait until `ended`, as at the launch or at the end of a request on a GPU:
  // runs rounds for a short time, if busy polling is on, so that no other thread has to wake up.
  void Help(const std::function<bool()>& ended);

  // Adds a note to request `key` while it waits: the phase that this rank has finished (an epoch, a
  // training), so that it submits nothing else before. The watchdog shows the note, and reports sooner when
  // other ranks wait for something else.
  void Note(const std::string& key, const std::string& note) { live_.SetNote(key, note); }

  // For the watchdog, see LiveRequests.
  std::vector<LiveRequest> Waiting() const { return live_.List(joined()); }
  std::optional<std::pair<std::string, int64_t>> Oldest(bool or_join) const { return live_.Oldest(or_join); }
  bool joined() const { return joined_.load(std::memory_order_relaxed); }
  // When a message or a collective last made progress here.
  int64_t moved_us() const { return moved_us_.load(std::memory_order_relaxed); }

  Recorder& recorder() { return recorder_; }

 private:
  // The buckets of one gradient computation, or a single request, which is a sequence of one.
  struct Sequence {
    std::string signature;
    int64_t step = 0;
    int buckets = 1;
    uint64_t ticket = 0;
    std::set<int> submitted;       // buckets
    std::vector<Request> waiting;  // for the vote
    std::shared_ptr<const Participants> participants;
  };
  struct Running {
    std::shared_ptr<const Participants> participants;
    std::unique_ptr<Transport> transport;    // among the participants; null: all members participate
    std::unique_ptr<Collective> collective;  // null: it could not start, and the job has failed
    Request request;
    bool launched = false;  // on a GPU, and nobody waits on the host for its end
  };

  struct Round {
    bool failed;  // it began with a failure, and all requests have failed
    bool moved;   // anything made progress
    bool quiet;   // nothing is to be done before a command or the end of launched work
    bool on_gpu;  // work runs there

    // Only a command can give this engine something to do.
    bool idle() const { return quiet && !on_gpu; }
  };

  // engine.cc: the thread
  void Loop();
  Round RunRound();
  bool RunCommands();
  bool RunOnce();
  bool IsQuiet() const;
  bool AllLaunched() const;
  void Wait(int idle_rounds, const Round& round);

  // engine_poll.cc
  bool BeginPoll(Request* request);
  bool TakeTurn(const Request& request);
  Round PollRounds(const std::function<bool()>& ended);
  void PollUntilEnd();
  void EndPoll(bool in_time, Wake wake);
  static Wake WakeAfter(const Round& round);

  // engine_requests.cc: from submission to completion
  void Admit(Request request);
  std::string Refusal(const Request& request, Code* code) const;
  void CancelRequest(const std::string& key);
  void Apply(const Boundary& boundary);
  void StartSequence(const std::string& name, Sequence sequence);
  void FailSequence(Sequence sequence, Code code, const std::string& message);
  void EndSteps(const std::set<int64_t>& steps, const std::string& name);
  void NoteLaunch(Running* running);
  void Start(Request request, uint64_t ticket, const std::shared_ptr<const Participants>& participants);
  std::unique_ptr<Collective> MakeCollective(const Lane& lane, const Request& request);
  bool PollRunning();
  // `on`: the thread that calls done(); null: the completion thread.
  void Complete(Request request, Status status, CompletionThread* on = nullptr);
  void Answer(Request request, Status status, CompletionThread* on = nullptr);
  void PostAllocation(std::function<void()> function);
  static void Deliver(Request* request, const Status& status);
  void RecordEnd(const Request& request, const Status& status);
  void FailEverything();
  void FreeFailed();
  std::string ClosedMessage(const std::string& key) const;  // for the request with this key
  std::string ShutDownMessage() const;
  std::string Me() const { return "rank " + std::to_string(global_rank(rank_)); }

  // engine_join.cc
  void AnnounceJoin();
  std::string JoinRefusal(const Request& request) const;
  bool CompletesSequence(const Request& request) const;
  void EndJoin(const Boundary& boundary);

  std::unique_ptr<Transport> transport_;
  const int rank_;
  const int size_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> members_;  // their ranks in the job
  const std::string set_;
  EngineControl control_;
  Recorder recorder_;
  LiveRequests live_;
  const std::shared_ptr<const Timeline> timeline_;
  const std::shared_ptr<DevicePlane> device_plane_;

  BusyPoll busy_poll_;

  // The thread that runs a round has it: the engine's, or one that polls.
  std::mutex driving_;
  // Everything below is used with it.
  ScratchPool scratch_;
  std::unique_ptr<DeviceQueue> device_queue_;
  Agreement agreement_;
  std::unique_ptr<Voter> voter_;
  ParticipantTracker participants_;
  std::map<std::string, Sequence> pending_;             // not agreed on yet, by name
  std::list<std::pair<std::string, Sequence>> agreed_;  // buckets are still to be submitted here
  std::list<Running> running_;
  std::list<Running> failed_;        // until the threads have ended
  std::optional<Request> join_;      // waits
  std::deque<int64_t> ended_steps_;  // the latest last
  uint64_t polled_ = 0;              // the number of the request whose thread polls; 0: none
  std::optional<Request> polled_result_;
  bool stopped_ = false;  // the engine's thread has ended

  std::atomic<int64_t> moved_us_;
  std::atomic<bool> joined_{false};

  CompletionThread completion_;
  std::unique_ptr<CompletionThread> allocation_;  // of results on GPUs; null: there has been none
  std::thread thread_;
};

}  // namespace tfddl
