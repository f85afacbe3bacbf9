#include "core/topology/participants.h"

#include <algorithm>
#include <utility>

namespace tfddl {
namespace {

// -1: not among them.
int IndexIn(const std::vector<int>& ranks, int rank) {
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return it != ranks.end() && *it == rank ? static_cast<int>(it - ranks.begin()) : -1;
}

class SubTransport : public Transport {
 public:
  SubTransport(Transport* whole, std::vector<int> ranks)
      : whole_(whole), ranks_(std::move(ranks)), rank_(IndexIn(ranks_, whole->rank())) {
    std::vector<int> hosts;
    for (int rank : ranks_) {
      if (!whole->hosts().empty()) hosts.push_back(whole->hosts()[static_cast<size_t>(rank)]);
    }
    set_hosts(std::move(hosts));
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  int tags() const override { return whole_->tags(); }
  size_t piece_bytes() const override { return whole_->piece_bytes(); }
  bool moves_by_itself() const override { return whole_->moves_by_itself(); }

  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    return whole_->Send(Rank(peer), tag, data, bytes);
  }
  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    return whole_->Receive(Rank(peer), tag, data, bytes);
  }
  Handle ReceiveView(int peer, int tag, void* scratch, size_t bytes, const void** data) override {
    return whole_->ReceiveView(Rank(peer), tag, scratch, bytes, data);
  }
  void Release(int peer, const void* data) override { whole_->Release(Rank(peer), data); }
  std::shared_ptr<Arena> arena() const override { return whole_->arena(); }
  char* ArenaOf(int peer) const override { return whole_->ArenaOf(Rank(peer)); }
  char* Reach(int peer, uint64_t offset, size_t bytes) override {
    return whole_->Reach(Rank(peer), offset, bytes);
  }
  bool Test(Handle handle) override { return whole_->Test(handle); }
  void Cancel(Handle handle) override { whole_->Cancel(handle); }
  bool unsent() override { return whole_->unsent(); }

 private:
  int Rank(int index) const { return ranks_[static_cast<size_t>(index)]; }

  Transport* whole_;
  std::vector<int> ranks_;
  int rank_;
};

}  // namespace

int Participants::IndexOf(int rank) const { return IndexIn(ranks, rank); }

std::string Objection(const Request& request, const Participants& participants) {
  if (request.kind == Kind::kBroadcast && participants.IndexOf(request.root) < 0) {
    return "'" + request.name + "' has nothing to send, because its root, rank " +
           std::to_string(participants.members[static_cast<size_t>(request.root)]) +
           ", has joined (hvd.join()). Broadcast from a rank that has not, or before hvd.join().";
  }
  return "";
}

std::unique_ptr<Transport> TransportAmong(Transport* transport, std::vector<int> ranks) {
  return std::make_unique<SubTransport>(transport, std::move(ranks));
}

}  // namespace tfddl
