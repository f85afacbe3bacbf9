#include "core/watchdog/wait_state.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/recorder.h"
#include "base/request.h"
#include "base/wire.h"

namespace tfddl {
namespace {

constexpr size_t kNamesShown = 4;
constexpr char kSilent[] = "no answer (dead, stopped or unreachable)";

std::string Listed(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

std::string Names(const WaitState& rank, const SetDirectory& sets) {
  std::string text;
  for (size_t i = 0; i < std::min(rank.waiting.size(), kNamesShown); ++i) {
    const LiveRequest& request = rank.waiting[i];
    text += i ? ", " : "";
    if (request.joined) {
      text += "in hvd.join()" + (request.set ? " of " + sets.Name(request.set) : "");
      continue;
    }
    text +=
        DescribeKey(request.key, request.set, sets) + (request.note.empty() ? "" : " (" + request.note + ")");
  }
  const size_t more = rank.waiting.size() + rank.left_out - std::min(rank.waiting.size(), kNamesShown);
  return more ? text + " and " + std::to_string(more) + " more" : text;
}

}  // namespace

std::string DescribeKey(const std::string& key, int set, const SetDirectory& sets) {
  return "'" + key + "'" + (set == 0 ? "" : " of " + sets.Name(set));
}

bool WaitState::Has(const std::string& key, int set) const {
  return std::any_of(waiting.begin(), waiting.end(),
                     [&](auto& request) { return request.set == set && request.key == key; });
}

bool WaitState::Joined(int set) const {
  return std::any_of(waiting.begin(), waiting.end(),
                     [&](auto& request) { return request.set == set && request.joined; });
}

std::string WaitState::Encode(size_t limit) const {
  constexpr size_t kHead = 4 * sizeof(int64_t);
  std::string words = last.substr(0, limit - std::min(limit, kHead + sizeof(int64_t)));
  size_t room = limit - std::min(limit, kHead + sizeof(int64_t) + words.size());
  size_t count = 0;
  for (; count < waiting.size(); ++count) {
    const size_t bytes = 4 * sizeof(int64_t) + waiting[count].key.size() + waiting[count].note.size();
    if (bytes > room) break;
    room -= bytes;
  }
  WireWriter writer;
  writer.Int(idle_us);
  writer.Int(leaving);
  writer.Int(static_cast<int64_t>(waiting.size() - count + left_out));
  writer.Int(static_cast<int64_t>(count));
  writer.String(words);
  for (size_t i = 0; i < count; ++i) {
    writer.String(waiting[i].key);
    writer.Int(waiting[i].waited_us);
    writer.Int(waiting[i].set << 1 | waiting[i].joined);
    writer.String(waiting[i].note);
  }
  return writer.bytes();
}

WaitState WaitState::Decode(const std::string& bytes) {
  WireReader reader(bytes);
  WaitState state;
  state.idle_us = reader.Int();
  state.leaving = reader.Int() != 0;
  state.left_out = static_cast<size_t>(reader.Int());
  const int64_t count = reader.Int();
  state.last = reader.String();
  for (int64_t i = 0; i < count; ++i) {
    LiveRequest request;
    request.key = reader.String();
    request.waited_us = reader.Int();
    const int64_t set = reader.Int();
    request.set = static_cast<int>(set >> 1);
    request.joined = (set & 1) != 0;
    request.note = reader.String();
    state.waiting.push_back(std::move(request));
  }
  return state;
}

std::vector<int> Stuck(const WaitStates& ranks, int rank, int64_t idle_us, const SetDirectory& sets) {
  std::vector<int> found = {rank};
  for (size_t next = 0; next < found.size(); ++next) {
    const auto& one = ranks[static_cast<size_t>(found[next])];
    // A list that is cut short may hide a request that all have.
    if (!one || one->waiting.empty() || one->left_out || one->idle_us < idle_us) return {};
    for (const LiveRequest& request : one->waiting) {
      if (!sets.Has(request.set)) return {};                     // the set is just being added
      if (request.key == kJoinKey && !request.joined) continue;  // the join waits for earlier requests
      bool complete = true;
      for (int member = 0; member < static_cast<int>(ranks.size()); ++member) {
        if (!sets.Includes(request.set, member)) continue;
        const auto& other = ranks[static_cast<size_t>(member)];
        if (other && other->Joined(request.set)) continue;  // no rank waits for it
        complete = complete && other && other->Has(request.key, request.set);
        if (std::find(found.begin(), found.end(), member) == found.end()) found.push_back(member);
      }
      if (complete) return {};
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool HasNote(const WaitStates& ranks, const std::vector<int>& of) {
  return std::any_of(of.begin(), of.end(), [&](int rank) {
    const auto& one = ranks[static_cast<size_t>(rank)];
    return one && std::any_of(one->waiting.begin(), one->waiting.end(),
                              [](auto& request) { return !request.note.empty(); });
  });
}

std::string Describe(const WaitStates& ranks, const SetDirectory& sets) {
  std::map<std::string, std::vector<size_t>> groups;
  std::vector<std::string> order;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& state = ranks[rank];
    const std::string key = !state                   ? kSilent
                            : state->waiting.empty() ? "waits for nothing; " + state->last
                                                     : Names(*state, sets);
    const std::string text = key + (state && state->leaving ? " (in hvd.shutdown())" : "");
    auto& group = groups[text];
    if (group.empty()) order.push_back(text);
    group.push_back(rank);
  }
  std::string line;
  for (const std::string& text : order) {
    int64_t longest = 0;
    for (size_t rank : groups[text]) {
      if (ranks[rank] && !ranks[rank]->waiting.empty()) {
        longest = std::max(longest, ranks[rank]->waiting.front().waited_us);
      }
    }
    line += (line.empty() ? "" : "; ") + Listed(groups[text]) + ": " + text;
    if (longest) line += " (for " + Seconds(longest) + ")";
  }
  return line;
}

std::string DescribeMissing(const WaitStates& ranks, const std::string& key, int set,
                            const SetDirectory& sets) {
  std::vector<size_t> missing, silent, joined;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!sets.Includes(set, static_cast<int>(rank))) continue;
    if (!ranks[rank]) {
      silent.push_back(rank);
    } else if (ranks[rank]->Joined(set)) {
      joined.push_back(rank);
    } else if (!ranks[rank]->Has(key, set)) {
      missing.push_back(rank);
    }
  }
  const auto say = [](const std::vector<size_t>& found, const char* one, const char* many, const char* rest) {
    return Listed(found) + (found.size() == 1 ? one : many) + rest;
  };
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back(say(missing, " has", " have", " not submitted it"));
  if (!silent.empty()) parts.push_back(say(silent, " does", " do", " not answer"));
  if (!joined.empty() && !parts.empty()) parts.push_back(say(joined, " has", " have", " joined"));
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

}  // namespace tfddl
