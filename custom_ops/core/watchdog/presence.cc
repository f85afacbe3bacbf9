#include "core/watchdog/presence.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

namespace tfddl {
namespace {

// The process namespace of this process, in which its number is valid: "4026531836".
std::string ProcessNamespace() {
  char link[64] = {};
  if (readlink("/proc/self/ns/pid", link, sizeof(link) - 1) < 0) return "0";
  std::string digits;
  for (const char c : std::string(link)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  return digits.empty() ? "0" : digits;
}

// The letter of a process's state in /proc ('T': stopped); 0 when there is no such process.
char State(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_ends = line.rfind(") ");
  return name_ends == std::string::npos || name_ends + 2 >= line.size() ? '\0' : line[name_ends + 2];
}

}  // namespace

Presence::Presence(std::string name, int rank) : name_(std::move(name)), rank_(rank), socket_(Bound()) {}

Presence::~Presence() {
  if (socket_ >= 0) close(socket_);
}

void Presence::Step() {
  const int before = socket_;
  ++step_;
  socket_ = Bound();
  if (before >= 0) close(before);  // after it, so that this rank is seen all the time
}

int Presence::Bound() const {
  if (name_.empty()) return -1;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string text = name_ + "/" + std::to_string(rank_) + "/" + std::to_string(getpid()) + "/" +
                           ProcessNamespace() + "/" + std::to_string(step_);
  if (text.size() + 1 > sizeof(address.sun_path)) return -1;
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
  close(fd);
  return -1;
}

std::map<int, Sighting> Presence::Seen() const {
  std::map<int, Sighting> ranks;
  if (name_.empty()) return ranks;
  const std::string start = "@" + name_ + "/";  // how /proc shows an abstract name
  const std::string own_namespace = ProcessNamespace();
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const size_t at = line.rfind(start);
    if (at == std::string::npos) continue;
    int rank = 0;
    Sighting found;
    char space[32] = {};
    if (std::sscanf(line.c_str() + at + start.size(), "%d/%d/%31[0-9]/%d", &rank, &found.pid, space,
                    &found.step) != 4) {
      continue;
    }
    if (space == own_namespace) {
      const char state = State(found.pid);
      if (state == '\0') continue;  // a process that it has forked still holds the socket
      found.stopped = state == 'T' || state == 't';
    }
    const auto known = ranks.find(rank);
    if (known == ranks.end() || known->second.step < found.step) ranks[rank] = found;
  }
  return ranks;
}

std::string InWords(const std::map<int, Sighting>& ranks) {
  std::string words = ranks.size() == 1 ? "rank " : "ranks ";
  for (const auto& [rank, sighting] : ranks) {
    if (rank != ranks.begin()->first) words += ", ";
    words += std::to_string(rank) + " (process " + std::to_string(sighting.pid) + ")";
  }
  return words;
}

std::string Missing(const std::map<int, Sighting>& seen, int size) {
  std::string missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!seen.count(rank)) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  return missing;
}

std::map<int, Sighting> HoldingUp(const std::map<int, Sighting>& ranks) {
  std::map<int, Sighting> stopped, behind;
  int most = 0;
  for (const auto& [rank, sighting] : ranks) most = std::max(most, sighting.step);
  for (const auto& [rank, sighting] : ranks) {
    if (sighting.stopped) stopped.emplace(rank, sighting);
    if (sighting.step < most) behind.emplace(rank, sighting);
  }
  return stopped.empty() ? behind : stopped;
}

}  // namespace tfddl
