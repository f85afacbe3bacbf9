// The shared-memory transport: random traffic, rings and slots that run out, errors.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tests/check.h"
#include "tests/shm_world.h"
#include "transport/host.h"
#include "transport/memory.h"

namespace tfddl {
namespace {

using Handle = Transport::Handle;

constexpr size_t kLong = 30000;  // several slots

std::vector<char> Pattern(size_t bytes, unsigned seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + seed * 17 + i / 251);
  return data;
}

// Two members that one thread drives in turn, so that the order of events is the test's own.
struct Pair {
  explicit Pair(const ShmGeometry& geometry = SmallGeometry())
      : world(2, geometry), a(world.Join(0)), b(world.Join(1)) {}

  void Finish(Transport* transport, Handle handle) {
    while (!transport->Test(handle)) Turn();
  }
  // Lets both sides do what they can.
  void Turn() {
    if (!idle_a) idle_a = a->Receive(1, kIdleTag, &unused, 1);
    if (!idle_b) idle_b = b->Receive(0, kIdleTag, &unused, 1);
    CHECK(!a->Test(idle_a) && !b->Test(idle_b));
  }

  static constexpr int kIdleTag = 1000000;
  ShmWorld world;
  std::unique_ptr<Transport> a, b;
  Handle idle_a = 0, idle_b = 0;
  char unused = 0;
};

// What a member sends another: the k-th message of a tag, of a size and with bytes that both know.
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

// One member's part in random traffic: posts what it has to send and to receive in an order of its own
// in which only messages of one tag stay in order, and holds views for a while.
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
      // Kept until the end: the queues' own elements are swapped, their messages stay where they are.
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

void TestRandomTraffic(int size) {
  const ShmWorld world(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(world.Join(rank));
  RunMembers(std::move(transports), 300);
}

// Ranks 0 and 2 share a host, so do 1 and 3; the network is the in-memory transport.
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

// A member that does not call in: its ring fills, Send does not block, and all arrives in order.
void TestRingOverflow() {
  Pair pair;
  const int count = 100;
  std::vector<std::vector<char>> sent, received;
  std::vector<Handle> sends, receives;
  for (int i = 0; i < count; ++i) {
    sent.push_back(Pattern(4096, static_cast<unsigned>(i)));
    sends.push_back(pair.a->Send(1, 5, sent.back().data(), 4096));
  }
  CHECK(sends.front() == Transport::kNothing && sends.back() != Transport::kNothing);
  CHECK(pair.a->unsent() && !pair.a->Test(sends.back()));
  for (int i = 0; i < count; ++i) {
    received.emplace_back(4096);
    receives.push_back(pair.b->Receive(0, 5, received.back().data(), 4096));
  }
  for (Handle handle : receives) pair.Finish(pair.b.get(), handle);
  for (Handle handle : sends) pair.Finish(pair.a.get(), handle);
  CHECK(received == sent && !pair.a->unsent());
}

// Long messages that nobody has posted a receive for hold nothing that others need.
void TestUnpostedLongMessages() {
  Pair pair;
  const auto bulk = Pattern(kLong, 1), other = Pattern(kLong, 2), word = Pattern(8, 3);
  std::vector<Handle> sends;
  for (int i = 0; i < 40; ++i) sends.push_back(pair.a->Send(1, 1, bulk.data(), kLong));
  sends.push_back(pair.a->Send(1, 2, other.data(), kLong));
  sends.push_back(pair.a->Send(1, 3, word.data(), 8));
  std::vector<char> got(kLong), got_word(8);
  pair.Finish(pair.b.get(), pair.b->Receive(0, 3, got_word.data(), 8));
  pair.Finish(pair.b.get(), pair.b->Receive(0, 2, got.data(), kLong));
  CHECK(got == other && got_word == word);
  for (int i = 0; i < 40; ++i) {
    pair.Finish(pair.b.get(), pair.b->Receive(0, 1, got.data(), kLong));
    CHECK(got == bulk);
  }
  for (Handle handle : sends) pair.Finish(pair.a.get(), handle);
}

// Views that are never given back leave room for all else; some do lie in the sender's slots.
void TestViewsHeld() {
  Pair pair;
  const auto piece = Pattern(8192, 4), bulk = Pattern(kLong, 5);
  std::vector<std::vector<char>> scratch(10, std::vector<char>(8192));
  std::vector<const void*> views(10);
  std::vector<Handle> sends;
  for (size_t i = 0; i < 10; ++i) {
    sends.push_back(pair.a->Send(1, 1, piece.data(), 8192));
    pair.Finish(pair.b.get(), pair.b->ReceiveView(0, 1, scratch[i].data(), 8192, &views[i]));
    CHECK(std::memcmp(views[i], piece.data(), 8192) == 0);
    CHECK((views[i] == scratch[i].data()) == (i >= SmallGeometry().slots / 2));
  }
  sends.push_back(pair.a->Send(1, 2, bulk.data(), kLong));
  std::vector<char> got(kLong);
  pair.Finish(pair.b.get(), pair.b->Receive(0, 2, got.data(), kLong));
  CHECK(got == bulk);
  for (const void* view : views) pair.b->Release(0, view);
  sends.push_back(pair.a->Send(1, 1, piece.data(), 8192));
  pair.Finish(pair.b.get(), pair.b->ReceiveView(0, 1, scratch[0].data(), 8192, &views[0]));
  CHECK(views[0] != scratch[0].data());
  for (Handle handle : sends) pair.Finish(pair.a.get(), handle);
}

// Whichever side comes first, and whichever side is the longer one.
void TestLengthMismatch(size_t sent, size_t expected, bool receive_first) {
  Pair pair;
  const auto data = Pattern(kLong, 6);
  std::vector<char> got(kLong);
  std::string error;
  try {
    if (receive_first) pair.b->Receive(0, 1, got.data(), expected);
    for (int i = 0; i < 3; ++i) pair.Turn();
    pair.a->Send(1, 1, data.data(), sent);
    for (int i = 0; i < 3; ++i) pair.Turn();
    if (!receive_first) pair.b->Receive(0, 1, got.data(), expected);
    for (int i = 0; i < 3; ++i) pair.Turn();
  } catch (const std::runtime_error& e) {
    error = e.what();
  }
  CHECK(error.find("of " + std::to_string(sent) + " bytes") != std::string::npos);
  CHECK(error.find("receive of " + std::to_string(expected)) != std::string::npos);
}

// After a cancelled receive the next one gets the next message, also when the peer knew of the memory.
void TestCancel(size_t bytes) {
  Pair pair;
  const auto data = Pattern(bytes, 7);
  std::vector<char> never(bytes), got(bytes);
  const Handle cancelled = pair.b->Receive(0, 1, never.data(), bytes);
  for (int i = 0; i < 3; ++i) pair.Turn();
  pair.b->Cancel(cancelled);
  for (int i = 0; i < 3; ++i) pair.Turn();
  const Handle send = pair.a->Send(1, 1, data.data(), bytes);
  pair.Finish(pair.b.get(), pair.b->Receive(0, 1, got.data(), bytes));
  pair.Finish(pair.a.get(), send);
  CHECK(got == data && never == std::vector<char>(bytes));
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {2, 3, 5}) tfddl::TestRandomTraffic(size);
  tfddl::TestTwoHosts();
  tfddl::TestRingOverflow();
  tfddl::TestUnpostedLongMessages();
  tfddl::TestViewsHeld();
  for (bool receive_first : {true, false}) {
    tfddl::TestLengthMismatch(8, 9, receive_first);
    tfddl::TestLengthMismatch(8, 9000, receive_first);
    tfddl::TestLengthMismatch(9000, 8, receive_first);
    tfddl::TestLengthMismatch(9000, 9001, receive_first);
  }
  tfddl::TestCancel(100);
  tfddl::TestCancel(20000);
  std::puts("shm: ok");
  return 0;
}
