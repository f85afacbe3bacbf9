#include "core/agreement/exchange.h"

#include <utility>

namespace tfddl {

Exchange::Exchange(Transport* transport, int tag, std::string mine)
    : transport_(transport),
      tag_(tag),
      length_(static_cast<int64_t>(mine.size())),
      records_(static_cast<size_t>(transport->size())),
      lengths_(records_.size()) {
  records_[static_cast<size_t>(transport->rank())] = std::move(mine);
  for (int peer = 0; peer < transport->size(); ++peer) {
    if (peer == transport->rank()) continue;
    handles_.push_back(transport->Receive(peer, tag, &lengths_[static_cast<size_t>(peer)], sizeof(int64_t)));
    handles_.push_back(transport->Send(peer, tag, &length_, sizeof length_));
  }
}

bool Exchange::Poll() {
  if (!Finished()) return false;
  if (!lengths_known_) StartRecords();
  return Finished();
}

void Exchange::StartRecords() {
  lengths_known_ = true;
  const std::string& mine = records_[static_cast<size_t>(transport_->rank())];
  for (int peer = 0; peer < transport_->size(); ++peer) {
    if (peer == transport_->rank()) continue;
    std::string& theirs = records_[static_cast<size_t>(peer)];
    theirs.resize(static_cast<size_t>(lengths_[static_cast<size_t>(peer)]));
    handles_.push_back(transport_->Receive(peer, tag_ + 1, theirs.data(), theirs.size()));
    handles_.push_back(transport_->Send(peer, tag_ + 1, mine.data(), mine.size()));
  }
}

bool Exchange::Finished() {
  while (!handles_.empty()) {
    if (!transport_->Test(handles_.back())) return false;
    handles_.pop_back();
  }
  return true;
}

}  // namespace tfddl
