#include "core/agreement/vote.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tfddl {
namespace {

constexpr size_t kHeaderBytes = 5 * sizeof(uint32_t);

size_t Words(size_t entries) { return (entries + 63) / 64; }

}  // namespace

VoteRecord::VoteRecord(size_t entries, size_t members)
    : ready_all(Words(entries)),
      ready_any(Words(entries)),
      same_all(Words(entries)),
      joined(Words(members)),
      over_active(Words(members)) {}

void VoteRecord::Combine(const VoteRecord& other) {
  if (other.number != number || other.ready_all.size() != ready_all.size()) {
    throw std::logic_error("tfddl: internal error: vote " + std::to_string(number) +
                           " met a record of vote " + std::to_string(other.number));
  }
  flags |= other.flags;
  departing = std::min(departing, other.departing);
  for (size_t i = 0; i < ready_all.size(); ++i) {
    ready_all[i] &= other.ready_all[i];
    ready_any[i] |= other.ready_any[i];
    same_all[i] &= other.same_all[i];
  }
  for (size_t i = 0; i < joined.size(); ++i) {
    joined[i] |= other.joined[i];
    over_active[i] |= other.over_active[i];
  }
}

size_t VoteRecord::EncodedSize(size_t entries, size_t members) {
  return kHeaderBytes + (3 * Words(entries) + 2 * Words(members)) * sizeof(uint64_t);
}

std::string VoteRecord::Encode() const {
  const uint32_t header[5] = {number, flags, static_cast<uint32_t>(departing),
                              static_cast<uint32_t>(ready_all.size()), static_cast<uint32_t>(joined.size())};
  std::string bytes(reinterpret_cast<const char*>(header), kHeaderBytes);
  for (const auto* bits : {&ready_all, &ready_any, &same_all, &joined, &over_active}) {
    bytes.append(reinterpret_cast<const char*>(bits->data()), bits->size() * sizeof(uint64_t));
  }
  return bytes;
}

VoteRecord VoteRecord::Decode(const std::string& bytes) {
  uint32_t header[5];
  std::memcpy(header, bytes.data(), kHeaderBytes);
  VoteRecord record(64 * static_cast<size_t>(header[3]), 64 * static_cast<size_t>(header[4]));
  record.number = header[0];
  record.flags = header[1];
  record.departing = static_cast<int32_t>(header[2]);
  const char* next = bytes.data() + kHeaderBytes;
  for (auto* bits :
       {&record.ready_all, &record.ready_any, &record.same_all, &record.joined, &record.over_active}) {
    std::memcpy(bits->data(), next, bits->size() * sizeof(uint64_t));
    next += bits->size() * sizeof(uint64_t);
  }
  return record;
}

Vote::Vote(int rank, int size) {
  int power = 1;
  while (2 * power <= size) power *= 2;
  if (rank >= power) {
    steps_.push_back({rank - power, true, true, false});
    steps_.push_back({rank - power, false, true, true});
  } else {
    const int extra = rank + power < size ? rank + power : -1;
    if (extra >= 0) steps_.push_back({extra, true, true, false});
    for (int mask = 1; mask < power; mask *= 2) steps_.push_back({rank ^ mask, true, true, false});
    if (extra >= 0) steps_.push_back({extra, true, false, false});
  }
  inbox_.resize(steps_.size());
}

void Vote::Receive(size_t step, VoteRecord record) {
  noticed_ = true;
  noticed_departing_ = std::min(noticed_departing_, record.departing);
  inbox_[step] = std::move(record);
  if (entered_) Advance();
}

void Vote::Enter(VoteRecord mine) {
  record_ = std::move(mine);
  entered_ = true;
  Advance();
}

void Vote::Advance() {
  for (; current_ < steps_.size(); ++current_, sent_ = false) {
    const Step& step = steps_[current_];
    if (step.send && !sent_) outbox_.push_back({step.peer, record_});
    sent_ = true;
    if (!step.receive) continue;
    if (!inbox_[current_]) return;
    if (step.replace) {
      record_ = *inbox_[current_];
    } else {
      record_.Combine(*inbox_[current_]);
    }
  }
}

std::optional<Vote::Message> Vote::NextMessage() {
  if (outbox_.empty()) return std::nullopt;
  Message message = std::move(outbox_.front());
  outbox_.erase(outbox_.begin());
  return message;
}

VoteRecord Vote::Take() {
  VoteRecord outcome = std::move(record_);
  for (auto& slot : inbox_) slot.reset();
  current_ = 0;
  sent_ = entered_ = noticed_ = false;
  noticed_departing_ = VoteRecord::kNobody;
  return outcome;
}

}  // namespace tfddl
