// A communicator of NCCL: made by all who take part at one agreed point, without blocking.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/agreement/exchange.h"
#include "core/collectives/collective.h"
#include "gpu/nccl_device.h"

namespace tfddl {

class NcclCommunicator {
 public:
  // Among those that attend, who tell each other over `lane` whether they can. `objection`: why this one
  // cannot; `device` may be null then.
  NcclCommunicator(std::shared_ptr<const NcclDevice> device, Lane lane, std::string objection);
  ~NcclCommunicator();  // nothing may run

  // Moves on without waiting. True once it is made, or cannot be: refusal() says why then, alike on all.
  // Raises: std::runtime_error when NCCL fails, which only this rank may see.
  bool Poll();
  const std::string& refusal() const { return refusal_; }

  // Whether something is still being put on the stream; until then nothing else may be.
  // Raises: std::runtime_error when NCCL has failed.
  bool Busy() const;

  // Ends what runs.
  void Abort();

  NcclComm comm() const { return comm_; }

 private:
  struct Member {
    std::string objection;
    std::string uuid;
    int64_t version;
    std::string id;  // of the first place
  };

  std::string Introduce(const std::string& objection);
  std::string Refusal(const std::vector<Member>& members) const;
  std::string Rank(size_t place) const;

  std::shared_ptr<const NcclDevice> device_;
  Participants participants_;
  int place_;
  std::optional<Exchange> exchange_;
  std::string refusal_;
  NcclComm comm_ = nullptr;
};

}  // namespace tfddl
