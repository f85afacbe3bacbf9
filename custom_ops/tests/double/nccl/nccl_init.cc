// Creates, splits and destroys communicators.
#include <cstring>
#include <string>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/device.h"
#include "tests/double/nccl/nccl_abi.h"
#include "tests/double/nccl/nccl_comm.h"

namespace fake {
namespace {

thread_local std::string thread_error;

// Sets *blocking to the setting of the configuration. False if it is no NCCL configuration.
bool ReadConfig(const ncclConfig_t* config, bool* blocking) {
  if (!config) return true;
  if (config->magic != kNcclMagic || config->size < sizeof(size_t) + 2 * sizeof(unsigned)) return false;
  if (config->size < offsetof(ncclConfig_t, blocking) + sizeof(int)) return true;
  if (config->blocking == kNcclUndefined) return true;
  if (config->blocking != 0 && config->blocking != 1) return false;
  *blocking = config->blocking == 1;
  return true;
}

int Invalid(const std::string& why) {
  SetThreadError(why);
  return ncclInvalidArgument;
}

int Start(ncclComm_t* handle, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  bool blocking = true;
  if (!handle || ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks)
    return Invalid("ncclCommInitRank: rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  if (!ReadConfig(config, &blocking))
    return Invalid("ncclCommInitRankConfig: ncclConfig_t was not initialized");
  if (GroupDepth()) return Invalid("ncclCommInitRank: the double has no initialization inside a group");
  if (CurrentDevice() < 0) return ncclUnhandledCudaError;
  auto comm = std::make_shared<Comm>(rank, ranks, CurrentDevice(), blocking);
  *handle = AddComm(comm);
  // NCCL returns no communicator if a blocking initialization fails.
  const int code = Comm::Run(comm, [raw = comm.get(), id] { return raw->Connect(id); });
  if (code != ncclSuccess && code != ncclInProgress) {
    SetThreadError(comm->LastError());
    RemoveComm(*handle, "ncclCommInitRank");
    *handle = nullptr;
  }
  return code;
}

// The child communicator of this rank, whose members are sorted by key, then by rank.
struct SplitResult {
  int first;
  int rank = 0;
  int size = 0;
};

SplitResult ResultFor(const Comm& parent) {
  const auto& ranks = parent.segment->ranks;
  const SplitCall& mine = ranks[parent.rank].split;
  SplitResult result{parent.rank};
  for (int peer = 0; peer < parent.size; ++peer) {
    const SplitCall& theirs = ranks[peer].split;
    if (theirs.color != mine.color) continue;
    ++result.size;
    const auto before = [&](int a, int b) {
      return std::make_pair(ranks[a].split.key, a) < std::make_pair(ranks[b].split.key, b);
    };
    if (before(peer, parent.rank)) ++result.rank;
    if (before(peer, result.first)) result.first = peer;
  }
  return result;
}

// The child's rank and size are known only after all ranks have called.
int Split(Comm* parent, int color, int key, Comm* child) {
  SplitCall& mine = parent->segment->ranks[parent->rank].split;
  mine = {color, key, {}};
  if (!parent->Meet(&RankArea::host_step, "ncclCommSplit")) return ncclInternalError;
  const SplitResult result = ResultFor(*parent);
  if (child && result.first == parent->rank && !MakeSegment(&mine.id)) return ncclSystemError;
  if (!parent->Meet(&RankArea::host_step, "ncclCommSplit")) return ncclInternalError;
  int code = ncclSuccess;
  if (child) {
    child->rank = result.rank;
    child->size = result.size;
    code = child->Connect(parent->segment->ranks[result.first].split.id);
  }
  // No member may start another split before this point: it would overwrite data that other members read.
  return parent->Meet(&RankArea::host_step, "ncclCommSplit") ? code : ncclInternalError;
}

// Waits for all work of this rank, so that its accesses to the peers' memory have ended.
int Finish(Comm* comm) { return comm->WaitForWork() ? ncclSuccess : ncclInternalError; }

// Without a context, NCCL makes one on the first GPU, which stays there.
void WantContext(const char* caller) {
  if (CurrentDevice() < 0) Fault(std::string(caller) + ": no context is current");
}

}  // namespace

void SetThreadError(const std::string& why) { thread_error = why; }

}  // namespace fake

ncclResult_t ncclGetVersion(int* version) {
  FAKE_ENTER();
  *version = static_cast<int>(fake::Setting("nccl_version"));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  fake::Enter(__func__);
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t handle) {
  fake::Enter(__func__);
  static thread_local std::string text;
  const auto comm = handle ? fake::FindComm(handle, __func__) : nullptr;
  text = comm && !comm->LastError().empty() ? comm->LastError() : fake::thread_error;
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  FAKE_ENTER();
  return fake::MakeSegment(id) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  FAKE_ENTER();
  return fake::Start(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  FAKE_ENTER();
  return fake::Start(comm, ranks, id, rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* child_handle,
                           ncclConfig_t* config) {
  FAKE_ENTER();
  FAKE_COMM(parent, handle);
  if (const int code = fake::Ready(*parent, __func__)) return code;
  bool blocking = parent->blocking;
  if (!fake::ReadConfig(config, &blocking))
    return fake::Invalid("ncclCommSplit: ncclConfig_t was not initialized");
  if (color < 0 && color != kNcclNoColor) return fake::Invalid("ncclCommSplit: a negative color");
  std::shared_ptr<fake::Comm> child;
  if (color != kNcclNoColor) {
    child = std::make_shared<fake::Comm>(0, 0, parent->device, blocking);
    child->BeginJob();
  }
  *child_handle = child ? fake::AddComm(child) : nullptr;
  return fake::Comm::Run(parent, [raw = parent.get(), child, color, key] {
    const int code = fake::Split(raw, color, key, child.get());
    if (child) child->EndJob(code);
    return code;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  FAKE_ENTER();
  FAKE_COMM(comm, handle);
  if (const int code = fake::Ready(*comm, __func__)) return code;
  return fake::Comm::Run(comm, [raw = comm.get()] { return fake::Finish(raw); });
}

// Finalizes a communicator first, if necessary, and waits for the other ranks, which all are on this host.
// One with an error needs ncclCommAbort instead.
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  FAKE_ENTER();
  fake::WantContext(__func__);
  const auto comm = fake::RemoveComm(handle, __func__);
  if (!comm) return ncclInvalidArgument;
  if (comm->State() == ncclInProgress)
    fake::Warn("ncclCommDestroy: an operation of the communicator is in progress");
  if (comm->WaitForWork() && comm->segment) comm->Meet(&fake::RankArea::host_step, __func__);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  FAKE_ENTER();
  fake::WantContext(__func__);
  const auto comm = fake::RemoveComm(handle, __func__);
  if (!comm) return ncclInvalidArgument;
  while (fake::Setting("abort_hold")) fake::SleepMicroseconds(50);
  comm->Abort();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  FAKE_ENTER();
  FAKE_COMM(comm, handle);
  *error = comm->State();
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t handle, int* count) {
  FAKE_ENTER();
  FAKE_COMM(comm, handle);
  if (const int code = fake::Ready(*comm, __func__)) return code;
  *count = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t handle, int* rank) {
  FAKE_ENTER();
  FAKE_COMM(comm, handle);
  if (const int code = fake::Ready(*comm, __func__)) return code;
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t handle, int* device) {
  FAKE_ENTER();
  FAKE_COMM(comm, handle);
  if (const int code = fake::Ready(*comm, __func__)) return code;
  *device = comm->device;
  return ncclSuccess;
}
