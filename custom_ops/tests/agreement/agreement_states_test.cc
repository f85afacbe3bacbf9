// Explores each interleaving of small jobs over the engine's Agreement and Vote: submits at any time,
// messages late and in any order that one FIFO per pair of members allows, members that enter and leave a
// vote at any time. The Spin models in custom_ops/model check the rules; this test checks the code.

#include <cstdio>
#include <exception>
#include <unordered_set>
#include <vector>

#include "tests/agreement/agreement_world.h"
#include "tests/sanitized.h"

namespace tfddl_test {
namespace {

const char* const kKinds[] = {"submit", "enter", "deliver", "conclude", "leave", "notice", "join"};

class Explorer {
 public:
  explicit Explorer(const Job& job) : job_(job) {}

  // Prints the verdict and, of a failure, the actions that led to it.
  bool Run() {
    try {
      Visit(World(&job_));
      std::printf("%-56s %8zu states  ok\n", job_.label.c_str(), seen_.size());
      return true;
    } catch (const std::exception& error) {
      std::printf("%-56s %8zu states  FAILED: %s\n", job_.label.c_str(), seen_.size(), error.what());
      for (const Action& action : path_) {
        std::printf("    rank %d: %s (%d, %d)\n", action.rank, kKinds[action.kind], action.with,
                    action.signature);
      }
      return false;
    }
  }

 private:
  void Visit(const World& world) {
    if (!seen_.insert(world.Fingerprint()).second) return;
    const std::vector<Action> actions = world.Actions();
    bool quiet = true;
    for (const Action& action : actions) {
      quiet &= job_.leavers != 0 && (action.kind == kSubmit || action.kind == kJoin);
    }
    if (quiet) world.CheckEnd();
    for (const Action& action : actions) {
      path_.push_back(action);
      World next = world;
      next.Take(action);
      Visit(next);
      path_.pop_back();
    }
  }

  const Job job_;
  std::unordered_set<uint64_t> seen_;
  std::vector<Action> path_;
};

// label, members, names, instances, signatures, capacity of the plan
std::vector<Job> Jobs() {
  std::vector<Job> jobs = {
      Job{"2 members, 1 name x 3, 2 signatures", 2, 1, 3, 2, 8},
      Job{"3 members, 1 name x 2, 2 signatures", 3, 1, 2, 2, 8},
      Job{"3 members, 2 names x 1", 3, 2, 1, 1, 1},
      Job{"4 members, 1 name x 2", 4, 1, 2, 1, 8},
      Job{"5 members, 1 name x 1", 5, 1, 1, 1, 8},
      Job{"3 members, nothing submitted, first leaves, votes only", 3, 0, 0, 1, 8}.Leavers(1).VotesOnly(),
      Job{"3 members, nothing submitted, second leaves, votes only", 3, 0, 0, 1, 8}.Leavers(2).VotesOnly(),
      Job{"5 members, nothing submitted, second leaves, votes only", 5, 0, 0, 1, 8}.Leavers(2).VotesOnly(),
      Job{"2 members, 1 name x 3, 2 signatures, joins", 2, 1, 3, 2, 8}.Rounds(1),
      Job{"2 members, 1 name x 2, two rounds of joins", 2, 1, 2, 1, 8}.Rounds(2),
      Job{"2 members, 2 names x 1, joins, evictions", 2, 2, 1, 1, 1}.Rounds(1),
      Job{"2 members, 1 name x 1, disputed joins", 2, 1, 1, 1, 8}.Rounds(2).Disputes(),
      Job{"3 members, 1 name x 1, joins", 3, 1, 1, 1, 8}.Rounds(1),
      Job{"3 members, nothing submitted, joins", 3, 0, 0, 1, 8}.Rounds(2),
      Job{"2 members, 1 name x 1, joins, one leaves", 2, 1, 1, 1, 8}.Rounds(1).Leavers(2),
  };
  if (kSanitized) return jobs;
  // More than 10,000 states each.
  jobs.push_back(Job{"2 members, 2 names x 2, evictions", 2, 2, 2, 1, 1});
  jobs.push_back(Job{"2 members, 3 names x 1, evictions", 2, 3, 1, 1, 1});
  jobs.push_back(Job{"2 members, 1 name x 2, both leave", 2, 1, 2, 2, 8}.Leavers(3));
  jobs.push_back(Job{"2 members, 2 names x 1, both leave, votes only", 2, 2, 1, 1, 8}.Leavers(3).VotesOnly());
  jobs.push_back(Job{"3 members, 1 name x 1, last leaves", 3, 1, 1, 1, 8}.Leavers(4));
  jobs.push_back(Job{"3 members, 1 name x 1, all leave, votes only", 3, 1, 1, 2, 8}.Leavers(7).VotesOnly());
  jobs.push_back(Job{"3 members, 1 name x 2, disputed joins", 3, 1, 2, 1, 8}.Rounds(1).Disputes().Prompt());
  jobs.push_back(Job{"2 members, 2 names x 2, 2 signatures, evictions", 2, 2, 2, 2, 1}.Steps().Prompt());
  jobs.push_back(Job{"3 members, 2 names x 1, 2 signatures", 3, 2, 1, 2, 8}.Prompt());
  jobs.push_back(Job{"3 members, 2 names x 2, evictions", 3, 2, 2, 1, 1}.Prompt());
  jobs.push_back(Job{"2 members, 2 names x 1, one leaves", 2, 2, 1, 2, 8}.Leavers(1));
  jobs.push_back(Job{"3 members, 1 name x 2, 2 signatures, joins", 3, 1, 2, 2, 8}.Rounds(1).Prompt());
  return jobs;
}

}  // namespace
}  // namespace tfddl_test

int main() {
  bool ok = true;
  for (const auto& job : tfddl_test::Jobs()) ok &= tfddl_test::Explorer(job).Run();
  return ok ? 0 : 1;
}
