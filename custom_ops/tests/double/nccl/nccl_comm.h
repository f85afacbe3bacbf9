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

  int rank;  // of a child of a split, as its size, known when the job has ended
  int size;
  const int device;
  const bool blocking;
  std::shared_ptr<Segment> segment;  // from the end of the first job on

  // Meets the other ranks of `id`; the code that the job ends with.
  int Connect(const ncclUniqueId& id);

  // All ranks reach this point; false when this one is aborted first. Host jobs and streams meet apart.
  bool Meet(std::atomic<int64_t> RankArea::* step, const std::string& what);

  // A job changes the communicator and must have ended before the next call: inline when blocking, else on a
  // thread of its own, with ncclInProgress as the state. Returns the code for the caller.
  static int Run(const std::shared_ptr<Comm>& comm, std::function<int()> job);
  void BeginJob() { ++jobs_; }
  void EndJob(int code);

  int State() const;
  void Fail(int code, const std::string& why);  // the first one stays
  std::string LastError() const;
  bool aborted() const { return aborted_; }
  void Abort();        // returns when nothing of it runs any more
  bool WaitForWork();  // what has been launched; false when aborted

  // Work that follows all earlier work of this communicator, whatever its stream. The stream goes on after
  // `work`.
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
// Null, after a fault, when there is no such communicator.
std::shared_ptr<Comm> FindComm(void* handle, const char* caller);
std::shared_ptr<Comm> RemoveComm(void* handle, const char* caller);

// For calls that have to wait for the last job: ncclSuccess, or the code to return.
int Ready(const Comm& comm, const char* caller);
void SetThreadError(const std::string& why);  // ncclGetLastError without a communicator
int GroupDepth();

}  // namespace fake

#define FAKE_COMM(comm, handle)                       \
  const auto comm = fake::FindComm(handle, __func__); \
  if (!comm) return ncclInvalidArgument
