// One rank of a communicator.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/double/cuda/stream.h"
#include "tests/double/nccl/nccl_segment.h"

namespace fake {

// A factor is read when the operator is made, or when the collective runs.
struct Factor {
  int type;
  uint64_t bits;
  const void* device_pointer;
};

class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(int rank, int size, int device, bool blocking)
      : rank(rank), size(size), device(device), blocking(blocking) {}

  int rank;  // of the child of a split, like the size, valid after the end of the job
  int size;
  const int device;
  const bool blocking;
  std::shared_ptr<Segment> segment;  // from the end of the first job on

  // Connects to the other ranks of `id`. Returns the code of the job.
  int Connect(const ncclUniqueId& id);

  // A barrier; false if this rank aborts first. Host jobs and streams have separate barriers.
  bool Meet(std::atomic<int64_t> RankArea::* step, const std::string& call);

  // Runs a job that changes the communicator: inline if blocking, else on a thread of its own with the state
  // ncclInProgress. It has to end before the next call. Returns the code for the caller.
  static int Run(const std::shared_ptr<Comm>& comm, std::function<int()> job);
  void BeginJob() { ++jobs_; }
  void EndJob(int code);

  int State() const;
  void Fail(int code, const std::string& why);  // keeps the first failure
  std::string LastError() const;
  bool aborted() const { return aborted_; }
  void Abort();        // returns after all work has ended
  bool WaitForWork();  // waits for all launched work; false if aborted

  // Enqueues work after all earlier work of this communicator on all streams. The stream waits for `work`.
  void Launch(const std::shared_ptr<Stream>& stream, std::function<void()> work);

  int AddFactor(const Factor& factor);
  bool FindFactor(int op, Factor* factor) const;
  bool RemoveFactor(int op);

  int64_t collectives = 0;  // executed, on streams

 private:
  int CheckDevices();

  std::atomic<bool> aborted_{false};
  std::atomic<int> jobs_{0};
  std::atomic<int> running_{0};
  mutable std::mutex mutex_;
  int error_ = ncclSuccess;
  std::string last_error_;
  std::shared_ptr<Fence> last_work_;
  std::map<int, Factor> factors_;
  int next_factor_ = ncclNumOps;
};

void* AddComm(std::shared_ptr<Comm> comm);
// Null after a fault if there is no such communicator.
std::shared_ptr<Comm> FindComm(void* handle, const char* caller);
std::shared_ptr<Comm> RemoveComm(void* handle, const char* caller);

// For calls that need the last job to have ended: ncclSuccess, or the code to return.
int Ready(const Comm& comm, const char* caller);
void SetThreadError(const std::string& why);  // ncclGetLastError without a communicator
int GroupDepth();

}  // namespace fake

#define FAKE_COMM(comm, handle)                       \
  const auto comm = fake::FindComm(handle, __func__); \
  if (!comm) return ncclInvalidArgument
