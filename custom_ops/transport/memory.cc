#include "transport/memory.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tfddl {

class MemoryTransport : public Transport {
 public:
  MemoryTransport(MemoryWorld* world, int rank) : world_(world), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return world_->size_; }
  int tags() const override { return 1 << 20; }

  // The message is a copy, so the send completes at once.
  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    auto& box = *world_->mailboxes_.at(static_cast<size_t>(peer));
    std::lock_guard<std::mutex> lock(box.mutex);
    const char* start = static_cast<const char*>(data);
    const int delay = world_->max_delay_ ? static_cast<int>(box.random() % (world_->max_delay_ + 1)) : 0;
    box.channels[{rank_, tag}].messages.push_back({std::vector<char>(start, start + bytes), delay});
    return kNothing;
  }

  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    auto& box = mine();
    std::lock_guard<std::mutex> lock(box.mutex);
    Channel& channel = box.channels[{peer, tag}];
    const Handle handle = box.next_handle++;
    channel.posted.push_back({handle, data, bytes});
    box.waiting[handle] = &channel;
    return handle;
  }

  bool Test(Handle handle) override {
    if (handle == kNothing) return true;
    auto& box = mine();
    std::lock_guard<std::mutex> lock(box.mutex);
    const auto it = box.waiting.find(handle);
    if (it == box.waiting.end()) {  // a Test of another handle has matched it
      CountCompleted();
      return true;
    }
    Match(&box, it->second);
    if (box.waiting.count(handle) != 0) return false;
    CountCompleted();
    return true;
  }

  void Cancel(Handle handle) override {
    auto& box = mine();
    std::lock_guard<std::mutex> lock(box.mutex);
    const auto it = box.waiting.find(handle);
    if (it == box.waiting.end()) return;
    auto& posted = it->second->posted;
    posted.erase(std::find_if(posted.begin(), posted.end(), [&](auto& p) { return p.handle == handle; }));
    box.waiting.erase(it);
  }

 private:
  using Channel = MemoryWorld::Channel;

  MemoryWorld::Mailbox& mine() { return *world_->mailboxes_[static_cast<size_t>(rank_)]; }

  static void Match(MemoryWorld::Mailbox* box, Channel* channel) {
    while (!channel->messages.empty() && !channel->posted.empty()) {
      auto& message = channel->messages.front();
      if (message.delay-- > 0) return;
      const auto& posted = channel->posted.front();
      if (message.data.size() != posted.bytes) {
        throw std::runtime_error("tfddl: internal error: a message of " +
                                 std::to_string(message.data.size()) + " bytes met a receive of " +
                                 std::to_string(posted.bytes));
      }
      if (posted.bytes > 0) std::memcpy(posted.data, message.data.data(), posted.bytes);
      box->waiting.erase(posted.handle);
      channel->messages.pop_front();
      channel->posted.pop_front();
    }
  }

  MemoryWorld* world_;
  int rank_;
};

MemoryWorld::MemoryWorld(int size, int max_delay, uint32_t seed) : size_(size), max_delay_(max_delay) {
  for (int rank = 0; rank < size; ++rank) {
    mailboxes_.push_back(std::make_unique<Mailbox>());
    mailboxes_.back()->random.seed(seed + static_cast<uint32_t>(rank));
  }
}

std::unique_ptr<Transport> MemoryWorld::Join(int rank) {
  return std::make_unique<MemoryTransport>(this, rank);
}

}  // namespace tfddl
