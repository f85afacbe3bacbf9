#include "core/process/rank_query.h"

#include <memory>

#include "core/process/process.h"

namespace tfddl {
namespace {

constexpr int kNotInitialized = -1;
constexpr int kUnknownSet = -3;

}  // namespace

Status QueryRank(const std::string& query, int set, int* answer) {
  const ProcessSets sets = CurrentSets();
  const auto it = sets.entries.find(set);
  if (query == "included") {
    *answer = sets.entries.empty()       ? kNotInitialized
              : it == sets.entries.end() ? kUnknownSet
                                         : !!it->second.engine;
    return Status();
  }
  if (query == "size" && it != sets.entries.end()) {
    *answer = static_cast<int>(it->second.ranks.size());
    return Status();
  }
  std::shared_ptr<Engine> engine;
  const Status found = FindEngine(set, &engine);
  if (!found.ok()) return found;
  const LocalRank local = CurrentLocalRank();
  *answer = query == "rank" ? engine->rank() : query == "local_rank" ? local.rank : local.size;
  return Status();
}

}  // namespace tfddl
