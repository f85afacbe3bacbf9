// Engines of one host whose results lie in their arenas or elsewhere.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/job.h"
#include "transport/arena.h"

namespace tfddl {

constexpr size_t kArena = size_t{8} << 20;

// The memory of a rank's results.
enum class Home { kArena, kArenaInPlace, kElsewhere };

// The memory of one result.
struct Memory {
  Memory(Engine* engine, Home home, size_t bytes) {
    if (home != Home::kElsewhere) block = engine->arena()->Allocate(bytes);
    CHECK(block || home == Home::kElsewhere || bytes == 0);
    if (!block) own.resize(bytes);
  }
  char* data() { return block ? block.get() : own.data(); }

  std::shared_ptr<char> block;
  std::vector<char> own;
};

// Values whose sums depend on the order of additions.
inline float Rough(size_t rank, size_t i) {
  return static_cast<float>(std::sin(static_cast<double>(i * 7 + rank * 1000003))) * 3.3f;
}

inline std::vector<float> RoughValues(size_t rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Rough(rank, i);
  return values;
}

inline bool Equal(const void* a, const std::vector<float>& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

}  // namespace tfddl
