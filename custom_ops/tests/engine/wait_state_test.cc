// Conclusions from the wait states of all ranks.
#include "core/watchdog/wait_state.h"

#include "tests/engine/job.h"

namespace tfddl {
namespace {

constexpr int64_t kStill = 10000000;
using Ranks = std::vector<int>;

WaitState Waits(std::vector<std::string> keys, int64_t seconds = 12) {
  WaitState state;
  for (auto& key : keys) state.waiting.push_back({std::move(key), seconds * 1000000, 0, false, ""});
  state.idle_us = seconds * 1000000;
  state.last = "its last collective was 'z' (done) 70 s ago";
  return state;
}

WaitState Joined() {
  WaitState state = Waits({kJoinKey});
  state.waiting[0].joined = true;
  return state;
}

void TestJoined() {
  CHECK(Stuck({Joined(), Waits({"a"}), Waits({"b"})}, 0, kStill) == (Ranks{0, 1, 2}));
  CHECK(Stuck({Joined(), Waits({"a"}), Waits({"b"})}, 1, kStill) == (Ranks{1, 2}));
  CHECK(Stuck({Joined(), Waits({"a"}), Waits({"a", "b"})}, 0, kStill).empty());  // a can run
  CHECK(Stuck({Joined(), Joined(), Waits({})}, 0, kStill).empty());              // rank 2 computes
  CHECK(Stuck({Joined(), Joined()}, 0, kStill).empty());
  CHECK(Stuck({Waits({"a", kJoinKey}), Waits({"b", kJoinKey})}, 0, kStill) ==
        (Ranks{0, 1}));  // each runs first
  const WaitStates ranks = {Joined(), Waits({"a"}), Waits({}), Joined(), std::nullopt};
  CHECK(DescribeMissing(ranks, "a") ==
        "rank 2 has not submitted it; rank 4 does not answer; ranks 0, 3 have joined");
  CHECK(DescribeMissing({Joined(), Waits({"a"})}, "a").empty());
  CHECK(Describe({Joined(), Waits({"a"}), Joined()}) ==
        "ranks 0, 2: in hvd.join() (for 12 s); rank 1: 'a' (for 12 s)");
  const WaitState heard = WaitState::Decode(Joined().Encode(1000));
  CHECK(heard.Joined(0) && !heard.Joined(1) && !WaitState::Decode(Waits({"a"}).Encode(1000)).Joined(0));
}

void TestStuck() {
  CHECK(Stuck({Waits({"a"}), Waits({"b"})}, 0, kStill) == (Ranks{0, 1}));
  CHECK(Stuck({Waits({"a"}), Waits({"a"}), Waits({"b"})}, 0, kStill) == (Ranks{0, 1, 2}));
  CHECK(Stuck({Waits({"a", "b"}), Waits({"b", "c"}), Waits({"a", "c"})}, 0, kStill) == (Ranks{0, 1, 2}));
  CHECK(Stuck({Waits({"a", "b"}), Waits({"b"})}, 0, kStill).empty());  // b can run
  CHECK(Stuck({Waits({"a"}), Waits({})}, 0, kStill).empty());          // rank 1 may be on its way
  CHECK(Stuck({Waits({"a"}), std::nullopt}, 0, kStill).empty());       // not known
  CHECK(Stuck({Waits({"a"}), Waits({"b"}, 9)}, 0, kStill).empty());    // rank 1 was active
  WaitState cut = Waits({"b"});
  cut.left_out = 1;
  CHECK(Stuck({Waits({"a"}), cut}, 0, kStill).empty());  // a may have been left out
}

WaitState WaitsIn(int set, const std::string& key) {
  WaitState state = Waits({key});
  state.waiting[0].set = set;
  return state;
}

void TestStuckInSets() {
  SetDirectory sets;
  sets.Add(1, {1, 2});
  sets.Add(2, {0, 1});
  sets.Add(3, {0, 2});
  // Ranks 1 and 2 are stuck, whatever rank 0 does.
  CHECK(Stuck({Waits({}), WaitsIn(1, "a"), WaitsIn(1, "b")}, 1, kStill, sets) == (Ranks{1, 2}));
  // Each waits in another set: a circle.
  const WaitStates circle = {WaitsIn(2, "a"), WaitsIn(1, "a"), WaitsIn(3, "a")};
  CHECK(Stuck(circle, 0, kStill, sets) == (Ranks{0, 1, 2}));
  // Rank 0 may still submit the request that rank 2 waits for.
  CHECK(Stuck({Waits({}), WaitsIn(1, "a"), WaitsIn(3, "a")}, 1, kStill, sets).empty());
  // One name in two sets is not one collective; in one set it is, and runs.
  CHECK(!Stuck({WaitsIn(2, "a"), Waits({"a"}), Waits({"a"})}, 0, kStill, sets).empty());
  CHECK(Stuck({Waits({}), WaitsIn(1, "a"), WaitsIn(1, "a")}, 1, kStill, sets).empty());
  CHECK(Stuck({Waits({}), WaitsIn(4, "a"), WaitsIn(4, "b")}, 1, kStill, sets).empty());  // not known here yet
  CHECK(DescribeMissing({Waits({}), WaitsIn(1, "a"), Waits({"a"})}, "a", 1, sets) ==
        "rank 2 has not submitted it");
  CHECK(Describe({WaitsIn(1, "a"), Waits({"a"})}, sets) ==
        "rank 0: 'a' of process set 1 [1, 2] (for 12 s); rank 1: 'a' (for 12 s)");
}

void TestDescribe() {
  const WaitStates ranks = {Waits({"a", "b"}), Waits({}), Waits({"a", "b"}, 60), std::nullopt,
                            Waits({"1", "2", "3", "4", "5", "6"})};
  CHECK(Describe(ranks) ==
        "ranks 0, 2: 'a', 'b' (for 60 s); rank 1: waits for nothing; its last collective was 'z' (done) 70 s "
        "ago; "
        "rank 3: no answer (dead, stopped or unreachable); rank 4: '1', '2', '3', '4' and 2 more (for 12 s)");
  CHECK(DescribeMissing(ranks, "a") == "ranks 1, 4 have not submitted it; rank 3 does not answer");
  CHECK(DescribeMissing({Waits({"a"}), Waits({"a"})}, "a").empty());
  WaitState noted = Waits({"a", "b"});
  noted.waiting[1].note = "at the end";
  CHECK(Describe({Waits({"a"}), noted}) ==
        "rank 0: 'a' (for 12 s); rank 1: 'a', 'b' (at the end) (for 12 s)");
  CHECK(HasNote({Waits({"a"}), noted}, {0, 1}) && !HasNote({Waits({"a"}), noted}, {0}));
}

void TestMessage() {
  WaitState sent = Waits({"first", "second", std::string(100, 'x'), "last"});
  sent.waiting[1].note = "at the end";
  sent.leaving = true;
  const WaitState whole = WaitState::Decode(sent.Encode(1000));
  CHECK(whole.waiting.size() == 4 && whole.left_out == 0 && whole.leaving && whole.idle_us == sent.idle_us);
  CHECK(whole.Has("second") && whole.last == sent.last && whole.waiting[3].waited_us == 12000000);
  CHECK(whole.waiting[1].note == "at the end" && whole.waiting[0].note.empty());
  CHECK(WaitState::Decode(WaitsIn(7, "a").Encode(1000)).Has("a", 7));
  const std::string bytes = sent.Encode(216);
  CHECK(bytes.size() <= 216);
  const WaitState cut = WaitState::Decode(bytes);
  CHECK(cut.waiting.size() == 2 && cut.left_out == 2 && cut.Has("second") && !cut.Has("last"));
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestStuck();
  tfddl::TestStuckInSets();
  tfddl::TestJoined();
  tfddl::TestDescribe();
  tfddl::TestMessage();
  std::puts("wait state: ok");
  return 0;
}
