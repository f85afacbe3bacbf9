// Reads a timeline's file.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/trace/timeline.h"
#include "tests/check.h"

namespace tfddl {

// A request in a file.
struct Seen {
  std::string name, arguments, error;
  std::vector<std::string> phases;
  std::vector<int64_t> times;  // when it began, when each phase began, when it ended
  bool ended = false;
};

// The text behind `"key": ` up to the next of `ends`; empty: there is none.
inline std::string After(const std::string& line, const std::string& key, const char* ends = ",}") {
  const std::string mark = "\"" + key + "\": ";
  const size_t begin = line.find(mark);
  if (begin == std::string::npos) return "";
  const size_t start = begin + mark.size();
  if (line[start] == '"') return line.substr(start + 1, line.find('"', start + 1) - start - 1);
  return line.substr(start, line.find_first_of(ends, start) - start);
}

// A temporary file for a timeline.
class TimelineFile {
 public:
  TimelineFile() {
    char name[] = "/tmp/timeline_testXXXXXX";
    descriptor = mkstemp(name);
    CHECK(descriptor >= 0);
    path_ = name;
  }
  ~TimelineFile() { unlink(path_.c_str()); }

  std::vector<std::string> Lines() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  // Returns the requests in the file. Checks its frame, that rows nest, and that times do not go back.
  std::vector<Seen> Requests() const {
    const auto lines = Lines();
    CHECK(lines.size() >= 3 && lines.front() == "[" && lines.back() == "]");
    CHECK(After(lines[lines.size() - 2], "name") == "tfddl_end" && lines[lines.size() - 2].back() == '}');
    std::vector<Seen> seen;
    std::map<std::string, size_t> open;  // by row
    std::map<std::string, int> depth;
    int64_t last = 0;
    for (size_t i = 1; i + 2 < lines.size(); ++i) {
      CHECK(lines[i].substr(lines[i].size() - 2) == "},");
      const std::string phase = After(lines[i], "ph"), row = After(lines[i], "tid");
      if (phase != "B" && phase != "E") continue;
      const int64_t time = std::stoll(After(lines[i], "ts"));
      CHECK(time >= last);
      last = time;
      if (phase == "B" && ++depth[row] == 1) {
        open[row] = seen.size();
        seen.push_back({After(lines[i], "name"), lines[i], "", {}, {}, false});
      } else if (phase == "B") {
        seen[open[row]].phases.push_back(After(lines[i], "name"));
      } else if (--depth[row] == 0) {
        seen[open[row]].ended = true;
        seen[open[row]].error = After(lines[i], "error");
      }
      CHECK(depth[row] >= 0 && depth[row] <= 2);
      if (phase == "B" || depth[row] == 0) seen[open[row]].times.push_back(time);
    }
    return seen;
  }

  int descriptor;

 private:
  std::string path_;
};

inline std::shared_ptr<Timeline> Started(int file, int rank, int size, bool marks = false) {
  auto timeline = std::make_shared<Timeline>();
  CHECK(timeline->Start(file, rank, size, marks));
  CHECK(!timeline->Start(-1, rank, size, marks));
  return timeline;
}

}  // namespace tfddl
