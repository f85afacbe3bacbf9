// Notifications between members that write to each other's memory: which data is ready.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "transport/arena.h"
#include "transport/transport.h"

namespace tfddl {

struct Notification {
  uint64_t offset;  // of the sender's result in its arena, or Arena::kNowhere
  uint64_t pieces;  // the number of pieces that are ready
};

// Sends notifications. Must live until Flushed() is true.
class NotificationSender {
 public:
  explicit NotificationSender(Transport* transport) : transport_(transport) {}

  void Send(int peer, int tag, const Notification& notification) {
    pending_.push_back({notification, Transport::kNothing});
    auto& [kept, handle] = pending_.back();
    handle = transport_->Send(peer, tag, &kept, sizeof kept);
  }

  // Whether all notifications are sent.
  bool Flushed() {
    while (!pending_.empty() && transport_->Test(pending_.front().second)) pending_.pop_front();
    return pending_.empty();
  }

 private:
  Transport* transport_;
  std::deque<std::pair<Notification, Transport::Handle>> pending_;  // a deque's elements do not move
};

// Receives the notifications of one peer, one at a time. Must not move between Expect() and Take().
class NotificationReceiver {
 public:
  void Expect(Transport* transport, int peer, int tag) {
    handle_ = transport->Receive(peer, tag, &last_, sizeof last_);
    expected_ = true;
  }

  // True once for each Expect(), when the notification has arrived.
  bool Take(Transport* transport) {
    if (!expected_ || !transport->Test(handle_)) return false;
    expected_ = false;
    return true;
  }
  const Notification& last() const { return last_; }

 private:
  Notification last_{Arena::kNowhere, 0};
  Transport::Handle handle_ = Transport::kNothing;
  bool expected_ = false;
};

}  // namespace tfddl
