// A transport between threads of one process, for tests: each thread runs one rank.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace tfddl {

// The mailboxes of all members. With `max_delay` > 0, the receiver of a message does not see it for a random
// number of Tests, so that messages of different senders overtake each other.
class MemoryWorld {
 public:
  explicit MemoryWorld(int size, int max_delay = 0, uint32_t seed = 1);
  std::unique_ptr<Transport> Join(int rank);

 private:
  friend class MemoryTransport;
  struct Message {
    std::vector<char> data;
    int delay;
  };
  struct Posted {
    Transport::Handle handle;
    void* data;
    size_t bytes;
  };
  struct Channel {  // one sender, one tag
    std::deque<Message> messages;
    std::deque<Posted> posted;
  };
  struct Mailbox {  // one receiver
    std::mutex mutex;
    std::map<std::pair<int, int>, Channel> channels;
    std::map<Transport::Handle, Channel*> waiting;
    Transport::Handle next_handle = 1;
    std::minstd_rand random;
  };

  int size_;
  int max_delay_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

}  // namespace tfddl
