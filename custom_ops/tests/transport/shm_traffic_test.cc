// The shared-memory transport under random traffic, alone and together with a network.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tests/check.h"
#include "tests/transport/shm_world.h"
#include "transport/host.h"
#include "transport/memory.h"

namespace tfddl {
namespace {

using Handle = Transport::Handle;

// The k-th message of a tag from one member to another. Both sides compute its size and bytes.
struct Message {
  int tag;
  std::vector<char> data;
};

std::vector<Message> Traffic(int from, int to, int count) {
  constexpr size_t kSizes[] = {0, 1, 100, 4096, 4097, 8192, 8193, kLong};
  std::mt19937 random(static_cast<unsigned>(from * 100 + to));
  std::vector<Message> messages;
  for (int i = 0; i < count; ++i) {
    const size_t bytes = kSizes[random() % 8];
    messages.push_back({static_cast<int>(random() % 7), Pattern(bytes, random() % 100)});
  }
  return messages;
}

// One member in random traffic. It posts its sends and receives in random order, except that messages of one
// tag stay in order, and holds views for a while.
class Member {
 public:
  Member(std::unique_ptr<Transport> transport, int count) : transport_(std::move(transport)) {
    const int me = transport_->rank();
    for (int peer = 0; peer < transport_->size(); ++peer) {
      if (peer == me) continue;
      Add(peer, true, Traffic(me, peer, count));
      Add(peer, false, Traffic(peer, me, count));
    }
    random_.seed(static_cast<unsigned>(me));
  }

  void Run() {
    size_t open = queues_.size();
    while (open > 0 || !flights_.empty()) {
      if (open > 0 && random_() % 3 != 0) {
        const size_t pick = random_() % open;
        Post(&queues_[pick]);
        if (queues_[pick].next == queues_[pick].messages.size()) std::swap(queues_[pick], queues_[--open]);
      }
      TestSome(open == 0);
    }
    for (const auto& view : views_) transport_->Release(view.first, view.second);
  }

 private:
  struct Queue {  // one peer, direction and tag
    int peer;
    bool send;
    std::vector<Message> messages;
    size_t next = 0;
  };
  struct Flight {
    Handle handle;
    int peer;
    bool view;
    std::vector<char> memory;
    const void* data;
    const std::vector<char>* expected;  // null for a send
  };

  void Add(int peer, bool send, std::vector<Message> messages) {
    for (int tag = 0; tag < 7; ++tag) {
      Queue queue{peer, send, {}};
      for (auto& message : messages) {
        if (message.tag == tag) queue.messages.push_back(message);
      }
      if (!queue.messages.empty()) queues_.push_back(std::move(queue));
    }
  }

  void Post(Queue* queue) {
    Message& message = queue->messages[queue->next++];
    auto flight = std::make_unique<Flight>();
    flight->peer = queue->peer;
    flight->view = !queue->send && random_() % 2;
    if (queue->send) {
      flight->handle = transport_->Send(queue->peer, message.tag, message.data.data(), message.data.size());
      flight->expected = nullptr;
    } else {
      // Valid until the end: swaps of queues do not move their messages.
      expected_.push_back(std::make_unique<std::vector<char>>(message.data));
      flight->expected = expected_.back().get();
      flight->memory.resize(message.data.size() + 1);
      flight->data = flight->memory.data();
      flight->handle = flight->view ? transport_->ReceiveView(queue->peer, message.tag, flight->memory.data(),
                                                              message.data.size(), &flight->data)
                                    : transport_->Receive(queue->peer, message.tag, flight->memory.data(),
                                                          message.data.size());
    }
    flights_.push_back(std::move(flight));
  }

  void TestSome(bool all) {
    for (size_t i = 0; i < flights_.size();) {
      if ((all || random_() % 4 == 0) && transport_->Test(flights_[i]->handle)) {
        Check(std::move(flights_[i]));
        flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    if (flights_.size() > 50) std::this_thread::yield();
  }

  void Check(std::unique_ptr<Flight> flight) {
    if (!flight->expected) return;
    const auto& expected = *flight->expected;
    CHECK(expected.empty() || std::memcmp(flight->data, expected.data(), expected.size()) == 0);
    if (!flight->view) return;
    views_.emplace_back(flight->peer, flight->data);
    kept_.push_back(std::move(flight));
    if (views_.size() < 20) return;
    const size_t pick = random_() % views_.size();
    transport_->Release(views_[pick].first, views_[pick].second);
    views_.erase(views_.begin() + static_cast<std::ptrdiff_t>(pick));
  }

  std::unique_ptr<Transport> transport_;
  std::mt19937 random_;
  std::vector<Queue> queues_;
  std::vector<std::unique_ptr<Flight>> flights_, kept_;
  std::vector<std::unique_ptr<std::vector<char>>> expected_;
  std::vector<std::pair<int, const void*>> views_;
};

void RunMembers(std::vector<std::unique_ptr<Transport>> transports, int count) {
  std::vector<std::unique_ptr<Member>> members;
  std::vector<std::thread> threads;
  for (auto& transport : transports) members.push_back(std::make_unique<Member>(std::move(transport), count));
  for (auto& member : members) threads.emplace_back([&] { member->Run(); });
  for (auto& thread : threads) thread.join();
}

void TestRandomTraffic(int size, const ShmGeometry& geometry = SmallGeometry()) {
  const ShmWorld world(size, geometry);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(world.Join(rank));
  RunMembers(std::move(transports), 300);
}

// Ranks 0 and 2 share a host, and so do ranks 1 and 3. The network is the in-memory transport.
void TestTwoHosts() {
  const ShmWorld hosts[2] = {ShmWorld(2), ShmWorld(2)};
  MemoryWorld network(4, 3);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<int> local = rank % 2 ? std::vector<int>{-1, 0, -1, 1} : std::vector<int>{0, -1, 1, -1};
    transports.push_back(MakeHostTransport(hosts[rank % 2].Join(rank / 2), network.Join(rank), local));
    CHECK(transports.back()->rank() == rank && transports.back()->size() == 4);
  }
  RunMembers(std::move(transports), 300);
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {2, 3, 5}) tfddl::TestRandomTraffic(size);
  // The channels of hosts with 8, 64 and 100 members.
  for (int size : {8, 64, 100}) tfddl::TestRandomTraffic(3, tfddl::ShmGeometry::For(size));
  tfddl::TestTwoHosts();
  std::puts("shm traffic: ok");
  return 0;
}
