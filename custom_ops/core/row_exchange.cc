#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "core/collective.h"
#include "core/pipeline.h"
#include "transport/copy.h"

namespace tfddl {
namespace {

// Each rank sends rows to each other: to all of them the same ones, or parts of its own. Only the receiver
// knows whether it can allocate its output, and only after it has learnt how many rows the others bring. So
// all say "allocated" before any data moves: all succeed or all fail.
class RowExchange : public Collective {
 public:
  RowExchange(Lane lane, const Request& request, std::function<void(std::function<void()>)> post)
      : lane_(lane),
        post_(std::move(post)),
        attendance_(*lane.attendance),
        size_(static_cast<size_t>(lane.transport->size())),
        rank_(static_cast<size_t>(lane.transport->rank())),
        buffers_(request.buffers),
        element_(SizeOf(request.dtype)),
        splits_(request.splits),
        allocate_(request.allocate),
        verdicts_(size_, 1) {
    for (size_t peer = 0; peer < size_; ++peer) {
      for (const Buffer& buffer : buffers_)
        sent_.push_back(splits_.empty() ? buffer.rows : splits_[Rank(peer)]);
    }
    received_.resize(sent_.size());
    const size_t bytes = buffers_.size() * sizeof(int64_t);
    Exchange(sent_.data(), bytes, received_.data(), bytes);
  }

  bool Poll() override {
    for (;;) {
      if (!Finished()) return false;
      switch (phase_) {
        case Phase::kRows:
          Allocate();
          phase_ = Phase::kAllocate;
          break;
        case Phase::kAllocate:
          if (shared_->verdict.load(std::memory_order_acquire) == kUndecided) return false;
          verdict_ = static_cast<char>(shared_->verdict.load());
          Exchange(&verdict_, 0, verdicts_.data(), 1);
          phase_ = Phase::kVerdicts;
          break;
        case Phase::kVerdicts:
          if (!Accepted()) return true;
          StartData();
          phase_ = Phase::kData;
          break;
        case Phase::kData:
          do {
            for (Pipeline& transfer : transfers_) transfer.Poll();
          } while (CopyOwn());
          return std::all_of(transfers_.begin(), transfers_.end(), [](auto& t) { return t.complete(); });
      }
    }
  }

  Status status() const override { return status_; }

 private:
  enum class Phase { kRows, kAllocate, kVerdicts, kData };
  static constexpr int kUndecided = 2;
  struct Shared {  // with the completion thread, which may outlive this object when the job fails
    std::atomic<int> verdict{kUndecided};
    std::vector<void*> out;
    Status status;
  };

  struct Own {  // rows from this rank to itself
    char* out;
    const char* in;
    size_t bytes;
    size_t copied = 0;
  };

  // Sends `bytes` at `mine`, and `stride` further on for each next rank; `all` receives the others', by rank.
  void Exchange(const void* mine, size_t stride, void* all, size_t bytes) {
    for (size_t peer = 0; peer < size_; ++peer) {
      const char* theirs = static_cast<const char*>(mine) + stride * peer;
      char* slot = static_cast<char*>(all) + bytes * peer;
      if (peer == rank_) {
        std::memcpy(slot, theirs, bytes);
        continue;
      }
      handles_.push_back(lane_.transport->Receive(static_cast<int>(peer), lane_.tag, slot, bytes));
      handles_.push_back(lane_.transport->Send(static_cast<int>(peer), lane_.tag, theirs, bytes));
    }
  }

  bool Finished() {
    while (!handles_.empty()) {
      if (!lane_.transport->Test(handles_.back())) return false;
      handles_.pop_back();
    }
    return true;
  }

  void Allocate() {
    const auto ranks = static_cast<size_t>(attendance_.set_size());
    std::vector<int64_t> rows(buffers_.size() * ranks);  // none from those that have joined
    for (size_t i = 0; i < buffers_.size(); ++i) {
      for (size_t peer = 0; peer < size_; ++peer) {
        rows[i * ranks + Rank(peer)] = received_[peer * buffers_.size() + i];
      }
    }
    post_([shared = shared_, allocate = allocate_, rows = std::move(rows)] {
      shared->status = allocate(rows, &shared->out);
      shared->verdict.store(shared->status.ok() ? 1 : 0, std::memory_order_release);
    });
  }

  bool Accepted() {
    if (!shared_->status.ok()) {
      status_ = shared_->status;
      return false;
    }
    for (size_t peer = 0; peer < verdicts_.size(); ++peer) {
      if (verdicts_[peer]) continue;
      status_ = Status(Code::kResourceExhausted, "rank " + std::to_string(attendance_.members[Rank(peer)]) +
                                                     " could not allocate its result");
      return false;
    }
    return true;
  }

  void StartData() {
    for (size_t peer = 0; peer < size_; ++peer) {
      const Pipeline* last_sent = nullptr;
      const Pipeline* last_received = nullptr;
      for (size_t i = 0; i < buffers_.size(); ++i) {
        const size_t row = static_cast<size_t>(buffers_[i].row) * element_;
        const size_t bytes = static_cast<size_t>(received_[peer * buffers_.size() + i]) * row;
        char* in = static_cast<char*>(const_cast<void*>(buffers_[i].in)) + FirstSent(peer) * row;
        char* out = static_cast<char*>(shared_->out[i]) + FirstReceived(i, peer) * row;
        if (peer == rank_) {
          own_.push_back({out, in, bytes});
          continue;
        }
        using D = Pipeline::Direction;
        last_received = Add(D::kReceive, peer, out, bytes, last_received);
        last_sent =
            Add(D::kSend, peer, in, static_cast<size_t>(sent_[peer * buffers_.size() + i]) * row, last_sent);
      }
    }
  }

  // The members of a group share a tag, so that all pieces of one have to start before those of the next.
  const Pipeline* Add(Pipeline::Direction direction, size_t peer, char* data, size_t bytes,
                      const Pipeline* last) {
    if (bytes == 0) return last;
    std::function<size_t()> allowed;
    if (last) allowed = [last] { return last->all_started() ? SIZE_MAX : 0; };
    transfers_.emplace_back(lane_.transport, direction, static_cast<int>(peer), lane_.tag + 1, data, bytes,
                            std::move(allowed));
    return &transfers_.back();
  }

  // A piece of the rows that stay here, while the others' are under way. False when there is none left.
  bool CopyOwn() {
    if (own_.empty()) return false;
    Own& own = own_.back();
    const size_t length = std::min(lane_.transport->piece_bytes(), own.bytes - own.copied);
    CopyPart(own.out + own.copied, own.in + own.copied, length, own.bytes);
    own.copied += length;
    if (own.copied == own.bytes) own_.pop_back();
    return true;
  }

  size_t FirstSent(size_t peer) const {
    if (splits_.empty()) return 0;
    return static_cast<size_t>(
        std::accumulate(splits_.begin(), splits_.begin() + static_cast<ptrdiff_t>(Rank(peer)), int64_t{0}));
  }

  size_t Rank(size_t place) const { return static_cast<size_t>(attendance_.ranks[place]); }

  size_t FirstReceived(size_t buffer, size_t peer) const {
    int64_t rows = 0;
    for (size_t other = 0; other < peer; ++other) rows += received_[other * buffers_.size() + buffer];
    return static_cast<size_t>(rows);
  }

  Lane lane_;
  std::function<void(std::function<void()>)> post_;
  Attendance attendance_;
  size_t size_;  // of those that attend, and this rank's place among them
  size_t rank_;
  std::vector<Buffer> buffers_;
  size_t element_;
  std::vector<int64_t> splits_;
  decltype(Request::allocate) allocate_;
  std::vector<int64_t> sent_;      // rows: of each buffer, for each rank one behind the other
  std::vector<int64_t> received_;  // likewise
  std::vector<char> verdicts_;
  char verdict_ = 0;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Phase phase_ = Phase::kRows;
  Status status_;
  std::vector<Transport::Handle> handles_;
  std::vector<Own> own_;
  std::deque<Pipeline> transfers_;  // they refer to each other
};

}  // namespace

std::unique_ptr<Collective> MakeRowExchange(Lane lane, const Request& request,
                                            std::function<void(std::function<void()>)> post) {
  return std::make_unique<RowExchange>(lane, request, std::move(post));
}

}  // namespace tfddl
