// Runs the votes of one member of a process set: moves the messages of Vote and Exchange over a transport.
// Belongs to one thread.
#pragma once

#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/agreement/agreement.h"
#include "core/agreement/exchange.h"
#include "core/agreement/vote.h"
#include "transport/transport.h"

namespace tfddl {

class Voter {
 public:
  // The message tags from 0 up to here are the voter's.
  static constexpr int kTags = 3;

  // Both have to outlive the voter's last Progress().
  Voter(Transport* transport, Agreement* agreement);

  // Receives, enters a vote when the agreement asks for one, and sends. Returns the boundary when a vote
  // ends, and sets *moved when a vote was entered or one of its parts ended.
  std::optional<Boundary> Progress(bool* moved);

  // No vote is under way here, none is to be entered, and all messages have left.
  bool idle() const;
  bool all_sent() const { return outgoing_.empty(); }

 private:
  struct Outgoing {
    std::string bytes;
    Transport::Handle handle;
  };

  void PostReceives();
  void Receive();
  void Send();
  Boundary Conclude(const std::vector<std::string>& records);

  Transport* const transport_;
  Agreement* const agreement_;
  Vote vote_;
  std::vector<std::string> buffers_;                            // one for each step of the vote
  std::vector<std::pair<size_t, Transport::Handle>> receives_;  // step and handle
  std::list<Outgoing> outgoing_;
  std::optional<VoteRecord> outcome_;  // while the exchange runs
  std::optional<Exchange> exchange_;
};

}  // namespace tfddl
