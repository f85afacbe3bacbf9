#include "transport/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/mpi_check.h"

namespace tfddl {
namespace {

// MPI counts are ints, and Open MPI 5 has no large-count calls.
constexpr size_t kMaxMessageBytes = size_t{1} << 30;

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(MPI_Comm communicator) : communicator_(communicator) {
    int level = MPI_THREAD_SINGLE;
    CheckMpi(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level < MPI_THREAD_MULTIPLE) {
      throw std::runtime_error("tfddl needs MPI_THREAD_MULTIPLE; MPI gave thread level " +
                               std::to_string(level) +
                               ". Remove what lowers it (for mpi4py: mpi4py.rc.thread_level).");
    }
    CheckMpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    CheckMpi(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    CheckMpi(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
    int* bound = nullptr;
    int found = 0;
    CheckMpi(MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &bound, &found), "MPI_Comm_get_attr");
    tags_ = found ? std::min(*bound, std::numeric_limits<int>::max() - 1) + 1 : 32768;
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int tags() const override { return tags_; }
  bool moves_by_itself() const override { return true; }

  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    return Start(bytes, [&](size_t offset, int count, MPI_Request* request) {
      CheckMpi(MPI_Isend(static_cast<const char*>(data) + offset, count, MPI_BYTE, peer, tag, communicator_,
                         request),
               "MPI_Isend");
    });
  }

  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return Start(bytes, [&](size_t offset, int count, MPI_Request* request) {
      CheckMpi(
          MPI_Irecv(static_cast<char*>(data) + offset, count, MPI_BYTE, peer, tag, communicator_, request),
          "MPI_Irecv");
    });
  }

  bool Test(Handle handle) override {
    if (handle == kNothing) return true;
    Transfer* transfer = At(handle);
    while (transfer->next < transfer->requests.size()) {
      int complete = 0;
      CheckMpi(MPI_Test(&transfer->requests[transfer->next], &complete, MPI_STATUS_IGNORE), "MPI_Test");
      if (!complete) return false;
      ++transfer->next;
    }
    CountCompleted();
    Free(handle);
    return true;
  }

  void Cancel(Handle handle) override {
    if (handle == kNothing) return;
    for (MPI_Request& request : At(handle)->requests) {
      if (request == MPI_REQUEST_NULL) continue;
      CheckMpi(MPI_Cancel(&request), "MPI_Cancel");
      CheckMpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
    }
    Free(handle);
  }

 private:
  struct Transfer {
    std::vector<MPI_Request> requests;  // one per kMaxMessageBytes
    size_t next = 0;
  };

  template <typename Call>
  Handle Start(size_t bytes, Call call) {
    const Handle handle = Allocate();
    Transfer* transfer = At(handle);
    transfer->requests.clear();
    transfer->next = 0;
    size_t offset = 0;
    do {
      const size_t part = std::min(bytes - offset, kMaxMessageBytes);
      transfer->requests.push_back(MPI_REQUEST_NULL);
      call(offset, static_cast<int>(part), &transfer->requests.back());
      offset += part;
    } while (offset < bytes);
    return handle;
  }

  Handle Allocate() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      transfers_.emplace_back();
      return transfers_.size();
    }
    const size_t slot = free_.back();
    free_.pop_back();
    return slot + 1;
  }

  void Free(Handle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(handle - 1);
  }

  Transfer* At(Handle handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    return &transfers_[handle - 1];  // a deque's elements do not move
  }

  MPI_Comm communicator_;
  int rank_ = 0;
  int size_ = 1;
  int tags_ = 32768;
  std::mutex mutex_;
  std::deque<Transfer> transfers_;
  std::vector<size_t> free_;
};

}  // namespace

std::unique_ptr<Transport> MakeMpiTransport(const void* communicator) {
  return std::make_unique<MpiTransport>(*static_cast<const MPI_Comm*>(communicator));
}

int64_t NextGeneration(const void* communicator) {
  static int64_t generation = 0;
  CheckMpi(MPI_Allreduce(MPI_IN_PLACE, &generation, 1, MPI_INT64_T, MPI_MAX,
                         *static_cast<const MPI_Comm*>(communicator)),
           "MPI_Allreduce");
  return ++generation;
}

}  // namespace tfddl
