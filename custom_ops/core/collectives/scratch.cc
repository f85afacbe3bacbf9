#include <algorithm>

#include "core/collectives/collective.h"

namespace tfddl {
namespace {

// Enough for a few gradient buckets. More would only hold memory.
constexpr size_t kMaxHeldBytes = size_t{256} << 20;

}  // namespace

std::vector<char> ScratchPool::Take(size_t bytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(), [&](auto& m) { return m.size() >= bytes; });
  if (fits == free_.end()) return std::vector<char>(bytes);
  std::vector<char> memory = std::move(*fits);
  free_.erase(fits);
  held_ -= memory.size();
  return memory;
}

void ScratchPool::Give(std::vector<char> memory) {
  if (memory.empty() || held_ + memory.size() > kMaxHeldBytes) return;
  held_ += memory.size();
  free_.push_back(std::move(memory));
  std::sort(free_.begin(), free_.end(), [](auto& a, auto& b) { return a.size() < b.size(); });
}

}  // namespace tfddl
