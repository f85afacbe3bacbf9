// The shared-memory transport: full rings and slots, cancelled receives, errors.
#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/check.h"
#include "tests/transport/shm_world.h"

namespace tfddl {
namespace {

using Handle = Transport::Handle;

// Two members that one thread drives in turn, so that the test decides the order of events.
struct Pair {
  explicit Pair(const ShmGeometry& geometry = SmallGeometry())
      : world(2, geometry), a(world.Join(0)), b(world.Join(1)) {}

  void Finish(Transport* transport, Handle handle) {
    while (!transport->Test(handle)) Turn();
  }
  // Lets both members make progress.
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

// If a member makes no calls, its ring fills, Send does not block, and all messages arrive in order.
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

// A transfer that completes at once counts as progress: the member must not look idle.
void TestProgress() {
  Pair pair;
  const auto data = Pattern(kPiece, 3);
  const uint64_t before = pair.a->completed();
  CHECK(pair.a->Send(1, 5, data.data(), 16) == Transport::kNothing);
  CHECK(pair.a->completed() == before + 1);
  CHECK(pair.a->Send(1, 5, data.data(), kPiece) == Transport::kNothing);
  CHECK(pair.a->completed() == before + 2);
}

// unsent() sends control messages once there is room.
void TestUnsent() {
  Pair pair;
  const auto bulk = Pattern(kLong, 8);
  std::vector<char> got(kLong);
  const Handle send = pair.a->Send(1, 1, bulk.data(), kLong);
  const size_t room = SmallGeometry().ring_bytes / sizeof(ShmRecord) - 1;
  for (size_t i = 0; i < room; ++i) CHECK(pair.a->Send(1, 2, nullptr, 0) == Transport::kNothing);
  const Handle receive = pair.b->Receive(0, 1, got.data(), kLong);
  CHECK(!pair.b->unsent());  // the kReady is sent
  CHECK(pair.a->Test(send) && pair.a->unsent());
  CHECK(!pair.b->Test(receive));  // but now its ring is empty
  CHECK(!pair.a->unsent());
  CHECK(pair.b->Test(receive) && got == bulk);
}

// Messages without a receive block no other messages, whether they are eager or wait at their sender. Each
// receive gets its own message.
void TestUnpostedMessages(size_t bytes, size_t leave) {
  Pair pair;
  const auto other = Pattern(bytes, 2), bulk = Pattern(kLong, 4), word = Pattern(8, 3);
  std::vector<std::vector<char>> sent;
  std::vector<Handle> sends;
  for (unsigned i = 0; i < 40; ++i) sent.push_back(Pattern(bytes, 10 + i));
  for (size_t i = 0; i < 40; ++i) {
    sends.push_back(pair.a->Send(1, 1, sent[i].data(), bytes));
    CHECK((sends.back() == Transport::kNothing) == (i < leave));
  }
  sends.push_back(pair.a->Send(1, 2, other.data(), bytes));
  sends.push_back(pair.a->Send(1, 3, word.data(), 8));
  sends.push_back(pair.a->Send(1, 4, bulk.data(), kLong));
  std::vector<char> got(bytes), got_bulk(kLong), got_word(8);
  pair.Finish(pair.b.get(), pair.b->Receive(0, 3, got_word.data(), 8));
  pair.Finish(pair.b.get(), pair.b->Receive(0, 4, got_bulk.data(), kLong));
  pair.Finish(pair.b.get(), pair.b->Receive(0, 2, got.data(), bytes));
  CHECK(got == other && got_bulk == bulk && got_word == word);
  for (const auto& message : sent) {
    pair.Finish(pair.b.get(), pair.b->Receive(0, 1, got.data(), bytes));
    CHECK(got == message);
  }
  for (Handle handle : sends) pair.Finish(pair.a.get(), handle);
  // Eager messages leave no state behind that a later message could match.
  const auto receive = pair.b->Receive(0, 1, got.data(), bytes);
  const auto send = pair.a->Send(1, 1, other.data(), bytes);
  pair.Finish(pair.b.get(), receive);
  pair.Finish(pair.a.get(), send);
  CHECK(got == other);
}

// An eager message stays in its slot until Release(), and its receiver reads it there.
void TestEagerView() {
  Pair pair;
  const auto piece = Pattern(kPiece, 1);
  std::vector<char> scratch(kPiece);
  for (int i = 0; i < 9; ++i) {
    CHECK(pair.a->Send(1, 1, piece.data(), kPiece) == Transport::kNothing);
    pair.Turn();
    const void* view = nullptr;
    pair.Finish(pair.b.get(), pair.b->ReceiveView(0, 1, scratch.data(), kPiece, &view));
    CHECK(view != scratch.data() && std::memcmp(view, piece.data(), kPiece) == 0);
    pair.b->Release(0, view);
  }
}

// Views that are never released leave slots for other messages. Some views do lie in the sender's slots.
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

// Messages and receives of different lengths fail, whichever comes first and whichever is longer.
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

// After a cancelled receive, the next receive gets the next message, even if the peer has seen the kReady.
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

// The eager message leaves before the kReady and the kWithdraw arrive.
void TestCancelEager() {
  Pair pair;
  const auto first = Pattern(kPiece, 1), second = Pattern(kPiece, 2);
  std::vector<char> never(kPiece), got(kPiece);
  const Handle cancelled = pair.b->Receive(0, 1, never.data(), kPiece);
  CHECK(pair.a->Send(1, 1, first.data(), kPiece) == Transport::kNothing);
  pair.b->Cancel(cancelled);
  for (const auto* data : {&first, &second}) {
    const Handle send = data == &second ? pair.a->Send(1, 1, data->data(), kPiece) : Transport::kNothing;
    pair.Finish(pair.b.get(), pair.b->Receive(0, 1, got.data(), kPiece));
    pair.Finish(pair.a.get(), send);
    CHECK(got == *data);
    for (int i = 0; i < 3; ++i) pair.Turn();
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestRingOverflow();
  tfddl::TestUnsent();
  tfddl::TestProgress();
  tfddl::TestUnpostedMessages(tfddl::kLong, 0);
  tfddl::TestUnpostedMessages(tfddl::kPiece, tfddl::SmallGeometry().slots / 4);
  tfddl::TestEagerView();
  tfddl::TestViewsHeld();
  for (bool receive_first : {true, false}) {
    tfddl::TestLengthMismatch(8, 9, receive_first);
    tfddl::TestLengthMismatch(8, 9000, receive_first);
    tfddl::TestLengthMismatch(6000, 7000, receive_first);
    tfddl::TestLengthMismatch(9000, 8, receive_first);
    tfddl::TestLengthMismatch(9000, 9001, receive_first);
  }
  tfddl::TestCancel(100);
  tfddl::TestCancel(6000);
  tfddl::TestCancel(20000);
  tfddl::TestCancelEager();
  std::puts("shm: ok");
  return 0;
}
