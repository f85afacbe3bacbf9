#include "core/process/process.h"

#include <algorithm>
#include <array>
#include <future>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/ranks.h"
#include "base/signature.h"

namespace tfddl {
namespace {

struct Process {
  bool shares_gpu = false;  // its sets agree on the order of their collectives on GPUs
  bool busy_poll = false;   // each rank of this host has a core
  std::shared_ptr<DevicePlane> plane;
  ProcessSets sets;
  std::unique_ptr<Watchdog> watchdog;
};

std::mutex mutex;  // for calls that change the process; held while they wait
Process* process = nullptr;
std::vector<Process*> failed_jobs;

// Never held during a wait. `current` is leaked, because kernels may run until the process ends.
std::mutex current_mutex;
ProcessSets* const current = new ProcessSets;
LocalRank local_rank = {0, 1};

using Values = std::array<uint64_t, std::size(kCounters)>;
constexpr double kDisconnectLimit = 5;  // seconds; an answer takes the peers' watchdogs a twentieth
Values removed = {};                    // of sets that have ended in this job

void AddTo(Values* sum, Engine& engine) {
  const Counters& counters = engine.recorder().counters;
  for (size_t i = 0; i < sum->size(); ++i) (*sum)[i] += counters.*kCounters[i].value;
}

void Publish() {
  std::lock_guard<std::mutex> lock(current_mutex);
  *current = process ? process->sets : ProcessSets{};
}

// Removes the set, so that kernels do not find it any more.
std::shared_ptr<Engine> Unpublish(int set) {
  const auto it = process->sets.entries.find(set);
  if (it == process->sets.entries.end()) return nullptr;
  auto engine = std::move(it->second.engine);
  process->sets.entries.erase(it);
  {
    std::lock_guard<std::mutex> lock(current_mutex);
    current->entries.erase(set);
    if (engine) AddTo(&removed, *engine);
  }
  return engine;
}

// Leaves all sets, within one limit. Idle peers answer, because the watchdogs have told them.
void Leave(double limit_s) {
  const int64_t end = NowMicros() + static_cast<int64_t>(limit_s * 1e6);
  process->watchdog->AnnounceShutdown(limit_s);
  for (const auto& [set, entry] : process->sets.entries) {
    if (!entry.engine) continue;
    const double left_s = std::max(0.0, static_cast<double>(end - NowMicros()) * 1e-6);
    if (entry.engine->Shutdown(left_s)) continue;
    const Engine& all = *process->sets.entries.at(0).engine;
    process->watchdog->FailStalled("rank " + std::to_string(all.rank()) +
                                   " has shut down tfddl, and not all other ranks have answered within " +
                                   std::to_string(static_cast<int>(limit_s)) +
                                   " seconds. All ranks: " + process->watchdog->ShutdownReport() +
                                   ". Call hvd.shutdown() at the same place on all ranks.");
  }
}

// Frees the engines of failed jobs, with their shared memory. Their watchdogs stay, since they have posted
// receives. The threads wait for continuations of TensorFlow, which init() must not wait for.
void FreeFailedJobs() {
  for (Process* const old : std::exchange(failed_jobs, {})) {
    std::thread([old] {
      for (const auto& [set, engine] : old->watchdog->TakeEngines()) engine->Stop();
      old->sets.entries.clear();
    }).detach();
  }
}

}  // namespace

Status FindEngine(int set, std::shared_ptr<Engine>* engine) {
  std::lock_guard<std::mutex> lock(current_mutex);
  const auto& entries = current->entries;
  const auto it = entries.find(set);
  if (entries.empty()) {
    return Status(Code::kFailedPrecondition, "tfddl has not been initialized; use hvd.init().");
  }
  if (it == entries.end()) {
    return Status(Code::kInvalidArgument, "there is no process set " + std::to_string(set) +
                                              " any more: it was removed (hvd.remove_process_set), or "
                                              "belonged to a job before hvd.shutdown(). Trace the function "
                                              "anew with a set of this job.");
  }
  *engine = it->second.engine;
  if (*engine) return Status();
  return Status(Code::kInvalidArgument, "rank " + std::to_string(entries.at(0).engine->rank()) +
                                            " is not a member of " + NameOfSet(set, it->second.ranks) +
                                            ": call its collectives on the members only.");
}

ProcessSets CurrentSets() {
  std::lock_guard<std::mutex> lock(current_mutex);
  return *current;
}

LocalRank CurrentLocalRank() {
  std::lock_guard<std::mutex> lock(current_mutex);
  return local_rank;
}

void SetLocalRank(LocalRank local) {
  std::lock_guard<std::mutex> lock(current_mutex);
  local_rank = local;
}

void StartProcess(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  WatchdogOptions options, std::shared_ptr<DevicePlane> plane, bool busy_poll) {
  std::lock_guard<std::mutex> lock(mutex);
  if (process) throw std::logic_error("internal error: tfddl is initialised already");
  FreeFailedJobs();
  auto fresh = std::make_unique<Process>();
  EngineOptions all;
  all.device_plane = fresh->plane = std::move(plane);
  all.busy_poll = fresh->busy_poll = busy_poll;
  all.timeline = Timeline::OfProcess();
  auto engine = std::make_shared<Engine>(std::move(data), std::move(all));
  std::vector<int> ranks = AllRanks(engine->size());
  fresh->watchdog = std::make_unique<Watchdog>(std::move(control), engine, options);
  fresh->sets.entries[0] = {std::move(ranks), std::move(engine)};
  process = fresh.release();
  {
    std::lock_guard<std::mutex> counters(current_mutex);
    removed = {};
  }
  Publish();
}

Status ShareGpus() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!process) return Status(Code::kFailedPrecondition, "tfddl has been shut down; call hvd.init() first");
  if (std::exchange(process->shares_gpu, true)) return Status();
  std::promise<Status> ended;
  Request request;
  request.name = "hvd.add_process_set()";
  request.kind = Kind::kBarrier;
  request.signature = Signature(request.kind).Add("purpose", "share GPUs").text();
  request.shares_gpu = true;
  request.done = [&ended](const Status& status) { ended.set_value(status); };
  process->sets.entries.at(0).engine->Submit(std::move(request));
  return ended.get_future().get();
}

void AddSet(int set, std::vector<int> ranks, std::unique_ptr<Transport> data) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!process) throw std::logic_error("tfddl has been shut down; call hvd.init() first");
  if (process->sets.entries.count(set))
    throw std::logic_error("internal error: the process set exists already");
  std::shared_ptr<Engine> engine;
  if (data) {
    EngineOptions options;
    options.shares_gpu = process->shares_gpu;
    options.busy_poll = process->busy_poll;
    options.members = ranks;
    options.set = NameOfSet(set, ranks);
    options.device_plane = process->plane;
    options.timeline = Timeline::OfProcess();
    engine = std::make_shared<Engine>(std::move(data), std::move(options));
  }
  process->watchdog->Watch(set, ranks, engine);
  process->sets.entries[set] = {std::move(ranks), std::move(engine)};
  Publish();
}

bool RemoveSet(int set, double limit_s) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!process) {
    SetLastError("tfddl has been shut down; call hvd.init() first");
    return false;
  }
  const auto engine = Unpublish(set);
  if (engine && !engine->Shutdown(limit_s)) {
    process->watchdog->FailStalled("not all members of process set " + std::to_string(set) +
                                   ", which is being removed, have answered within " +
                                   std::to_string(static_cast<int>(limit_s)) +
                                   " seconds. Call hvd.remove_process_set on all ranks.");
  }
  if (const auto failure = engine ? engine->failure() : std::nullopt) {
    SetLastError(*failure);
    return false;
  }
  process->watchdog->Unwatch(set);
  if (engine) engine->Stop();
  return true;
}

void DropSet(int set) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!process) return;
  process->watchdog->Unwatch(set);
  const auto engine = Unpublish(set);
  if (engine) new std::shared_ptr<Engine>(engine);  // leaked: its receives are posted
}

bool StopProcess(double limit_s, bool* clean) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!process) return true;
  Leave(limit_s);
  std::optional<std::string> failure;
  for (const auto& [set, entry] : process->sets.entries) {
    if (entry.engine && !failure) failure = entry.engine->failure();
  }
  if (failure) SetLastError(*failure);
  Process* const old = std::exchange(process, nullptr);
  Publish();
  if (failure) {
    // Kernels may wait and continuations may run, so the engines stay until the process starts its next job.
    // After this neither the failed engines nor the watchdog call MPI, so that MPI can be finalized.
    old->watchdog->Stop();
    failed_jobs.push_back(old);
    return false;
  }
  const bool disconnected = old->watchdog->Disconnect(kDisconnectLimit);
  if (clean) *clean = disconnected;
  old->watchdog.reset();
  for (const auto& [set, entry] : old->sets.entries) {
    if (entry.engine) entry.engine->Stop();
  }
  delete old;
  return true;
}

// Another thread may be in a call that waits for the peers.
void CollectRecords(const std::string& reason, double limit_s) {
  const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (lock && process) process->watchdog->CollectRecords(reason, limit_s);
}

std::vector<std::pair<const char*, uint64_t>> AllCounters() {
  std::lock_guard<std::mutex> lock(current_mutex);
  std::vector<std::pair<const char*, uint64_t>> named;
  if (current->entries.empty()) return named;
  Values sum = removed;
  for (const auto& [set, entry] : current->entries) {
    if (entry.engine) AddTo(&sum, *entry.engine);
  }
  for (size_t i = 0; i < sum.size(); ++i) named.emplace_back(kCounters[i].name, sum[i]);
  return named;
}

}  // namespace tfddl
