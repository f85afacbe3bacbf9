#include "tests/double/nccl/nccl_comm.h"

#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/device.h"
#include "tests/double/cuda/handles.h"

namespace fake {
namespace {

Handles<Comm>& Comms() {
  static auto* comms = new Handles<Comm>(0x0cc00000);
  return *comms;
}

std::shared_ptr<Comm> Known(std::shared_ptr<Comm> comm, const char* caller) {
  if (!comm) Fault(std::string(caller) + ": no such communicator; it was destroyed, aborted or never made");
  return comm;
}

// Since NCCL 2.30.3, two ranks may share a GPU if the user asks for it.
bool MayShareDevices() {
  const char* enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return Setting("nccl_version") >= 23003 && enabled && std::string(enabled) == "1";
}

}  // namespace

int Comm::Connect(const ncclUniqueId& id) {
  segment = MapSegment(id);
  if (!segment) {
    Fail(ncclSystemError, "the unique id is of no communicator that lives on this host");
    return ncclSystemError;
  }
  RankArea& mine = segment->ranks[rank];
  if (mine.joined.exchange(1)) {
    Fault("two ranks of one communicator are rank " + std::to_string(rank));
    return ncclInvalidUsage;
  }
  mine.size = size;
  mine.device = PhysicalDevice(device);
  if (!Meet(&RankArea::host_step, "ncclCommInitRank")) return ncclInternalError;
  SegmentMapped(id);
  return CheckDevices();
}

int Comm::CheckDevices() {
  for (int peer = 0; peer < size; ++peer) {
    if (segment->ranks[peer].size != size) {
      Fault("rank " + std::to_string(rank) + " was told of " + std::to_string(size) + " ranks, rank " +
            std::to_string(peer) + " of " + std::to_string(segment->ranks[peer].size));
      return ncclInvalidUsage;
    }
    if (peer != rank && segment->ranks[peer].device == segment->ranks[rank].device && !MayShareDevices()) {
      Fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " +
                                 std::to_string(peer) + " both on CUDA device " +
                                 std::to_string(segment->ranks[rank].device));
      return ncclInvalidUsage;
    }
  }
  return ncclSuccess;
}

bool Comm::Meet(std::atomic<int64_t> RankArea::* step, const std::string& call) {
  const int64_t reached = (segment->ranks[rank].*step).load(std::memory_order_relaxed) + 1;
  (segment->ranks[rank].*step).store(reached, std::memory_order_release);
  const auto start = std::chrono::steady_clock::now();
  bool warned = false;
  for (int peer = 0; peer < size; ++peer) {
    for (int turn = 0; (segment->ranks[peer].*step).load(std::memory_order_acquire) < reached; ++turn) {
      if (aborted_) return false;
      turn < 100 ? std::this_thread::yield() : SleepMicroseconds(50);
      const long limit = Setting("stuck_ms");
      if (warned || !limit || std::chrono::steady_clock::now() - start < std::chrono::milliseconds(limit))
        continue;
      warned = true;
      Warn("rank " + std::to_string(rank) + ": " + call + " waits for rank " + std::to_string(peer) +
           ", which is dead, late or in another collective");
    }
  }
  return !aborted_;
}

int Comm::Run(const std::shared_ptr<Comm>& comm, std::function<int()> job) {
  comm->BeginJob();
  if (comm->blocking) {
    const int code = job();
    comm->EndJob(code);
    return code;
  }
  std::thread([comm, job = std::move(job)] { comm->EndJob(job()); }).detach();
  return ncclInProgress;
}

void Comm::EndJob(int code) {
  if (code != ncclSuccess) Fail(code, "");
  --jobs_;
}

int Comm::State() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != ncclSuccess) return error_;
  return jobs_ ? ncclInProgress : ncclSuccess;
}

void Comm::Fail(int code, const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != ncclSuccess) return;
  error_ = code;
  last_error_ = why;
}

std::string Comm::LastError() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_error_;
}

void Comm::Abort() {
  aborted_ = true;
  while (jobs_ || running_) SleepMicroseconds(50);
}

bool Comm::WaitForWork() {
  std::shared_ptr<Fence> last;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last = last_work_;
  }
  while (last && !last->Done()) {
    if (aborted_) return false;
    SleepMicroseconds(50);
  }
  return true;
}

void Comm::Launch(const std::shared_ptr<Stream>& stream, std::function<void()> work) {
  auto done = std::make_shared<Fence>();
  std::shared_ptr<Fence> previous;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    previous = std::exchange(last_work_, done);
  }
  stream->Push([comm = shared_from_this(), previous, done, work = std::move(work)] {
    if (previous) previous->Wait();
    ++comm->running_;
    const int state = comm->State();
    const bool sound = state == ncclSuccess || state == ncclInProgress;
    if (!comm->aborted_ && sound && !DeviceError(comm->device)) work();
    --comm->running_;
    done->Set();
  });
}

int Comm::AddFactor(const Factor& factor) {
  std::lock_guard<std::mutex> lock(mutex_);
  factors_[next_factor_] = factor;
  return next_factor_++;
}

bool Comm::FindFactor(int op, Factor* factor) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = factors_.find(op);
  if (found == factors_.end()) return false;
  *factor = found->second;
  return true;
}

bool Comm::RemoveFactor(int op) {
  std::lock_guard<std::mutex> lock(mutex_);
  return factors_.erase(op) == 1;
}

void* AddComm(std::shared_ptr<Comm> comm) { return Comms().Add(std::move(comm)); }

std::shared_ptr<Comm> FindComm(void* handle, const char* caller) {
  return Known(Comms().Find(handle), caller);
}

std::shared_ptr<Comm> RemoveComm(void* handle, const char* caller) {
  return Known(Comms().Remove(handle), caller);
}

int Ready(const Comm& comm, const char* caller) {
  const int state = comm.State();
  if (state == ncclSuccess) return ncclSuccess;
  if (state != ncclInProgress) return state;
  SetThreadError(std::string(caller) +
                 ": the communicator is used before its previous operation returned ncclSuccess");
  return ncclInvalidArgument;
}

}  // namespace fake
