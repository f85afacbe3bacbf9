#include "core/collectives/row_agreement.h"

#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "transport/arena.h"

namespace tfddl {
namespace {

constexpr char kOtherRows[] =
    " has compiled its program for other rows, as its own error says: bring equally many rows on all ranks, "
    "or use jit_compile=False";

}  // namespace

RowAgreement::RowAgreement(Lane lane, const Request& request, Post post)
    : lane_(lane),
      post_(std::move(post)),
      participants_(*lane.participants),
      size_(static_cast<size_t>(lane.transport->size())),
      index_(static_cast<size_t>(lane.transport->rank())),
      buffers_(request.buffers.size()),
      splits_(request.splits),
      allocate_(request.allocate),
      expected_(request.expected),
      offer_(Offer(size_)),
      offered_(offer_.size()),
      verdict_(size_ * (1 + buffers_), Arena::kNowhere),
      verdicts_(verdict_.size()) {
  for (const Buffer& buffer : request.buffers) {
    row_bytes_.push_back(static_cast<size_t>(buffer.row) * SizeOf(request.dtype));
  }
  SendOffers(request);
}

bool RowAgreement::Poll() {
  for (;;) {
    if (!Finished()) return false;
    switch (phase_) {
      case Phase::kRows:
        if (AllAsExpected()) {
          UseExpected();
          return true;
        }
        Allocate();
        phase_ = Phase::kAllocate;
        break;
      case Phase::kAllocate:
        if (shared_->verdict.load(std::memory_order_acquire) == kUndecided) return false;
        SendVerdicts();
        phase_ = Phase::kVerdicts;
        break;
      case Phase::kVerdicts:
        Judge();
        return true;
    }
  }
}

void RowAgreement::Exchange(const void* mine, size_t stride, void* all, size_t bytes) {
  for (size_t index = 0; index < size_; ++index) {
    const char* theirs = static_cast<const char*>(mine) + stride * index;
    char* slot = static_cast<char*>(all) + bytes * index;
    if (index == index_) {
      std::memcpy(slot, theirs, bytes);
      continue;
    }
    handles_.push_back(lane_.transport->Receive(static_cast<int>(index), lane_.tag, slot, bytes));
    handles_.push_back(lane_.transport->Send(static_cast<int>(index), lane_.tag, theirs, bytes));
  }
}

bool RowAgreement::Finished() {
  while (!handles_.empty()) {
    if (!lane_.transport->Test(handles_.back())) return false;
    handles_.pop_back();
  }
  return true;
}

void RowAgreement::SendOffers(const Request& request) {
  const auto arena = lane_.transport->arena();
  for (size_t index = 0; index < size_; ++index) {
    uint64_t* offer = &offer_[Offer(index)];
    *offer++ = expected_.empty() ? 0 : 1;
    for (const Buffer& buffer : request.buffers) {
      *offer++ = static_cast<uint64_t>(splits_.empty() ? buffer.rows : splits_[Rank(index)]);
    }
    for (size_t i = 0; i < buffers_; ++i) {
      *offer++ = arena && !expected_.empty() ? arena->Find(expected_[i]) : Arena::kNowhere;
    }
  }
  const size_t bytes = Offer(1) * sizeof offer_[0];
  Exchange(offer_.data(), bytes, offered_.data(), bytes);
}

// The same on all members, because all members of an allgather receive the same offers.
bool RowAgreement::AllAsExpected() const {
  if (static_cast<int>(size_) != participants_.set_size()) return false;
  for (size_t index = 0; index < size_; ++index) {
    if (!offered_[Offer(index)]) return false;
    for (size_t i = 0; i < buffers_; ++i) {
      if (received(i, index) != received(i, 0)) return false;
    }
  }
  return true;
}

void RowAgreement::UseExpected() {
  shared_->out = expected_;
  for (size_t index = 0; index < size_; ++index) {
    for (size_t i = 0; i < buffers_; ++i) {
      const auto bytes = static_cast<uint64_t>(sent(i, index)) * row_bytes_[i];
      const uint64_t mine = offer_[Offer(index) + 1 + buffers_ + i];
      const uint64_t theirs = offered_[Offer(index) + 1 + buffers_ + i];
      verdict_[Verdict(index) + 1 + i] = mine == Arena::kNowhere ? mine : mine + index * bytes;
      verdicts_[Verdict(index) + 1 + i] = theirs == Arena::kNowhere ? theirs : theirs + index_ * bytes;
    }
  }
}

void RowAgreement::Allocate() {
  const auto ranks = static_cast<size_t>(participants_.set_size());
  std::vector<int64_t> rows(buffers_ * ranks);  // zero for joined ranks
  for (size_t i = 0; i < buffers_; ++i) {
    for (size_t index = 0; index < size_; ++index) rows[i * ranks + Rank(index)] = received(i, index);
  }
  post_([shared = shared_, allocate = allocate_, rows = std::move(rows)] {
    shared->status = allocate(rows, &shared->out);
    shared->verdict.store(VerdictOf(shared->status), std::memory_order_release);
  });
}

int RowAgreement::VerdictOf(const Status& status) {
  if (status.ok()) return kTaken;
  return status.code() == Code::kInvalidArgument ? kRefused : kNoMemory;
}

void RowAgreement::SendVerdicts() {
  const auto arena = lane_.transport->arena();
  for (size_t index = 0; index < size_; ++index) {
    uint64_t* verdict = &verdict_[Verdict(index)];
    verdict[0] = static_cast<uint64_t>(shared_->verdict.load());
    for (size_t i = 0; arena && i < shared_->out.size(); ++i) {
      const size_t first = static_cast<size_t>(FirstReceived(i, index)) * row_bytes_[i];
      verdict[1 + i] = arena->Find(static_cast<char*>(shared_->out[i]) + first);
    }
  }
  const size_t bytes = Verdict(1) * sizeof verdict_[0];
  Exchange(verdict_.data(), bytes, verdicts_.data(), bytes);
}

void RowAgreement::Judge() {
  status_ = shared_->status;
  for (size_t index = 0; index < size_ && status_.ok(); ++index) {
    const std::string rank = "rank " + std::to_string(participants_.members[Rank(index)]);
    if (verdicts_[Verdict(index)] == kNoMemory) {
      status_ =
          Status(Code::kResourceExhausted,
                 rank + " could not allocate its result; use smaller tensors, or fewer ranks on its host");
    } else if (verdicts_[Verdict(index)] == kRefused) {
      status_ = Status(Code::kInvalidArgument, rank + kOtherRows);
    }
  }
}

char* RowAgreement::OutAt(size_t buffer, size_t index, size_t origin) const {
  uint64_t offset = verdicts_[Verdict(index) + 1 + buffer];
  const auto peer = static_cast<int>(index);
  if (offset == Arena::kNowhere || !lane_.transport->ArenaOf(peer)) return nullptr;
  int64_t rows = sent(buffer, index);
  if (origin != index_) {
    rows = received(buffer, origin);
    const int64_t distance = FirstReceived(buffer, origin) - FirstReceived(buffer, index_);
    offset += static_cast<uint64_t>(distance * static_cast<int64_t>(row_bytes_[buffer]));
  }
  return lane_.transport->Reach(peer, offset, static_cast<size_t>(rows) * row_bytes_[buffer]);
}

bool RowAgreement::Reached(size_t buffer, size_t index) const {
  return lane_.transport->ArenaOf(static_cast<int>(index)) &&
         verdict_[Verdict(index) + 1 + buffer] != Arena::kNowhere;
}

int64_t RowAgreement::FirstSent(size_t index) const {
  if (splits_.empty()) return 0;
  return std::accumulate(splits_.begin(), splits_.begin() + static_cast<ptrdiff_t>(Rank(index)), int64_t{0});
}

int64_t RowAgreement::FirstReceived(size_t buffer, size_t index) const {
  int64_t rows = 0;
  for (size_t other = 0; other < index; ++other) rows += received(buffer, other);
  return rows;
}

}  // namespace tfddl
