#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "core/collective.h"
#include "core/pipeline.h"

namespace tfddl {
namespace {

// Only this rank knows whether it can allocate its output, and only after it has learnt how many
// rows the others bring. So all say "allocated" before any data moves: all succeed or all fail.
class Allgather : public Collective {
 public:
  Allgather(Lane lane, const Request& request, std::function<void(std::function<void()>)> post)
      : lane_(lane),
        post_(std::move(post)),
        rank_(lane.transport->rank()),
        row_bytes_(request.rows ? request.buffers.at(0).count / request.rows *
                                      static_cast<int64_t>(SizeOf(request.dtype))
                                : 0),
        in_(static_cast<const char*>(request.buffers.at(0).in)),
        allocate_(request.allocate),
        rows_(static_cast<size_t>(lane.transport->size())),
        verdicts_(rows_.size(), 1) {
    // A rank without rows cannot derive the size of one from its element count.
    mine_[0] = request.rows;
    mine_[1] = row_bytes_;
    headers_.resize(2 * rows_.size());
    Exchange(mine_, headers_.data(), sizeof mine_);
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
          Exchange(&verdict_, verdicts_.data(), 1);
          phase_ = Phase::kVerdicts;
          break;
        case Phase::kVerdicts:
          if (!Accepted()) return true;
          StartData();
          phase_ = Phase::kData;
          break;
        case Phase::kData:
          for (Pipeline& transfer : transfers_) transfer.Poll();
          for (Pipeline& transfer : transfers_) {
            if (!transfer.complete()) return false;
          }
          return true;
      }
    }
  }

  Status status() const override { return status_; }

 private:
  enum class Phase { kRows, kAllocate, kVerdicts, kData };
  static constexpr int kUndecided = 2;
  struct Shared {  // with the completion thread, which may outlive this object when the job fails
    std::atomic<int> verdict{kUndecided};
    void* out = nullptr;
    Status status;
  };

  // Sends `bytes` at `mine` to everybody; `all` receives those of the others, by rank.
  void Exchange(const void* mine, void* all, size_t bytes) {
    for (int peer = 0; peer < static_cast<int>(rows_.size()); ++peer) {
      char* slot = static_cast<char*>(all) + bytes * static_cast<size_t>(peer);
      if (peer == rank_) {
        std::memcpy(slot, mine, bytes);
        continue;
      }
      handles_.push_back(lane_.transport->Receive(peer, lane_.tag, slot, bytes));
      handles_.push_back(lane_.transport->Send(peer, lane_.tag, mine, bytes));
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
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      rows_[rank] = headers_[2 * rank];
      if (row_bytes_ == 0) row_bytes_ = headers_[2 * rank + 1];
    }
    post_([shared = shared_, allocate = allocate_, rows = rows_] {
      shared->status = allocate(rows, &shared->out);
      shared->verdict.store(shared->status.ok() ? 1 : 0, std::memory_order_release);
    });
  }

  bool Accepted() {
    if (!shared_->status.ok()) {
      status_ = shared_->status;
      return false;
    }
    for (size_t rank = 0; rank < verdicts_.size(); ++rank) {
      if (verdicts_[rank]) continue;
      status_ = Status(Code::kResourceExhausted,
                       "rank " + std::to_string(rank) + " could not allocate the gathered tensor");
      return false;
    }
    return true;
  }

  void StartData() {
    char* out = static_cast<char*>(shared_->out);
    const size_t my_bytes = static_cast<size_t>(mine_[0] * row_bytes_);
    for (int peer = 0; peer < static_cast<int>(rows_.size()); ++peer) {
      const size_t bytes = static_cast<size_t>(rows_[static_cast<size_t>(peer)] * row_bytes_);
      if (peer == rank_) {
        if (bytes > 0) std::memcpy(out, in_, bytes);
      } else {
        using D = Pipeline::Direction;
        transfers_.emplace_back(lane_.transport, D::kReceive, peer, lane_.tag + 1, out, bytes);
        transfers_.emplace_back(lane_.transport, D::kSend, peer, lane_.tag + 1, const_cast<char*>(in_),
                                my_bytes);
      }
      out += bytes;
    }
  }

  Lane lane_;
  std::function<void(std::function<void()>)> post_;
  int rank_;
  int64_t row_bytes_;
  const char* in_;
  std::function<Status(const std::vector<int64_t>&, void**)> allocate_;
  std::vector<int64_t> rows_;
  std::vector<char> verdicts_;
  int64_t mine_[2];
  std::vector<int64_t> headers_;
  char verdict_ = 0;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Phase phase_ = Phase::kRows;
  Status status_;
  std::vector<Transport::Handle> handles_;
  std::vector<Pipeline> transfers_;
};

}  // namespace

std::unique_ptr<Collective> MakeAllgather(Lane lane, const Request& request,
                                          std::function<void(std::function<void()>)> post) {
  return std::make_unique<Allgather>(lane, request, std::move(post));
}

}  // namespace tfddl
