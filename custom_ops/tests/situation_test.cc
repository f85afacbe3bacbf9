// What the watchdogs make of what all ranks wait for, and whether a process still exists.
#include "core/situation.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/liveness.h"
#include "tests/job.h"

namespace tfddl {
namespace {

Situation Waits(std::vector<std::string> keys, int64_t seconds = 12) {
  Situation situation;
  for (auto& key : keys) situation.waiting.push_back({std::move(key), seconds * 1000000, ""});
  situation.still_us = seconds * 1000000;
  situation.last = "its last collective was 'z' (done) 70 s ago";
  return situation;
}

void TestWaitForDifferent() {
  constexpr int64_t kStill = 10000000;
  CHECK(WaitForDifferent({Waits({"a"}), Waits({"b"})}, kStill));
  CHECK(WaitForDifferent({Waits({"a"}), Waits({"a"}), Waits({"b"})}, kStill));
  CHECK(WaitForDifferent({Waits({"a", "b"}), Waits({"b", "c"}), Waits({"a", "c"})}, kStill));
  CHECK(!WaitForDifferent({Waits({"a", "b"}), Waits({"b"})}, kStill));  // b can run
  CHECK(!WaitForDifferent({Waits({"a"}), Waits({})}, kStill));          // rank 1 may be on its way
  CHECK(!WaitForDifferent({Waits({"a"}), std::nullopt}, kStill));       // nobody knows
  CHECK(!WaitForDifferent({Waits({"a"}), Waits({"b"}, 9)}, kStill));    // rank 1 was active
  Situation cut = Waits({"b"});
  cut.left_out = 1;
  CHECK(!WaitForDifferent({Waits({"a"}), cut}, kStill));  // a may be what has been left out
}

void TestDescribe() {
  const Situations ranks = {Waits({"a", "b"}), Waits({}), Waits({"a", "b"}, 60), std::nullopt,
                            Waits({"1", "2", "3", "4", "5", "6"})};
  CHECK(Describe(ranks) ==
        "ranks 0, 2: 'a', 'b' (for 60 s); rank 1: waits for nothing; its last collective was 'z' (done) 70 s "
        "ago; "
        "rank 3: no answer (dead, stopped or unreachable); rank 4: '1', '2', '3', '4' and 2 more (for 12 s)");
  CHECK(DescribeMissing(ranks, "a") == "ranks 1, 4 have not submitted it; rank 3 does not answer");
  CHECK(DescribeMissing({Waits({"a"}), Waits({"a"})}, "a").empty());
  Situation noted = Waits({"a", "b"});
  noted.waiting[1].note = "at the end";
  CHECK(Describe({Waits({"a"}), noted}) ==
        "rank 0: 'a' (for 12 s); rank 1: 'a', 'b' (at the end) (for 12 s)");
  CHECK(HasNote({Waits({"a"}), noted}) && !HasNote({Waits({"a"}), std::nullopt}));
}

void TestLetter() {
  Situation sent = Waits({"first", "second", std::string(100, 'x'), "last"});
  sent.waiting[1].note = "at the end";
  sent.leaving = true;
  const Situation whole = Situation::Decode(sent.Encode(1000));
  CHECK(whole.waiting.size() == 4 && whole.left_out == 0 && whole.leaving && whole.still_us == sent.still_us);
  CHECK(whole.Has("second") && whole.last == sent.last && whole.waiting[3].waited_us == 12000000);
  CHECK(whole.waiting[1].note == "at the end" && whole.waiting[0].note.empty());
  const std::string bytes = sent.Encode(200);
  CHECK(bytes.size() <= 200);
  const Situation cut = Situation::Decode(bytes);
  CHECK(cut.waiting.size() == 2 && cut.left_out == 2 && cut.Has("second") && !cut.Has("last"));
}

void TestGone() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const std::string mine = ProcessId::Mine().value().Encode();
    if (write(ends[1], mine.data(), mine.size()) < 0) _exit(1);
    for (;;) pause();
  }
  char bytes[1000];
  const ssize_t length = read(ends[0], bytes, sizeof bytes);
  CHECK(length > 0);
  ProcessId id = ProcessId::Decode(std::string(bytes, static_cast<size_t>(length)));
  CHECK(id.pid == child && id.place == ProcessId::Mine().value().place);
  CHECK(!id.Gone());
  ++id.started;  // an earlier process of this number
  CHECK(id.Gone());
  --id.started;
  CHECK(kill(child, SIGKILL) == 0);
  siginfo_t info;
  CHECK(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(id.Gone());  // nobody has waited for it
  CHECK(waitpid(child, nullptr, 0) == child);
  CHECK(id.Gone());
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestWaitForDifferent();
  tfddl::TestDescribe();
  tfddl::TestLetter();
  tfddl::TestGone();
  std::puts("situation: ok");
  return 0;
}
