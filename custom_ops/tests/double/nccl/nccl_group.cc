// Groups: they collect operations and enqueue them on streams.
#include <map>
#include <utility>
#include <vector>

#include "tests/double/control_internal.h"
#include "tests/double/nccl/nccl_operation.h"

namespace fake {
namespace {

struct Group {
  int depth = 0;
  int error = ncclSuccess;
  std::vector<Operation> operations;
};
thread_local Group group;

// Enqueues the collectives in the order of their calls, then the sends and receives of each communicator and
// stream as one operation.
void Enqueue(const std::vector<Operation>& operations) {
  std::map<std::pair<Comm*, Stream*>, std::vector<Operation>> messages;
  for (const Operation& operation : operations) {
    if (operation.point_to_point())
      messages[{operation.comm.get(), operation.stream.get()}].push_back(operation);
    else
      operation.comm->Launch(operation.stream, [operation] { RunCollective(operation); });
  }
  for (const auto& entry : messages) {
    const std::vector<Operation>& together = entry.second;
    together.front().comm->Launch(together.front().stream, [together] { RunPointToPoint(together); });
  }
}

std::vector<std::shared_ptr<Comm>> Comms(const std::vector<Operation>& operations) {
  std::map<Comm*, std::shared_ptr<Comm>> comms;
  for (const Operation& operation : operations) comms[operation.comm.get()] = operation.comm;
  std::vector<std::shared_ptr<Comm>> list;
  for (const auto& entry : comms) list.push_back(entry.second);
  return list;
}

// A nonblocking communicator may return long before the work is on the stream.
void EnqueueLate(const std::vector<Operation>& operations) {
  SleepMicroseconds(Setting("enqueue_delay_us"));
  while (Setting("enqueue_hold") && !operations.front().comm->aborted()) SleepMicroseconds(100);
  if (!operations.front().comm->aborted()) Enqueue(operations);
}

int Launch(std::vector<Operation> operations) {
  if (operations.empty()) return ncclSuccess;
  const auto comms = Comms(operations);
  bool blocking = true;
  for (const auto& comm : comms) blocking &= comm->blocking;
  if (blocking) {
    Enqueue(operations);
    return ncclSuccess;
  }
  for (size_t i = 1; i < comms.size(); ++i) comms[i]->BeginJob();
  return Comm::Run(comms[0], [operations = std::move(operations), comms] {
    EnqueueLate(operations);
    for (size_t i = 1; i < comms.size(); ++i) comms[i]->EndJob(ncclSuccess);
    return ncclSuccess;
  });
}

}  // namespace

int GroupDepth() { return group.depth; }

void FailGroup(int code) {
  if (group.depth && group.error == ncclSuccess) group.error = code;
}

int Submit(const Operation& operation) {
  if (!group.depth) return Launch({operation});
  group.operations.push_back(operation);
  return ncclSuccess;
}

}  // namespace fake

ncclResult_t ncclGroupStart() {
  FAKE_ENTER();
  ++fake::group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  FAKE_ENTER();
  if (!fake::group.depth) {
    fake::SetThreadError("ncclGroupEnd: not in a group call");
    return ncclInvalidUsage;
  }
  if (--fake::group.depth) return ncclSuccess;
  const int error = std::exchange(fake::group.error, ncclSuccess);
  std::vector<fake::Operation> operations = std::exchange(fake::group.operations, {});
  return error ? error : fake::Launch(std::move(operations));
}
