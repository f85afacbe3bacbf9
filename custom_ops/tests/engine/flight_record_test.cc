// The flight recorder's ring, and the file that is written of it.
#include "core/trace/flight_record.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/recorder.h"
#include "tests/check.h"

namespace tfddl {
namespace {

namespace fs = std::filesystem;

Request Named(const std::string& name) {
  Request request;
  request.name = name;
  request.signature = std::string(600, 's');
  request.buffers = {{nullptr, nullptr, 10}, {nullptr, nullptr, 5}};
  return request;
}

void TestRing() {
  Recorder recorder;
  CHECK(recorder.Operations().empty() && !recorder.Last());
  const uint64_t first = recorder.Submitted(Named("first"));
  recorder.Started(first, 7);
  CHECK(recorder.Last()->type == std::string("start"));
  recorder.Ended(first, true);
  CHECK(recorder.Last()->name == "first" && recorder.Last()->type == std::string("done"));
  const Operation one = recorder.Operations().at(0);
  CHECK(one.number == 1 && one.ticket == 7 && one.bytes == 60 && one.signature.size() == 500);
  CHECK(one.submitted_us <= one.started_us && one.started_us <= one.ended_us && !one.failed);

  for (int i = 0; i < 1024; ++i) recorder.Submitted(Named("n" + std::to_string(i)));
  recorder.Started(first, 99);  // its place has been taken
  recorder.Ended(first, false);
  const auto operations = recorder.Operations();
  CHECK(operations.size() == 1024 && operations.front().name == "n0" && operations.back().name == "n1023");
  CHECK(operations.back().number == 1025 && operations.front().ticket == -1 && !operations.front().failed);
  CHECK(recorder.Last()->name == "n1023");

  recorder.Ended(3, false);
  CHECK(recorder.Last()->name == "n1" && recorder.Last()->type == std::string("error"));
}

std::string Read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool Holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Waits for the writer, which the signal wakes.
std::string Wait(const fs::path& path) {
  for (int tries = 0; tries < 10000 && !fs::exists(path); ++tries) usleep(1000);
  return Read(path);
}

void TestFile() {
  auto& record = FlightRecord::OfProcess();
  std::string error;
  CHECK(record.Write("too early", "", &error).empty() && error.empty());
  CHECK(record.WriteStall("too early").empty());
  char name[] = "/tmp/tfddl-record-XXXXXX";
  const fs::path directory = mkdtemp(name);
  record.Start({directory / "a" / "b", false, {}});
  record.SetContents([] { return std::string("\"operations\": []"); });
  record.SetJob("j\"ob", 3, 5);
  CHECK(record.Write("why\nthen", "", &error) == directory / "a" / "b" / "rank3.json" && error.empty());
  const std::string text = Read(directory / "a" / "b" / "rank3.json");
  CHECK(Holds(text, "\"job\": \"j\\\"ob\", \"rank\": 3, \"size\": 5"));
  CHECK(Holds(text, "\"reason\": \"why\\nthen\", \"operations\": [], \"stacks\": \"\"}"));

  // Only a stall is recorded, unless the user has asked for more.
  fs::remove_all(directory / "a");
  CHECK(!record.WriteFailure("f") && fs::is_empty(directory));
  CHECK(Holds(record.WriteStall("s"), "tfddl analyze " + (directory / "a" / "b").string()));
  record.Start({directory / "c", true, {}});
  CHECK(record.WriteStall("again").empty() && record.WriteFailure("again") && !fs::exists(directory / "c"));
  record.SetJob("the next job", 3, 5);
  CHECK(record.WriteFailure("f") && Holds(Read(directory / "c" / "rank3.json"), "\"reason\": \"f\""));

  std::ofstream(directory / "file") << "no folder";
  CHECK(record.Write("r", directory / "file", &error).empty() && Holds(error, "rank3.json: "));
  CHECK(record.Write("r", "/dev/full", &error).empty() && !error.empty());
  fs::remove_all(directory / "c");

  CHECK(record.WriteOn(SIGUSR1, "SIGUSR1") && record.WriteOn(SIGUSR1, "SIGUSR1"));
  kill(getpid(), SIGUSR1);
  CHECK(Holds(Wait(directory / "c" / "rank3.json"), "\"reason\": \"signal SIGUSR1\""));
  signal(SIGUSR2, SIG_IGN);
  CHECK(!record.WriteOn(SIGUSR2, "SIGUSR2") && !record.WriteOn(SIGKILL, "SIGKILL"));

  // A process that this one forked ends by the signal, as it would without a record.
  fs::remove_all(directory / "c");
  const pid_t forked = fork();
  if (forked == 0) {
    alarm(20);
    raise(SIGUSR1);
    for (;;) pause();
  }
  int status = 0;
  waitpid(forked, &status, 0);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1 && !fs::exists(directory / "c"));

  // It ignores the signal if the program has since chosen to. (A handler would be no better test: the thread
  // sanitizer runs none in a process that a process with threads has forked.)
  signal(SIGUSR1, SIG_IGN);
  const pid_t ignoring = fork();
  if (ignoring == 0) {
    raise(SIGUSR1);
    _exit(7);
  }
  waitpid(ignoring, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  fs::remove_all(directory);
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestRing();
  tfddl::TestFile();
}
