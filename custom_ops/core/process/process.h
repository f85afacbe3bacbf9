// The engines of this process that TensorFlow kernels and Python reach: one for each process set that it is a
// member of. Set 0 is all ranks of the job.
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

// A job's sets, by number; the engine is null where this process is not a member.
struct ProcessSets {
  struct Entry {
    std::vector<int> ranks;  // of the job, sorted
    std::shared_ptr<Engine> engine;
  };
  std::map<int, Entry> entries;  // empty before init and after shutdown
};

// The engine of a set, or why there is none: tfddl is not initialised, there is no such set, or this process
// is not a member. Kernels keep the engine for as long as they may call it; one that has been stopped
// meanwhile refuses what they submit.
Status FindEngine(int set, std::shared_ptr<Engine>* engine);

ProcessSets CurrentSets();

// The rank of this process among those on its host, and their number.
struct LocalRank {
  int rank;
  int size;
};
LocalRank CurrentLocalRank();
void SetLocalRank(LocalRank local);

// `plane`: for requests that lie on GPUs, in all sets; null: they are refused.
// Raises: std::logic_error when there is one already.
void StartProcess(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  WatchdogOptions options, std::shared_ptr<DevicePlane> plane = nullptr);

// Before the first further set, on all ranks: that of all ranks, which has had its GPUs for itself, shares
// them from here on. Waits for the other ranks.
Status ShareGpus();

// A further set, on all ranks of the job. `data` connects its members; null where this process is none.
// Raises: std::logic_error when there is no process, or a set of this number.
void AddSet(int set, std::vector<int> ranks, std::unique_ptr<Transport> data);

// Ends a set, on all its members. True when all agreed within `limit_s` seconds; else the job has failed.
bool RemoveSet(int set, double limit_s);

// Forgets a set that not all members could make; what its engine holds is leaked.
void DropSet(int set);

// True when all peers agreed to end within `limit_s` seconds. Else SetLastError() tells why, and
// communicators may not be freed; nor when *clean is false, because a message may still be under way in one.
bool StopProcess(double limit_s, bool* clean = nullptr);

// The counters of all engines, those of removed sets included.
std::vector<std::pair<const char*, uint64_t>> AllCounters();

// What tfddl_last_error() returns on this thread (c_api.h).
void SetLastError(const std::string& text);

}  // namespace tfddl
