// The engines of this process: one for each process set of which the process is a member. Set 0 has all ranks
// of the job. TensorFlow kernels and Python reach the engines from here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/watchdog/watchdog.h"

namespace tfddl {

// The process sets of a job, by number.
struct ProcessSets {
  struct Entry {
    std::vector<int> ranks;          // of the job, sorted
    std::shared_ptr<Engine> engine;  // null: this process is not a member
  };
  std::map<int, Entry> entries;  // empty before init and after shutdown
};

// Stores the engine of a set, or returns why there is none: tfddl is not initialised, there is no such set,
// or this process is not a member. Kernels hold the engine while they may call it; a stopped engine refuses
// requests.
Status FindEngine(int set, std::shared_ptr<Engine>* engine);

ProcessSets CurrentSets();

// The rank of this process on its host, and the number of processes there.
struct LocalRank {
  int rank;
  int size;
};
LocalRank CurrentLocalRank();
void SetLocalRank(LocalRank local);

// Starts the job: `data` connects the engine of all ranks, `control` the watchdog. `plane` runs requests on
// GPUs, in all sets; null: they are refused. `busy_poll`: see EngineOptions, for all sets. Raises
// std::logic_error when the process has a job already.
void StartProcess(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  WatchdogOptions options, std::shared_ptr<DevicePlane> plane = nullptr,
                  bool busy_poll = false);

// All ranks call it before the first further set: from here on the set of all ranks shares its GPUs. Waits
// for the other ranks.
Status ShareGpus();

// Adds a set; all ranks of the job call it. `data` connects the members; null where this process is not a
// member. Raises std::logic_error when there is no job, or a set of this number.
void AddSet(int set, std::vector<int> ranks, std::unique_ptr<Transport> data);

// Ends a set; all members call it. Returns true when all agreed within `limit_s` seconds; else the job has
// failed.
bool RemoveSet(int set, double limit_s);

// Removes a set that not all members could make, and leaks its engine.
void DropSet(int set);

// Ends the job. Returns true when all peers agreed to end within `limit_s` seconds; else SetLastError() has
// the reason. Communicators may only be freed after true with *clean set: else a message may still be under
// way in one.
bool StopProcess(double limit_s, bool* clean = nullptr);

// Watchdog::CollectRecords() of the job, if there is one.
void CollectRecords(const std::string& reason, double limit_s);

// The sums of the counters of all engines, including removed sets.
std::vector<std::pair<const char*, uint64_t>> AllCounters();

// Sets the text that tfddl_last_error() returns on this thread (c_api.h).
void SetLastError(const std::string& text);

}  // namespace tfddl
