#include "gpu/nccl.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/collectives/row_agreement.h"
#include "core/trace/timeline.h"
#include "gpu/nccl_calls.h"
#include "gpu/nccl_communicator.h"
#include "gpu/nccl_device.h"
#include "gpu/nccl_ends.h"
#include "gpu/nccl_support.h"

namespace tfddl {
namespace {

// The running collectives of a process set, in their order on the stream, and the set's communicators.
class NcclQueue : public DeviceQueue {
 public:
  NcclQueue(std::shared_ptr<NcclDevices> devices, std::string set)
      : devices_(std::move(devices)), set_(std::move(set)) {}

  std::unique_ptr<Collective> Start(Lane lane, const Request& request, Post post) override;
  void ShareGpu() override { shared_ = true; }
  void Abort() override {
    for (auto& [generation, communicator] : communicators_) communicator->Abort();
    for (const Collective* collective : entered_) devices_->order().Leave(collective);
    entered_.clear();
    running_.clear();
  }

  // Enters a collective into the order of the GPU. Null: its position is final. Else the returned collective
  // computes its time, for Settle(), and has to end before IsNext().
  std::unique_ptr<Collective> Enter(const Collective* collective, Lane lane, int64_t* time);
  void Settle(const Collective* collective, int64_t time) { devices_->order().Settle(collective, time); }
  bool IsNext(const Collective* collective) const { return devices_->order().IsNext(collective); }
  void Launched(const Collective* collective) {
    devices_->order().Leave(collective);
    running_.push_back(collective);
  }
  bool IsOldest(const Collective* collective) const { return running_.front() == collective; }
  void Leave(const Collective* collective) {
    devices_->order().Leave(collective);
    entered_.erase(collective);
    running_.erase(std::remove(running_.begin(), running_.end(), collective), running_.end());
  }

  // The communicator of the participants, which their first collective creates; null until it is ready, or if
  // it was refused (*refusal).
  NcclCommunicator* CommunicatorOf(Lane lane, const NcclEvent& ready, std::string* refusal);

 private:
  void Make(Lane lane, const NcclEvent& ready);

  const std::shared_ptr<NcclDevices> devices_;
  const std::string set_;
  bool shared_ = false;
  ScratchPool scratch_;
  NcclEnds ends_;
  std::set<const Collective*> entered_;  // not destroyed yet
  std::deque<const Collective*> running_;
  std::map<int64_t, std::unique_ptr<NcclCommunicator>> communicators_;  // by Participants::generation
};

std::unique_ptr<Collective> NcclQueue::Enter(const Collective* collective, Lane lane, int64_t* time) {
  entered_.insert(collective);
  if (!shared_) {
    devices_->order().Append(collective);
    return nullptr;
  }
  *time = devices_->order().Propose(collective, set_, lane.tag);
  Request latest;
  latest.dtype = DataType::kInt64;
  latest.op = ReduceOp::kMax;
  latest.buffers.push_back({time, time, 1});
  return MakeAllreduce(lane, &scratch_, latest);
}

NcclCommunicator* NcclQueue::CommunicatorOf(Lane lane, const NcclEvent& ready, std::string* refusal) {
  const int64_t generation = lane.participants->generation;
  if (!communicators_.count(generation)) {
    if (!running_.empty()) return nullptr;  // Make() destroys communicators, which must not be in use
    Make(lane, ready);
  }
  NcclCommunicator* communicator = communicators_[generation].get();
  if (!communicator->Poll()) return nullptr;
  *refusal = communicator->refusal();
  if (refusal->empty()) return communicator;
  communicators_.erase(generation);
  return nullptr;
}

// A communicator takes memory of the GPU, so at most two are kept: one of all members (generation 0) and one
// of the current participants.
void NcclQueue::Make(Lane lane, const NcclEvent& ready) {
  for (auto it = communicators_.begin(); it != communicators_.end();) {
    it = it->first == 0 ? std::next(it) : communicators_.erase(it);
  }
  communicators_[lane.participants->generation] =
      std::make_unique<NcclCommunicator>(ready.device(), lane, ready.error(), &ends_);
}

class NcclCollective : public Collective {
 public:
  NcclCollective(NcclQueue* queue, Lane lane, const Request& request, Post post)
      : queue_(queue),
        lane_(lane),
        request_(request),
        ready_(std::static_pointer_cast<NcclEvent>(request.ready)) {
    order_ = queue_->Enter(this, lane, &time_);
    if (request.kind != Kind::kAllgather && request.kind != Kind::kAlltoall) return;
    Request rows = request;
    rows.allocate = [allocate = request.allocate, ready = ready_, slot = allocated_](
                        const std::vector<int64_t>& counts, std::vector<void*>* out) {
      return AllocateAndRecord(allocate, *ready, counts, out, slot.get());
    };
    make_rows_ = [this, lane, rows, post = std::move(post)] { rows_.emplace(lane, rows, post); };
  }
  ~NcclCollective() override { queue_->Leave(this); }

  bool Poll() override {
    for (;;) {
      switch (phase_) {
        case Phase::kOrder:
          if (order_ && !order_->Poll()) return false;
          if (order_) queue_->Settle(this, time_);
          if (make_rows_) make_rows_();
          phase_ = Phase::kRows;
          break;
        case Phase::kRows:
          if (rows_ && !rows_->Poll()) return false;
          if (rows_) status_ = rows_->status();
          if (!status_.ok()) return true;
          phase_ = Phase::kTurn;
          break;
        case Phase::kTurn:
          if (!Launch()) return !status_.ok();
          phase_ = Phase::kLaunch;
          break;
        case Phase::kLaunch:
          // A nonblocking communicator may enqueue work after the call has returned. An event that is
          // recorded before would pass too early.
          if (communicator_->Busy()) return false;
          launch_->End();
          end_ = std::make_shared<NcclEvent>(ready_->device(), ready_->device()->stream);
          queue_->Launched(this);
          if (request_.launched) request_.launched(end_);
          phase_ = Phase::kRun;
          break;
        case Phase::kRun:
          return Ended();
      }
    }
  }

  Status status() const override { return status_; }

 private:
  enum class Phase { kOrder, kRows, kTurn, kLaunch, kRun };
  using Slot = std::shared_ptr<NcclEvent>;

  // Kernels on the caller's stream, enqueued after the request was made, may still use the new memory. So the
  // communication has to wait for an event after them.
  static Status AllocateAndRecord(const decltype(Request::allocate)& allocate, const NcclEvent& ready,
                                  const std::vector<int64_t>& counts, std::vector<void*>* out, Slot* slot) {
    const Status status = allocate(counts, out);
    if (!status.ok() || !ready.error().empty()) return status;
    try {
      *slot = std::make_shared<NcclEvent>(ready.device(), ready.stream());
    } catch (const std::runtime_error& error) {
      return Status(Code::kUnknown, error.what());
    }
    return status;
  }

  // False if it is not this collective's turn yet, or if it was refused (status_).
  bool Launch() {
    if (!queue_->IsNext(this)) return false;
    std::string refusal;
    communicator_ = queue_->CommunicatorOf(lane_, *ready_, &refusal);
    if (!refusal.empty()) {
      status_ = Status(Code::kFailedPrecondition,
                       "'" + request_.name + "' cannot run on the GPUs: " + refusal + ".");
    }
    if (!communicator_) return false;
    if (!ready_->error().empty()) throw std::runtime_error(ready_->error());
    const NcclDevice& device = *ready_->device();
    const WithContext current(device);
    ready_->HoldBack(device.stream);
    if (*allocated_) (*allocated_)->HoldBack(device.stream);
    launch_.emplace(device, communicator_->comm(), request_, *lane_.participants, lane_.transport->rank(),
                    rows_ ? &*rows_ : nullptr);
    launch_->Start();
    if (request_.span) request_.span->Launched(request_);
    return true;
  }

  // Looks for errors after the event: an error also ends the work, and the event passes.
  bool Ended() {
    if (!queue_->IsOldest(this)) return false;
    const bool passed = end_->Passed();
    communicator_->Busy();
    return passed;
  }

  NcclQueue* queue_;
  Lane lane_;
  const Request request_;
  std::shared_ptr<NcclEvent> ready_;
  std::shared_ptr<Slot> allocated_ = std::make_shared<Slot>();
  int64_t time_ = 0;
  std::unique_ptr<Collective> order_;  // computes time_, the latest of the members' proposals
  std::function<void()> make_rows_;    // called after order_, which uses the same lane
  std::optional<RowAgreement> rows_;
  Phase phase_ = Phase::kOrder;
  Status status_;
  NcclCommunicator* communicator_ = nullptr;
  std::optional<NcclLaunch> launch_;
  std::shared_ptr<NcclEvent> end_;
};

std::unique_ptr<Collective> NcclQueue::Start(Lane lane, const Request& request, Post post) {
  return std::make_unique<NcclCollective>(this, lane, request, std::move(post));
}

class NcclPlane : public DevicePlane {
 public:
  explicit NcclPlane(GpuLibraries libraries)
      : devices_(std::make_shared<NcclDevices>(std::move(libraries))) {}

  std::shared_ptr<DeviceEvent> Record(int ordinal, void* stream) override {
    std::string error;
    const auto device = devices_->Open(ordinal, &error);
    if (!device) return std::make_shared<NcclEvent>(error);
    try {
      return std::make_shared<NcclEvent>(device, static_cast<CudaStream>(stream));
    } catch (const std::runtime_error& failure) {
      return std::make_shared<NcclEvent>(failure.what());
    }
  }

  Status Store(int ordinal, void* stream, int* target, int value) override {
    std::string error;
    const auto device = devices_->Open(ordinal, &error);
    if (!device) return Status(Code::kFailedPrecondition, error);
    try {
      const WithContext current(*device);
      const int code =
          device->api->cuMemsetD32Async(reinterpret_cast<CudaMemory>(target), static_cast<unsigned>(value), 1,
                                        static_cast<CudaStream>(stream));
      device->api->CheckCuda(code, "cuMemsetD32Async");
      return Status();
    } catch (const std::runtime_error& failure) {
      return Status(Code::kUnknown, failure.what());
    }
  }

  std::string Objection(const Request& request, const Participants& participants) const override {
    return NcclObjection(request, participants);
  }

  std::unique_ptr<DeviceQueue> Join(const std::string& set) override {
    return std::make_unique<NcclQueue>(devices_, set);
  }

 private:
  std::shared_ptr<NcclDevices> devices_;
};

}  // namespace

std::shared_ptr<DevicePlane> MakeNcclPlane(GpuLibraries libraries) {
  return std::make_shared<NcclPlane>(std::move(libraries));
}

}  // namespace tfddl
