// An allgather of one record of any length from each member, with point-to-point messages.
#pragma once

#include <string>
#include <vector>

#include "transport/transport.h"

namespace tfddl {

class Exchange {
 public:
  // Uses `tag` for the lengths and `tag + 1` for the records.
  Exchange(Transport* transport, int tag, std::string mine);
  bool Poll();  // true: complete
  // Indexed by rank. Complete once Poll() has returned true.
  const std::vector<std::string>& records() const { return records_; }

 private:
  void StartRecords();
  bool Finished();

  Transport* transport_;
  int tag_;
  int64_t length_;
  bool lengths_known_ = false;
  std::vector<std::string> records_;
  std::vector<int64_t> lengths_;
  std::vector<Transport::Handle> handles_;
};

}  // namespace tfddl
