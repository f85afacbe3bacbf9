// The faults that the double of NCCL reports, and the failures that a test can plan.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/double/rank.h"

namespace fake {
namespace {

// Ranks that end their communicator by an abort. The array (1 2 3 4) outlives the communicator.
void OnDoomedRanks(int size, const std::function<void(int, ncclComm_t, CUstream, const Array<int>&)>& body) {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  OnThreads(size, [&](int rank) {
    UseDevice(rank);
    CUstream stream = nullptr;
    ncclComm_t comm = nullptr;
    CHECK(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
    CHECK(ncclCommInitRank(&comm, size, id, rank) == ncclSuccess);
    const Array<int> x({1, 2, 3, 4});
    body(rank, comm, stream, x);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS && cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  });
}

int WaitForError(ncclComm_t comm) {
  int error = ncclSuccess;
  while (error == ncclSuccess) CHECK(ncclCommGetAsyncError(comm, &error) == ncclSuccess);
  return error;
}

void TestMismatch(const std::function<int(int, int*, ncclComm_t, CUstream)>& call,
                  const std::string& expected) {
  OnDoomedRanks(2, [&](int rank, ncclComm_t comm, CUstream stream, const Array<int>& x) {
    CHECK(call(rank, x.get(), comm, stream) == ncclSuccess);
    CHECK(WaitForError(comm) == ncclInvalidUsage);
    CHECK(x.get()[0] == 1);
  });
  CHECK(Has(TakeFaults(), expected));
}

void TestMismatches() {
  TestMismatch(
      [](int rank, int* x, ncclComm_t comm, CUstream stream) {
        return ncclAllReduce(x, x, 3 + rank, ncclInt32, ncclSum, comm, stream);
      },
      "rank 0: ncclAllReduce of 3 int32, sum; rank 1: ncclAllReduce of 4 int32, sum");
  TestMismatch(
      [](int rank, int* x, ncclComm_t comm, CUstream stream) {
        return ncclAllReduce(x, x, 4, ncclInt32, rank ? ncclMax : ncclMin, comm, stream);
      },
      "rank 1: ncclAllReduce of 4 int32, max; rank 0: ncclAllReduce of 4 int32, min");
  TestMismatch(
      [](int rank, int* x, ncclComm_t comm, CUstream stream) {
        return rank ? ncclBroadcast(x, x, 4, ncclInt32, 1, comm, stream)
                    : ncclAllReduce(x, x, 4, ncclInt32, ncclSum, comm, stream);
      },
      "ncclBroadcast of 4 int32, root 1");
}

void TestReceiveMismatch() {
  OnDoomedRanks(2, [](int rank, ncclComm_t comm, CUstream stream, const Array<int>& x) {
    if (rank == 0)
      CHECK(ncclSend(x.get(), 2, ncclInt32, 1, comm, stream) == ncclSuccess);
    else
      CHECK(ncclRecv(x.get(), 1, ncclInt32, 0, comm, stream) == ncclSuccess);
    if (rank == 1) CHECK(WaitForError(comm) == ncclInvalidUsage);
    if (rank == 0) CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  });
  CHECK(Has(TakeFaults(), "rank 1: ncclRecv of 1 int32, peer 0 does not match what the peer sends: 2 int32"));
}

// Two communicators in opposite orders on one stream each: a deadlock, which the double reports.
void TestOppositeOrder() {
  tfddl_fake_set("stuck_ms", 50);
  std::atomic<bool> told{false};
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  OnThreads(2, [&](int rank) {
    UseDevice(rank);
    CUstream stream = nullptr;
    CHECK(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
    ncclComm_t comms[2];
    for (int i = 0; i < 2; ++i) CHECK(ncclCommInitRank(&comms[i], 2, ids[i], rank) == ncclSuccess);
    Array<int> x({1});
    for (int i = 0; i < 2; ++i)
      CHECK(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, comms[i ^ rank], stream) == ncclSuccess);
    while (!told)
      if (Has(TakeWarnings(), "ncclAllReduce of 1 int32, sum waits for rank")) told = true;
    for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  });
  tfddl_fake_set("stuck_ms", 30000);
}

// The second collective of rank 1 fails and never ends; its peer waits until it aborts.
void TestAskedError() {
  tfddl_fake_set("fail_rank", 1);
  tfddl_fake_set("fail_at", 2);
  OnDoomedRanks(2, [](int rank, ncclComm_t comm, CUstream stream, const Array<int>& x) {
    CHECK(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
    CHECK(x.Read(stream)[0] == 2);
    CHECK(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
    if (rank == 1) CHECK(WaitForError(comm) == ncclRemoteError);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  });
  tfddl_fake_set("fail_rank", -1);
  CHECK(TakeFaults().empty());
}

// Memory is freed while a collective waits for its stream.
void TestFreedEarly() {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  const Rank rank(id, 0, 1, 6);
  Gate gate;
  gate.Close(rank.stream);
  {
    Array<int> x({1});
    rank.Enqueued(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, rank.comm, rank.stream));
  }
  gate.Open();
  CHECK(WaitForError(rank.comm) == ncclUnhandledCudaError);
  CHECK(Has(TakeFaults(), "rank 0: ncclAllReduce of 1 int32, sum (in) uses 4 bytes at"));
}

void TestUses() {
  UseDevice(7);
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  CHECK(ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess);
  Array<int> x({1, 2, 3});
  CHECK(ncclAllReduce(x.get(), x.get() + 1, 2, ncclInt32, ncclSum, comm, nullptr) == ncclSuccess);
  CHECK(WaitForError(comm) == ncclUnhandledCudaError);
  CHECK(Has(TakeFaults(), "in and out overlap"));
  CHECK(ncclCommAbort(comm) == ncclSuccess);
  int count;
  CHECK(ncclCommCount(comm, &count) == ncclInvalidArgument);
  CHECK(Has(TakeFaults(), "ncclCommCount: no such communicator"));
  // The segment of the id has ended with the communicator.
  CHECK(ncclCommInitRank(&comm, 1, id, 0) == ncclSystemError && comm == nullptr);
}

void TestMissingSymbols() {
  const auto has = [](const char* library, const char* symbol) {
    void* handle =
        dlopen((std::string(TFDDL_FAKE_DIR "/lib") + library + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    CHECK(handle);
    // Looks in this library only, not in other libraries of the process.
    Dl_info info;
    void* address = dlsym(handle, symbol);
    return address && dladdr(address, &info) && Has(info.dli_fname, std::string(library) + ".so");
  };
  CHECK(has("tfddl_fake_nccl", "ncclCommSplit") && has("tfddl_fake_nccl_old", "ncclAllReduce"));
  CHECK(!has("tfddl_fake_nccl_old", "ncclCommSplit") &&
        !has("tfddl_fake_nccl_old", "ncclCommInitRankConfig"));
  CHECK(!has("tfddl_fake_nccl_broken", "ncclAllReduce") && has("tfddl_fake_nccl_broken", "ncclReduce"));
  CHECK(!has("tfddl_fake_cuda_broken", "cuStreamWaitEvent") && has("tfddl_fake_cuda_broken", "cuInit"));
}

// A fault that no test takes ends the process.
void TestFaultAtExit() {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TFDDL_FAKE_KEEP_FAULTS", "0", 1);
    cuEventQuery(nullptr);
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 86);
}

}  // namespace
}  // namespace fake

int main() {
  fake::TestFaultAtExit();
  fake::TestMismatches();
  fake::TestReceiveMismatch();
  fake::TestOppositeOrder();
  fake::TestAskedError();
  fake::TestFreedEarly();
  fake::TestUses();
  fake::TestMissingSymbols();
  CHECK(fake::TakeFaults().empty());
}
