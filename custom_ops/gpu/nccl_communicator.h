// A communicator of NCCL. All participants create it at the same point of their agreed order, without
// blocking.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/agreement/exchange.h"
#include "core/collectives/collective.h"
#include "gpu/nccl_device.h"
#include "gpu/nccl_ends.h"

namespace tfddl {

class NcclCommunicator {
 public:
  // The participants of `lane` first exchange their objections. `objection`: the reason why this rank cannot
  // take part, or empty; with an objection `device` may be null. `ends` has to outlive the communicator.
  NcclCommunicator(std::shared_ptr<const NcclDevice> device, Lane lane, std::string objection,
                   NcclEnds* ends);
  ~NcclCommunicator();  // no collective may be running

  // Makes progress without waiting. True once the communicator is ready or refused.
  // Raises: std::runtime_error if NCCL fails, maybe on this rank only.
  bool Poll();
  // The reason of a refusal, the same on all ranks; empty: not refused.
  const std::string& refusal() const { return refusal_; }

  // Whether NCCL is still enqueuing work. Until then nothing else may be enqueued.
  // Raises: std::runtime_error if NCCL has failed.
  bool Busy() const;

  // Ends all running work, without waiting for the end.
  void Abort();

  NcclComm comm() const { return comm_; }

 private:
  struct Member {
    std::string objection;
    std::string uuid;
    int64_t version;
    std::string id;  // ncclUniqueId, from participant 0
  };

  std::string Introduce(const std::string& objection);
  std::string Refusal(const std::vector<Member>& members) const;
  std::string Rank(size_t index) const;

  std::shared_ptr<const NcclDevice> device_;
  Participants participants_;
  int index_;
  NcclEnds* const ends_;
  std::optional<Exchange> exchange_;
  std::string refusal_;
  NcclComm comm_ = nullptr;
};

}  // namespace tfddl
