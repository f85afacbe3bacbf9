#include "base/set_directory.h"

#include <algorithm>

namespace tfddl {

bool SetDirectory::Includes(int set, int rank) const {
  if (set == 0) return true;
  const auto it = ranks_.find(set);
  return it != ranks_.end() && std::binary_search(it->second.begin(), it->second.end(), rank);
}

std::string SetDirectory::Name(int set) const {
  if (set == 0) return "";
  const auto it = ranks_.find(set);
  return it == ranks_.end() ? "process set " + std::to_string(set) : NameOfSet(set, it->second);
}

std::string NameOfSet(int set, const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "process set " + std::to_string(set) + " [" + text + "]";
}

}  // namespace tfddl
