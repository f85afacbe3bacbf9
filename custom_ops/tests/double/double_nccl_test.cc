// The double of NCCL: communicators, groups, sends and receives, custom operators.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "tests/double/rank.h"

namespace fake {
namespace {

ncclUniqueId NewId() {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  return id;
}

void TestBlockingAndNot() {
  const ncclUniqueId id = NewId();
  OnThreads(2, [&](int rank) {
    UseDevice(rank);
    ncclComm_t comm = nullptr;
    if (rank == 0) {
      // Not ready without the other ranks.
      ncclConfig_t config = NonBlocking();
      CHECK(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclInProgress);
      int state, count;
      CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
      CHECK(state == ncclInProgress || state == ncclSuccess);
      CHECK(Settle(comm) == ncclSuccess);
      CHECK(ncclCommCount(comm, &count) == ncclSuccess && count == 2);
    } else {
      CHECK(ncclCommInitRank(&comm, 2, id, 1) == ncclSuccess);
      int value;
      CHECK(ncclCommUserRank(comm, &value) == ncclSuccess && value == 1);
      CHECK(ncclCommCuDevice(comm, &value) == ncclSuccess && value == 1);
    }
    const int finalized = ncclCommFinalize(comm);
    CHECK(finalized == (rank == 0 ? ncclInProgress : ncclSuccess) && Settle(comm) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  });
}

void TestConfig() {
  UseDevice(0);
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NonBlocking();
  config.magic = 1;
  CHECK(ncclCommInitRankConfig(&comm, 1, NewId(), 0, &config) == ncclInvalidArgument);
  CHECK(Has(ncclGetLastError(nullptr), "not initialized"));
  // Fields beyond `size` are not read.
  config = NonBlocking();
  config.size = offsetof(ncclConfig_t, blocking);
  CHECK(ncclCommInitRankConfig(&comm, 1, NewId(), 0, &config) == ncclSuccess);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
  CHECK(ncclCommInitRank(&comm, 2, NewId(), 2) == ncclInvalidArgument);
  int version = 0;
  CHECK(ncclGetVersion(&version) == ncclSuccess && version == 22707);
}

void TestSameDevice(bool allowed) {
  tfddl_fake_set("nccl_version", allowed ? 23003 : 22707);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const ncclUniqueId id = NewId();
  OnThreads(2, [&](int rank) {
    UseDevice(0);
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    CHECK(ncclCommInitRankConfig(&comm, 2, id, rank, &config) == ncclInProgress);
    CHECK(Settle(comm) == (allowed ? ncclSuccess : ncclInvalidUsage));
    if (!allowed) CHECK(Has(ncclGetLastError(comm), "Duplicate GPU detected"));
    CHECK(ncclCommAbort(comm) == ncclSuccess);
  });
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  tfddl_fake_set("nccl_version", 22707);
}

// The color is the parity, and keys reverse the order. A second split leaves out rank 2 of 3.
void TestSplit() {
  OnRanks(3, [](Rank& rank) {
    ncclComm_t child = nullptr;
    CHECK(ncclCommSplit(rank.comm, rank.rank % 2, -rank.rank, &child, nullptr) == ncclInProgress);
    CHECK(Settle(rank.comm) == ncclSuccess && Settle(child) == ncclSuccess);
    int child_rank, count;
    CHECK(ncclCommUserRank(child, &child_rank) == ncclSuccess && ncclCommCount(child, &count) == ncclSuccess);
    CHECK(count == (rank.rank % 2 ? 1 : 2) && child_rank == (rank.rank == 0 ? 1 : 0));
    Array<int> x({rank.rank});
    const int code = ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, child, rank.stream);
    CHECK(code == ncclInProgress && Settle(child) == ncclSuccess);
    CHECK(x.Read(rank.stream)[0] == (rank.rank % 2 ? 1 : 2));
    CHECK(ncclCommDestroy(child) == ncclSuccess);

    CHECK(ncclCommSplit(rank.comm, rank.rank == 2 ? -1 : 0, 0, &child, nullptr) == ncclInProgress);
    CHECK(Settle(rank.comm) == ncclSuccess);
    CHECK((child == nullptr) == (rank.rank == 2));
    if (!child) return;
    CHECK(Settle(child) == ncclSuccess && ncclCommDestroy(child) == ncclSuccess);
  });
}

// Each rank sends i + 1 blocks to each rank i (itself too), more than a pipe holds.
void TestSendAndReceive(int size) {
  constexpr size_t kBlock = 20000;
  OnRanks(size, [size](Rank& rank) {
    std::vector<int> values(kBlock * size * size);
    std::iota(values.begin(), values.end(), rank.rank * 1000000);
    Array<int> in(values);
    const size_t mine = kBlock * (rank.rank + 1);
    Array<int> out(std::vector<int>(mine * size, -1));
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int peer = 0; peer < size; ++peer) {
      const size_t theirs = kBlock * (peer + 1);
      const int* from = in.get() + kBlock * size * peer;
      CHECK(ncclSend(from, theirs, ncclInt32, peer, rank.comm, rank.stream) == ncclSuccess);
      CHECK(ncclRecv(out.get() + mine * peer, mine, ncclInt32, peer, rank.comm, rank.stream) == ncclSuccess);
    }
    rank.Enqueued(ncclGroupEnd());
    const std::vector<int> received = out.Read(rank.stream);
    for (int peer = 0; peer < size; ++peer)
      for (size_t i = 0; i < mine; ++i)
        CHECK(received[mine * peer + i] == static_cast<int>(peer * 1000000 + kBlock * size * rank.rank + i));
  });
}

// Two messages to one peer arrive in the order of the calls.
void TestMessagesInOrder() {
  OnRanks(2, [](Rank& rank) {
    Array<int> x({1, 2});
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int i = 0; i < 2; ++i) {
      if (rank.rank == 0)
        CHECK(ncclSend(x.get() + i, 1, ncclInt32, 1, rank.comm, rank.stream) == ncclSuccess);
      else
        CHECK(ncclRecv(x.get() + 1 - i, 1, ncclInt32, 0, rank.comm, rank.stream) == ncclSuccess);
    }
    rank.Enqueued(ncclGroupEnd());
    const std::vector<int> values = x.Read(rank.stream);
    CHECK(values == (rank.rank == 0 ? std::vector<int>{1, 2} : std::vector<int>{2, 1}));
  });
}

// Each rank has its own factor, which is read at once or when the collective runs.
void TestPreMulSum(int residence) {
  OnRanks(3, [residence](Rank& rank) {
    Array<float> x({1, 2}), scalar({0});
    float factor = static_cast<float>(rank.rank + 1);
    void* at = residence == ncclScalarDevice ? static_cast<void*>(scalar.get()) : &factor;
    ncclRedOp_t op = -1;
    CHECK(ncclRedOpCreatePreMulSum(&op, at, ncclFloat32, residence, rank.comm) == ncclSuccess);
    CHECK(op >= ncclNumOps);
    CHECK(ncclAllReduce(x.get(), x.get(), 2, ncclFloat64, op, rank.comm, rank.stream) == ncclInvalidArgument);
    CHECK(Has(ncclGetLastError(nullptr), "another type"));
    CHECK(cuMemcpyHtoDAsync_v2(scalar.pointer(), &factor, sizeof factor, rank.stream) == CUDA_SUCCESS);
    rank.Enqueued(ncclAllReduce(x.get(), x.get(), 2, ncclFloat32, op, rank.comm, rank.stream));
    CHECK(ncclRedOpDestroy(op, rank.comm) == ncclSuccess);
    CHECK((x.Read(rank.stream) == std::vector<float>{6, 12}));
    CHECK(ncclAllReduce(x.get(), x.get(), 2, ncclFloat32, op, rank.comm, rank.stream) == ncclInvalidArgument);
    CHECK(ncclRedOpDestroy(op, rank.comm) == ncclInvalidArgument);
  });
}

void TestGroups() {
  OnRanks(2, [](Rank& rank) {
    Array<int> x({1}), y({2});
    // No work starts before the end of the outermost group.
    CHECK(ncclGroupStart() == ncclSuccess && ncclGroupStart() == ncclSuccess);
    CHECK(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, rank.comm, rank.stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess && cuStreamQuery(rank.stream) == CUDA_SUCCESS);
    CHECK(ncclBroadcast(y.get(), y.get(), 1, ncclInt32, 0, rank.comm, rank.stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInProgress && Settle(rank.comm) == ncclSuccess);
    CHECK(x.Read(rank.stream)[0] == 2 && y.Read(rank.stream)[0] == 2);
    // A refused call fails the whole group.
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, rank.comm, rank.stream) == ncclSuccess);
    CHECK(ncclBroadcast(y.get(), y.get(), 1, 99, 0, rank.comm, rank.stream) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(x.Read(rank.stream)[0] == 2);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
  });
}

// Until the group is on the stream, the communicator is busy and a new event does not cover the group.
void TestLateEnqueue() {
  UseDevice(0);
  Rank rank(NewId(), 0, 1, 0);
  Array<int> x({5}), y({0});
  CUevent early = nullptr, late = nullptr;
  CHECK(cuEventCreate(&early, 2) == CUDA_SUCCESS && cuEventCreate(&late, 2) == CUDA_SUCCESS);
  tfddl_fake_set("enqueue_hold", 1);
  CHECK(ncclAllReduce(x.get(), y.get(), 1, ncclInt32, ncclSum, rank.comm, rank.stream) == ncclInProgress);
  CHECK(cuEventRecord(early, rank.stream) == CUDA_SUCCESS && cuEventSynchronize(early) == CUDA_SUCCESS);
  CHECK(y.get()[0] == 0);
  CHECK(ncclAllReduce(x.get(), y.get(), 1, ncclInt32, ncclSum, rank.comm, rank.stream) ==
        ncclInvalidArgument);
  CHECK(Has(ncclGetLastError(nullptr), "before its previous operation"));
  tfddl_fake_set("enqueue_hold", 0);
  CHECK(Settle(rank.comm) == ncclSuccess);
  CHECK(cuEventRecord(late, rank.stream) == CUDA_SUCCESS && cuEventSynchronize(late) == CUDA_SUCCESS);
  CHECK(y.get()[0] == 5);
  CHECK(cuEventDestroy_v2(early) == CUDA_SUCCESS && cuEventDestroy_v2(late) == CUDA_SUCCESS);
}

// Work of one communicator keeps its order across streams.
void TestTwoStreams() {
  OnRanks(2, [](Rank& rank) {
    CUstream other = nullptr;
    CHECK(cuStreamCreate(&other, 0) == CUDA_SUCCESS);
    Array<int> x({1}), y({0});
    Gate gate;
    gate.Close(rank.stream);
    rank.Enqueued(ncclAllReduce(x.get(), y.get(), 1, ncclInt32, ncclSum, rank.comm, rank.stream));
    rank.Enqueued(ncclAllReduce(y.get(), y.get(), 1, ncclInt32, ncclSum, rank.comm, other));
    CHECK(cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
    gate.Open();
    CHECK(y.Read(other)[0] == 4);
    CHECK(cuStreamDestroy_v2(other) == CUDA_SUCCESS);
  });
}

}  // namespace
}  // namespace fake

int main() {
  fake::TestBlockingAndNot();
  fake::TestConfig();
  fake::TestSameDevice(false);
  fake::TestSameDevice(true);
  fake::TestSplit();
  for (int size = 1; size <= 3; ++size) fake::TestSendAndReceive(size);
  fake::TestMessagesInOrder();
  fake::TestPreMulSum(ncclScalarHostImmediate);
  fake::TestPreMulSum(ncclScalarDevice);
  fake::TestGroups();
  fake::TestLateEnqueue();
  fake::TestTwoStreams();
  CHECK(fake::TakeFaults().empty());
}
