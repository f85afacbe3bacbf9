#include "core/process/place.h"

#include <memory>

#include "core/process/process.h"

namespace tfddl {
namespace {

constexpr int kNotInitialized = -1;
constexpr int kUnknownSet = -3;

}  // namespace

Status FindPlace(const std::string& what, int set, int* answer) {
  const ProcessSets sets = CurrentSets();
  const auto it = sets.entries.find(set);
  if (what == "included") {
    *answer = sets.entries.empty()       ? kNotInitialized
              : it == sets.entries.end() ? kUnknownSet
                                         : !!it->second.engine;
    return Status();
  }
  if (what == "size" && it != sets.entries.end()) {
    *answer = static_cast<int>(it->second.ranks.size());
    return Status();
  }
  std::shared_ptr<Engine> engine;
  const Status found = FindEngine(set, &engine);
  if (!found.ok()) return found;
  const LocalPlace local = CurrentLocalPlace();
  *answer = what == "rank" ? engine->rank() : what == "local_rank" ? local.rank : local.size;
  return Status();
}

}  // namespace tfddl
