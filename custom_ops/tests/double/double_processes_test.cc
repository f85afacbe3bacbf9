// The doubles with two processes on one host, which connect by the unique id.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <numeric>

#include "tests/double/rank.h"

namespace fake {
namespace {

struct Child {
  pid_t process;
  int id_from = -1;  // the id of rank 0
  int id_to = -1;
};

// Forks a process that runs `program` as a rank. This process has not called the doubles, whose state begins
// at the first call. The id comes through a pipe.
Child StartRank(int rank, int (*program)(int rank), const char* devices) {
  int from[2], to[2];
  CHECK(!pipe(from) && !pipe(to));
  const pid_t process = fork();
  CHECK(process >= 0);
  if (process == 0) {
    CHECK(dup2(to[0], 0) == 0 && dup2(from[1], 3) == 3);
    setenv("CUDA_VISIBLE_DEVICES", devices, 1);
    std::exit(program(rank));
  }
  close(from[1]);
  close(to[0]);
  return {process, from[0], to[1]};
}

int Status(const Child& child) {
  int status = 0;
  CHECK(waitpid(child.process, &status, 0) == child.process);
  return status;
}

// Passes the id on from rank 0 to rank 1.
void Introduce(const Child& first, const Child& second) {
  ncclUniqueId id;
  CHECK(read(first.id_from, &id, sizeof id) == sizeof id);
  CHECK(write(second.id_to, &id, sizeof id) == sizeof id);
}

ncclUniqueId Id(int rank) {
  ncclUniqueId id;
  if (rank == 0) {
    CHECK(ncclGetUniqueId(&id) == ncclSuccess && write(3, &id, sizeof id) == sizeof id);
  } else {
    CHECK(read(0, &id, sizeof id) == sizeof id);
  }
  return id;
}

int ReduceAndExchange(int number) {
  Rank rank(Id(number), number, 2, 0);
  for (const size_t n : {size_t{1}, size_t{100003}}) {
    std::vector<double> values(n);
    std::iota(values.begin(), values.end(), number * 10.0);
    Array<double> x(values), y(values);
    rank.Enqueued(ncclAllReduce(x.get(), x.get(), n, ncclFloat64, ncclSum, rank.comm, rank.stream));
    const std::vector<double> sums = x.Read(rank.stream);
    for (size_t i = 0; i < n; ++i) CHECK(sums[i] == 2.0 * static_cast<double>(i) + 10.0);
    Array<double> z(values);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclSend(y.get(), n, ncclFloat64, 1 - number, rank.comm, rank.stream) == ncclSuccess);
    CHECK(ncclRecv(z.get(), n, ncclFloat64, 1 - number, rank.comm, rank.stream) == ncclSuccess);
    rank.Enqueued(ncclGroupEnd());
    CHECK(z.Read(rank.stream)[n - 1] == static_cast<double>(n - 1) + 10.0 * (1 - number));
  }
  return 0;
}

// Rank 1 dies during a job; rank 0 ends its communicator by an abort.
int Die(int number) {
  const ncclUniqueId id = Id(number);
  UseDevice(0);
  CUstream stream = nullptr;
  ncclComm_t comm = nullptr;
  CHECK(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  CHECK(ncclCommInitRank(&comm, 2, id, number) == ncclSuccess);
  if (number == 1) raise(SIGKILL);
  tfddl_fake_set("stuck_ms", 20);
  Array<int> x({1});
  CHECK(ncclAllReduce(x.get(), x.get(), 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
  while (!Has(TakeWarnings(), "waits for rank 1")) std::this_thread::yield();
  CHECK(ncclCommAbort(comm) == ncclSuccess && cuStreamSynchronize(stream) == CUDA_SUCCESS);
  return 0;
}

// Both ranks see the same GPU as device 0.
int Share(int number) {
  UseDevice(0);
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, 2, Id(number), number) == ncclInvalidUsage && !comm);
  CHECK(Has(ncclGetLastError(nullptr), "both on CUDA device 5"));
  return 0;
}

void TestJob(int (*program)(int rank), const char* first_devices, const char* second_devices,
             int second_status) {
  const Child first = StartRank(0, program, first_devices);
  const Child second = StartRank(1, program, second_devices);
  Introduce(first, second);
  CHECK(Status(second) == second_status);
  CHECK(Status(first) == 0);
}

}  // namespace
}  // namespace fake

int main() {
  fake::TestJob(fake::ReduceAndExchange, "3", "1,2", 0);
  fake::TestJob(fake::Die, "0", "1", SIGKILL);
  fake::TestJob(fake::Share, "5", "5,6", 0);
}
