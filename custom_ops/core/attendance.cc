#include "core/attendance.h"

#include <algorithm>

namespace tfddl {
namespace {

class PartOfTransport : public Transport {
 public:
  PartOfTransport(Transport* whole, const Attendance& attendance) : whole_(whole), attendance_(attendance) {}

  int rank() const override { return attendance_.PlaceOf(whole_->rank()); }
  int size() const override { return static_cast<int>(attendance_.ranks.size()); }
  int tags() const override { return whole_->tags(); }
  size_t piece_bytes() const override { return whole_->piece_bytes(); }

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
  char* Reach(int peer, uint64_t place, size_t bytes) override {
    return whole_->Reach(Rank(peer), place, bytes);
  }
  bool Test(Handle handle) override { return whole_->Test(handle); }
  void Cancel(Handle handle) override { whole_->Cancel(handle); }
  bool unsent() override { return whole_->unsent(); }

 private:
  int Rank(int place) const { return attendance_.ranks[static_cast<size_t>(place)]; }

  Transport* whole_;
  const Attendance& attendance_;
};

}  // namespace

int Attendance::PlaceOf(int rank) const {
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return it != ranks.end() && *it == rank ? static_cast<int>(it - ranks.begin()) : -1;
}

std::string Objection(const Request& request, const Attendance& attendance) {
  if (request.kind == Kind::kBroadcast && attendance.PlaceOf(request.root) < 0) {
    return "'" + request.name + "' has nothing to send, because its root, rank " +
           std::to_string(attendance.members[static_cast<size_t>(request.root)]) +
           ", has joined (hvd.join()). Broadcast from a rank that has not, or before hvd.join().";
  }
  return "";
}

std::unique_ptr<Transport> TransportAmong(Transport* transport, const Attendance& attendance) {
  return std::make_unique<PartOfTransport>(transport, attendance);
}

}  // namespace tfddl
