// Shows the ranks of this host that have come to a call, and how far each is. MPI cannot tell before all have
// come, nor while it ends. So each rank in the call holds an abstract socket, whose name tells its step.
#pragma once

#include <map>
#include <string>

namespace tfddl {

struct Sighting {
  int pid = 0;
  int step = 0;  // how far the rank is in the call
  bool stopped = false;
};

class Presence {
 public:
  // `name` is that of the job and the call, the same on all ranks of this host. Empty: no rank sees another.
  Presence(std::string name, int rank);
  Presence(const Presence&) = delete;
  ~Presence();

  // This rank has come one step further.
  void Step();

  // The ranks of this host that are in the call; `stopped` where the kernel says so.
  std::map<int, Sighting> Seen() const;

 private:
  int Bound() const;

  const std::string name_;
  const int rank_;
  int step_ = 0;
  int socket_ = -1;
};

// "rank 1 (process 77)", or "ranks 1 (process 77), 2 (process 78)".
std::string InWords(const std::map<int, Sighting>& ranks);

// The ranks below `size` that were not seen: "1, 3"; empty when all were.
std::string Missing(const std::map<int, Sighting>& seen, int size);

// The ranks that hold the others up: the stopped ones, else those with the fewest steps if others have more.
// Empty where there are no such ranks.
std::map<int, Sighting> HoldingUp(const std::map<int, Sighting>& ranks);

}  // namespace tfddl
