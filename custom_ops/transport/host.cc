#include "transport/host.h"

#include <algorithm>
#include <utility>

namespace tfddl {
namespace {

class HostTransport : public Transport {
 public:
  HostTransport(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far, std::vector<int> local)
      : near_(std::move(near)), far_(std::move(far)), local_(std::move(local)) {}

  int rank() const override { return far_->rank(); }
  int size() const override { return far_->size(); }
  int tags() const override { return std::min(near_->tags(), far_->tags()); }
  // The same on all hosts, whatever memory they have.
  size_t piece_bytes() const override { return far_->piece_bytes(); }
  bool moves_by_itself() const override { return near_->moves_by_itself() || far_->moves_by_itself(); }

  Handle Send(int peer, int tag, const void* data, size_t bytes) override {
    const Route route = To(peer);
    return Mark(route.near, route.transport->Send(route.peer, tag, data, bytes));
  }

  Handle Receive(int peer, int tag, void* data, size_t bytes) override {
    const Route route = To(peer);
    return Mark(route.near, route.transport->Receive(route.peer, tag, data, bytes));
  }

  Handle ReceiveView(int peer, int tag, void* scratch, size_t bytes, const void** data) override {
    const Route route = To(peer);
    return Mark(route.near, route.transport->ReceiveView(route.peer, tag, scratch, bytes, data));
  }

  void Release(int peer, const void* data) override {
    const Route route = To(peer);
    route.transport->Release(route.peer, data);
  }

  std::shared_ptr<Arena> arena() const override { return near_->arena(); }
  char* ArenaOf(int peer) const override {
    const Route route = To(peer);
    return route.transport->ArenaOf(route.peer);
  }
  char* Reach(int peer, uint64_t offset, size_t bytes) override {
    const Route route = To(peer);
    return route.transport->Reach(route.peer, offset, bytes);
  }

  bool Test(Handle handle) override {
    if (handle == kNothing) return true;
    if (!Of(handle)->Test(handle / 2)) return false;
    CountCompleted();
    return true;
  }

  void Cancel(Handle handle) override {
    if (handle != kNothing) Of(handle)->Cancel(handle / 2);
  }

  bool unsent() override { return near_->unsent() || far_->unsent(); }

 private:
  struct Route {
    Transport* transport;
    int peer;
    bool near;
  };

  Route To(int peer) const {
    const int local = local_.at(static_cast<size_t>(peer));
    return local < 0 ? Route{far_.get(), peer, false} : Route{near_.get(), local, true};
  }

  // The lowest bit of a handle is 1 if the handle belongs to near_.
  static Handle Mark(bool near, Handle handle) {
    return handle == kNothing ? kNothing : 2 * handle + (near ? 1 : 0);
  }
  Transport* Of(Handle handle) const { return handle % 2 ? near_.get() : far_.get(); }

  std::unique_ptr<Transport> near_, far_;
  std::vector<int> local_;
};

}  // namespace

std::unique_ptr<Transport> MakeHostTransport(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far,
                                             std::vector<int> local) {
  return std::make_unique<HostTransport>(std::move(near), std::move(far), std::move(local));
}

}  // namespace tfddl
