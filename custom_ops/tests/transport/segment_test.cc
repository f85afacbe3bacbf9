// The members of a host share memory, or all of them fall back.
#include <sys/statvfs.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "transport/shm_segment.h"

namespace {

uint64_t megabytes = 1 << 20, megabytes_left = 1 << 20;  // the size and free space that statvfs reports

}  // namespace

// Replaces the function of the C library.
extern "C" int fstatvfs(int /*file*/, struct statvfs* system) {
  *system = {};
  system->f_frsize = 1 << 20;
  system->f_blocks = megabytes;
  system->f_bavail = megabytes_left;
  return 0;
}

namespace tfddl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBytes = 100000;

// An allgather between threads.
class Meeting {
 public:
  explicit Meeting(size_t size) : texts_(size) {}
  std::vector<std::string> Gather(size_t rank, const std::string& mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    texts_[rank] = mine;
    const int round = round_;
    if (++arrived_ == texts_.size()) {
      result_ = texts_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, result_;
  size_t arrived_ = 0;
  int round_ = 0;
};

struct Outcome {
  std::vector<ShmSegment> segments;
  std::string why;
};

std::vector<Outcome> ShareAll(const std::vector<ShmOptions>& options) {
  Meeting meeting(options.size());
  std::vector<Outcome> outcomes(options.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < options.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto gather = [&](const std::string& mine) { return meeting.Gather(rank, mine); };
      outcomes[rank].segments = ShareSegments(kBytes, gather, options[rank], &outcomes[rank].why);
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

// Each member reads what another member writes to the segment of the same rank.
void CheckShared(const std::vector<Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    CHECK(outcomes[rank].segments.size() == outcomes.size());
    char* mine = outcomes[rank].segments[rank].get();
    CHECK(mine[0] == 0 && mine[kBytes - 1] == 0);
    std::snprintf(mine + 50000, 40, "rank %zu", rank);
  }
  for (const Outcome& outcome : outcomes) {
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      CHECK(outcome.segments[rank].get() + 50000 == "rank " + std::to_string(rank));
    }
  }
}

size_t OpenFiles() {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) count += entry.exists() ? 1 : 0;
  return count;
}

// The way that all members used, given the options of each.
void TestWays(const fs::path& directory) {
  const ShmOptions both{true, directory.string()}, files{false, directory.string()};
  const std::string missing = directory.string() + "/missing";
  const ShmOptions memfd{true, missing}, none{false, missing};
  const size_t open_files = OpenFiles();

  auto outcomes = ShareAll({both, both, both});
  CheckShared(outcomes);
  CHECK(outcomes[0].why.empty());

  outcomes = ShareAll({both, files, both});  // one member has no memfd, so all use files
  CheckShared(outcomes);
  for (const Outcome& outcome : outcomes) CHECK(outcome.why == "local rank 1: no memfd");

  for (const auto& options : {std::vector{none, both}, {files, memfd}, {none, none}}) {
    for (const Outcome& outcome : ShareAll(options)) {
      CHECK(outcome.segments.empty());
      CHECK(outcome.why.find("no memfd; local rank ") != std::string::npos);
      CHECK(outcome.why.find(missing + "/tfddl-") != std::string::npos);
      CHECK(outcome.why.find(std::strerror(ENOENT)) != std::string::npos);
    }
  }
  CHECK(fs::is_empty(directory));
  CHECK(OpenFiles() == open_files);
}

std::vector<ShmArenas> MakeArenas(const std::vector<ShmOptions>& options) {
  constexpr size_t kArena = size_t{8} << 20;
  Meeting meeting(options.size());
  std::vector<ShmArenas> arenas(options.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < options.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto gather = [&](const std::string& mine) { return meeting.Gather(rank, mine); };
      arenas[rank] = ShareArenas(rank, kArena, gather, options[rank]);
    });
  }
  for (auto& thread : threads) thread.join();
  return arenas;
}

// All members read what one of them writes to a block of an arena; or no member has an arena.
void TestArenas(const std::vector<ShmOptions>& options, bool made) {
  const size_t open_files = OpenFiles();
  {
    const auto arenas = MakeArenas(options);
    for (size_t owner = 0; owner < arenas.size(); ++owner) {
      CHECK(!arenas[owner].mine == !made && arenas[owner].all.empty() == !made);
      if (!made) continue;
      const auto gap = arenas[owner].mine->Allocate(size_t{3} << 20),
                 block = arenas[owner].mine->Allocate(kBytes);
      const uint64_t offset = arenas[owner].mine->Find(block.get());
      for (const ShmArenas& peer : arenas)
        std::snprintf(peer.all[owner].get() + offset, 40, "owner %zu", owner);
      CHECK(block.get() == "owner " + std::to_string(owner));
    }
  }
  CHECK(OpenFiles() == open_files);
}

// Half of the free space of a file system stays free, even if all members commit at the same time.
void TestRoomForOthers(const ShmOptions& files) {
  constexpr size_t kBlock = size_t{2} << 20;
  megabytes_left = 16;
  const auto arenas = MakeArenas({files, files});
  Arena* const arena = arenas[0].mine.get();
  megabytes_left = 11;
  CHECK(!arena->Allocate(kBlock));
  megabytes_left = 12;
  const auto block = arena->Allocate(kBlock);
  CHECK(block);
  megabytes_left = 0;
  CHECK(!arena->Allocate(kBlock));
  megabytes = 0;  // no limit
  CHECK(arena->Allocate(kBlock));
}

// In another process namespace the path of a peer's memory may lead to memory of some other process.
void TestMemoryOfAnotherProcess(const ShmOptions& memfd) {
  const auto gather = [](const std::string& mine) {
    const bool is_address = mine.find("/proc/") == 0 && mine.find(" tfddl-") != std::string::npos;
    return std::vector<std::string>{is_address ? mine + "-of-another" : mine};
  };
  std::string why;
  CHECK(ShareSegments(kBytes, gather, memfd, &why).empty());
  CHECK(why.find("is not the peer's memory") != std::string::npos);
}

}  // namespace
}  // namespace tfddl

int main() {
  char directory[] = "/tmp/tfddl-segment-test-XXXXXX";
  CHECK(mkdtemp(directory));
  tfddl::TestWays(directory);
  const std::string missing = std::string(directory) + "/missing";
  const tfddl::ShmOptions both{true, directory}, files{false, directory}, none{false, missing};
  tfddl::TestArenas({both, both, both}, true);
  tfddl::TestArenas({both, files, both}, true);
  tfddl::TestArenas({both, none}, false);
  tfddl::TestMemoryOfAnotherProcess({true, missing});
  tfddl::TestRoomForOthers(files);
  CHECK(std::filesystem::is_empty(directory));
  std::filesystem::remove_all(directory);
  std::puts("segments: ok");
  return 0;
}
