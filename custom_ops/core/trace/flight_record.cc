#include "core/trace/flight_record.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>
#include <utility>

#include "base/host_name.h"
#include "base/json.h"
#include "base/recorder.h"

namespace tfddl {
namespace {

constexpr auto kWriteLimit = std::chrono::seconds(5);
constexpr int kGilMillis = 1000;  // a thread that runs Python gives the GIL away after 5 ms
constexpr uint64_t kOrdered = 1;
constexpr uint64_t kSignalled = uint64_t{1} << 32;

// For the signal handler.
std::atomic<int> wake_file{-1};
std::atomic<int> handled{0};

void OnSignal(int) {
  const int saved = errno;
  [[maybe_unused]] const auto count = write(wake_file, &kSignalled, sizeof(kSignalled));
  errno = saved;
}

// A process that this one forks has no writer, and gets what it would get without tfddl. The program may have
// set a handler of its own since.
void AfterFork() {
  struct sigaction found;
  if (sigaction(handled, nullptr, &found) == 0 && found.sa_handler == OnSignal) signal(handled, SIG_DFL);
}

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string ReadAll(int file) {
  std::string text;
  char part[4096];
  ssize_t count;
  while ((count = pread(file, part, sizeof(part), static_cast<off_t>(text.size()))) > 0) {
    text.append(part, static_cast<size_t>(count));
  }
  return text;
}

bool AskPython(const PythonStacks& python) {
  constexpr uint64_t kOnce = 1;
  pollfd done = {python.done, POLLIN, 0};
  uint64_t late;  // the answer to an earlier question
  while (poll(&done, 1, 0) > 0 && read(python.done, &late, sizeof(late)) > 0) continue;
  if (write(python.ask, &kOnce, sizeof(kOnce)) < 0) return false;
  return poll(&done, 1, kGilMillis) > 0;
}

// The handler writes in this thread, and has returned when pthread_kill() returns.
std::string StacksBySignal(const PythonStacks& python) {
  struct sigaction found;
  if (sigaction(python.signal, nullptr, &found) != 0 || found.sa_handler == SIG_DFL) return "";
  if (ftruncate(python.signal_file, 0) != 0 || lseek(python.signal_file, 0, SEEK_SET) != 0) return "";
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, python.signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  pthread_kill(pthread_self(), python.signal);
  return ReadAll(python.signal_file);
}

}  // namespace

struct FlightRecord::Order {
  std::string reason, directory;
  std::promise<std::pair<std::string, std::string>> done;  // path and error
};

FlightRecord& FlightRecord::OfProcess() {
  static auto* const record = new FlightRecord;
  return *record;
}

void FlightRecord::Start(FlightRecordOptions options) {
  std::lock_guard<std::mutex> lock(mutex_);
  options_ = std::move(options);
  if (wake_ >= 0) return;
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ >= 0) std::thread([this] { Loop(); }).detach();
}

bool FlightRecord::WriteOn(int number, const std::string& name) {
  struct sigaction found;
  if (sigaction(number, nullptr, &found) != 0) return false;
  if (found.sa_handler == OnSignal) return true;
  if (found.sa_handler != SIG_DFL) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  wake_file = wake_;
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  if (sigaction(number, &action, nullptr) != 0) return false;
  handled = number;
  signal_name_ = name;
  static const int once = pthread_atfork(nullptr, nullptr, AfterFork);
  return once == 0;
}

void FlightRecord::SetJob(std::string job, int rank, int size) {
  std::lock_guard<std::mutex> lock(mutex_);
  end_written_ = end_written_ && job == job_;
  job_ = std::move(job);
  rank_ = rank;
  size_ = size;
}

void FlightRecord::SetContents(std::function<std::string()> contents) {
  std::lock_guard<std::mutex> lock(mutex_);
  contents_ = std::move(contents);
}

std::string FlightRecord::Write(const std::string& reason, const std::string& directory, std::string* error) {
  auto order = std::make_shared<Order>();
  order->reason = reason;
  auto done = order->done.get_future();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (wake_ < 0) return "";
    order->directory = directory.empty() ? options_.directory : directory;
    orders_.push_back(order);
    if (write(wake_, &kOrdered, sizeof(kOrdered)) < 0) {
      *error = std::strerror(errno);
      return "";
    }
  }
  if (done.wait_for(kWriteLimit) != std::future_status::ready) {
    *error = order->directory + " does not answer";
    return "";
  }
  auto result = done.get();
  *error = std::move(result.second);
  return std::move(result.first);
}

std::string FlightRecord::WriteStall(const std::string& reason) {
  std::lock_guard<std::mutex> one(stall_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(end_written_, true)) return "";
  }
  std::string error;
  const std::string path = Write(reason, "", &error);
  if (!error.empty()) {
    std::fprintf(
        stderr,
        "tfddl: the flight record was not written; set TFDDL_DUMP_DIR to a folder that can be written: %s\n",
        error.c_str());
  }
  if (path.empty()) return "";
  return " What each rank did last: tfddl analyze " + path.substr(0, path.rfind('/'));
}

bool FlightRecord::WriteFailure(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!options_.at_every_failure) return false;
  }
  WriteStall(reason);
  return true;
}

void FlightRecord::Loop() {
  prctl(PR_SET_NAME, "tfddl-record");
  for (;;) {
    uint64_t events;
    if (read(wake_, &events, sizeof(events)) != sizeof(events)) continue;
    std::vector<std::shared_ptr<Order>> orders;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      orders.swap(orders_);
    }
    if (events >= kSignalled) {
      auto order = std::make_shared<Order>();
      {
        std::lock_guard<std::mutex> lock(mutex_);
        order->reason = "signal " + signal_name_;
        order->directory = options_.directory;
      }
      Run(order.get());
      const auto [path, error] = order->done.get_future().get();
      std::fprintf(
          stderr, "tfddl: %s%s\n",
          path.empty()
              ? "the flight record was not written; set TFDDL_DUMP_DIR to a folder that can be written: "
              : "wrote ",
          (path.empty() ? error : path).c_str());
    }
    for (const auto& order : orders) Run(order.get());
  }
}

// A reader never sees half a record: the file gets its name when it is whole.
void FlightRecord::Run(Order* order) {
  namespace fs = std::filesystem;
  const std::string json = Json(order->reason);
  int rank;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    rank = rank_;
  }
  std::error_code problem;
  fs::create_directories(order->directory, problem);
  const fs::path path = fs::path(order->directory) / ("rank" + std::to_string(rank) + ".json");
  const fs::path part = path.string() + "." + std::to_string(getpid()) + ".part";
  errno = 0;
  {
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    file << json;
    file.close();
    if (!file && !problem) problem = std::error_code(errno ? errno : EIO, std::generic_category());
  }
  if (!problem) fs::rename(part, path, problem);
  if (problem) {
    std::error_code ignored;
    fs::remove(part, ignored);
    order->done.set_value({"", path.string() + ": " + problem.message()});
  } else {
    order->done.set_value({path.string(), ""});
  }
}

std::string FlightRecord::Json(const std::string& reason) {
  const std::string stacks = Stacks();
  std::function<std::string()> contents;
  std::string job;
  int rank, size;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    contents = contents_;
    job = job_;
    rank = rank_;
    size = size_;
  }
  return "{\"version\": 1, \"job\": " + Quote(job) + ", \"rank\": " + std::to_string(rank) +
         ", \"size\": " + std::to_string(size) + ", \"host\": " + Quote(HostName()) +
         ", \"pid\": " + std::to_string(getpid()) + ", \"written\": " + std::to_string(UnixSeconds()) +
         ", \"now_us\": " + std::to_string(NowMicros()) + ", \"reason\": " + Quote(reason, true) +
         (contents ? ", " + contents() : "") + ", \"stacks\": " + Quote(stacks, true) + "}\n";
}

std::string FlightRecord::Stacks() {
  PythonStacks python;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    python = options_.stacks;
  }
  if (python.ask < 0) return "";
  return AskPython(python) ? ReadAll(python.file) : StacksBySignal(python);
}

}  // namespace tfddl
