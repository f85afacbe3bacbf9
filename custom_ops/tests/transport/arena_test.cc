// Blocks of an arena: their offsets, a full arena, the lifetime of the memory.
#include "transport/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"

namespace tfddl {
namespace {

constexpr size_t kMega = size_t{1} << 20;

struct Fixture {
  explicit Fixture(size_t bytes, size_t limit = SIZE_MAX) {
    memory = std::shared_ptr<char>(static_cast<char*>(std::aligned_alloc(4096, bytes)), [this](char* data) {
      std::free(data);
      freed = true;
    });
    arena = std::make_shared<Arena>(memory, bytes, [this, limit](size_t begin, size_t end) {
      if (end > limit) return false;
      commits.emplace_back(begin, end);
      return true;
    });
  }
  uint64_t OffsetOf(const std::shared_ptr<char>& block) const { return arena->Find(block.get()); }

  std::shared_ptr<char> memory;
  std::shared_ptr<Arena> arena;
  std::vector<std::pair<size_t, size_t>> commits;
  bool freed = false;
};

void TestOffsets() {
  Fixture f(kMega);
  auto a = f.arena->Allocate(1), b = f.arena->Allocate(65), c = f.arena->Allocate(64);
  CHECK(f.OffsetOf(a) == 0 && f.OffsetOf(b) == 64 && f.OffsetOf(c) == 192);
  CHECK(f.arena->Find(f.memory.get() + kMega - 1) == kMega - 1);
  CHECK(f.arena->Find(f.memory.get() + kMega) == Arena::kNowhere);
  CHECK(f.arena->Find(&f) == Arena::kNowhere && f.arena->Find(nullptr) == Arena::kNowhere);
  b.reset();
  CHECK(f.OffsetOf(f.arena->Allocate(129)) == 256);  // too large for the gap; freed at once
  b = f.arena->Allocate(128);
  CHECK(f.OffsetOf(b) == 64);
}

// Whatever the order of freeing, the free ranges merge into one.
void TestGaps() {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Fixture f(kMega);
    std::vector<std::shared_ptr<char>> blocks;
    while (auto block = f.arena->Allocate(1 + blocks.size() * 300)) blocks.push_back(std::move(block));
    CHECK(blocks.size() > 50);
    std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(seed));
    while (!blocks.empty()) blocks.pop_back();
    CHECK(f.OffsetOf(f.arena->Allocate(kMega)) == 0);
  }
}

void TestFull() {
  Fixture f(kMega);
  CHECK(!f.arena->Allocate(0) && !f.arena->Allocate(kMega + 1) && !f.arena->Allocate(SIZE_MAX));
  CHECK(!f.arena->Allocate(kMega / 2 + 1, kMega / 2));
  auto half = f.arena->Allocate(kMega / 2, kMega / 2);
  CHECK(half && !f.arena->Allocate(1, kMega / 2));
  auto rest = f.arena->Allocate(kMega / 2);
  CHECK(rest && !f.arena->Allocate(1));
  half.reset();
  CHECK(f.arena->Allocate(1));
}

// The arena commits memory as it fills, each part once. Without memory there is no block.
void TestCommit() {
  Fixture f(9 * kMega, 6 * kMega);
  auto a = f.arena->Allocate(kMega);
  auto b = f.arena->Allocate(kMega);
  auto c = f.arena->Allocate(3 * kMega);
  CHECK(f.commits == (std::vector<std::pair<size_t, size_t>>{{0, 2 * kMega}, {2 * kMega, 6 * kMega}}));
  CHECK(!f.arena->Allocate(2 * kMega));
  a.reset();
  CHECK(f.OffsetOf(f.arena->Allocate(kMega)) == 0 && f.commits.size() == 2);
}

// A tensor may outlive the job.
void TestLife() {
  Fixture f(kMega);
  auto block = f.arena->Allocate(1000);
  f.arena.reset();
  f.memory.reset();
  CHECK(!f.freed);
  std::memset(block.get(), 1, 1000);
  block.reset();
  CHECK(f.freed);
}

// TensorFlow's threads allocate and free results while the engine's thread allocates blocks for packing.
void TestThreads() {
  Fixture f(kMega);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&f, number] {
      std::minstd_rand random(number + 1);
      std::vector<std::pair<std::shared_ptr<char>, size_t>> blocks;
      for (int i = 0; i < 3000; ++i) {
        const size_t bytes = 1 + random() % 60000;
        auto block = f.arena->Allocate(bytes);
        if (block) {
          std::memset(block.get(), static_cast<int>(number), bytes);
          blocks.emplace_back(std::move(block), bytes);
        }
        if (blocks.empty() || (block && random() % 2)) continue;
        const auto pick = static_cast<std::ptrdiff_t>(random() % blocks.size());
        const auto& [data, length] = blocks[static_cast<size_t>(pick)];
        for (size_t k = 0; k < length; ++k) CHECK(data.get()[k] == static_cast<char>(number));
        blocks.erase(blocks.begin() + pick);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(f.OffsetOf(f.arena->Allocate(kMega)) == 0);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestOffsets();
  tfddl::TestGaps();
  tfddl::TestFull();
  tfddl::TestCommit();
  tfddl::TestLife();
  tfddl::TestThreads();
  std::puts("arena: ok");
  return 0;
}
