#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/double/control_internal.h"

namespace fake {
namespace {

struct NamedSetting {
  const char* name;
  long initial;
  std::atomic<long> value;
};

struct Planned {
  int code;
  int calls_left;
};

// Never destroyed, because the threads of streams live until the process ends.
struct State {
  std::mutex mutex;
  std::map<std::string, long> calls;
  std::map<std::string, Planned> planned;
  std::vector<std::string> faults;
  std::vector<std::string> warnings;
};

std::array<NamedSetting, 12> settings{{{"devices", 8, {}},
                                       {"driver_version", 12080, {}},
                                       {"nccl_version", 22707, {}},
                                       {"stream_delay_us", 0, {}},
                                       {"enqueue_delay_us", 0, {}},
                                       {"enqueue_hold", 0, {}},
                                       {"fail_rank", -1, {}},
                                       {"fail_at", 0, {}},
                                       {"fail_code", 6, {}},
                                       {"abort_hold", 0, {}},
                                       {"stuck_ms", 30000, {}},
                                       {"keep_faults", 0, {}}}};

long Initial(const NamedSetting& setting) {
  std::string variable = std::string("TFDDL_FAKE_") + setting.name;
  for (char& letter : variable) letter = static_cast<char>(std::toupper(letter));
  const char* text = std::getenv(variable.c_str());
  return text && *text ? std::strtol(text, nullptr, 10) : setting.initial;
}

void RestoreSettings() {
  for (NamedSetting& setting : settings) setting.value = Initial(setting);
}

void FailOnFaults() {
  char text[4096];
  if (!Setting("keep_faults") && tfddl_fake_take_faults(text, sizeof text)) {
    std::fprintf(stderr, "GPU double: faults that no test expected:\n%s", text);
    std::fflush(stderr);
    _exit(86);
  }
}

State& GetState() {
  static State* state = [] {
    std::atexit(FailOnFaults);
    return new State;
  }();
  return *state;
}

NamedSetting& Find(const char* name) {
  static const bool read = (RestoreSettings(), true);
  (void)read;
  for (NamedSetting& setting : settings)
    if (!std::strcmp(setting.name, name)) return setting;
  std::fprintf(stderr, "GPU double: no setting is called \"%s\"\n", name);
  std::abort();
}

void Append(std::vector<std::string> State::* list, const char* kind, const std::string& text) {
  std::fprintf(stderr, "GPU double: %s: %s\n", kind, text.c_str());
  std::lock_guard<std::mutex> lock(GetState().mutex);
  (GetState().*list).push_back(text);
}

int Take(std::vector<std::string> State::* list, char* text, size_t bytes) {
  std::vector<std::string> taken;
  {
    std::lock_guard<std::mutex> lock(GetState().mutex);
    taken.swap(GetState().*list);
  }
  std::string all;
  for (const std::string& line : taken) all += line + "\n";
  if (text && bytes) std::snprintf(text, bytes, "%s", all.c_str());
  return static_cast<int>(taken.size());
}

}  // namespace

int Enter(const char* function) {
  State& state = GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  ++state.calls[function];
  const auto planned = state.planned.find(function);
  if (planned == state.planned.end() || --planned->second.calls_left > 0) return 0;
  const int code = planned->second.code;
  state.planned.erase(planned);
  return code;
}

void Fault(const std::string& text) { Append(&State::faults, "fault", text); }
void Warn(const std::string& text) { Append(&State::warnings, "warning", text); }
long Setting(const char* name) { return Find(name).value; }

void SleepMicroseconds(long microseconds) {
  if (microseconds > 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace fake

void tfddl_fake_set(const char* name, long value) { fake::Find(name).value = value; }

long tfddl_fake_get(const char* name) { return fake::Setting(name); }

long tfddl_fake_calls(const char* function) {
  fake::State& state = fake::GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.calls.find(function);
  return found == state.calls.end() ? 0 : found->second;
}

void tfddl_fake_fail_call(const char* function, int code, int nth) {
  fake::State& state = fake::GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.planned[function] = {code, nth};
}

int tfddl_fake_take_faults(char* text, size_t bytes) { return fake::Take(&fake::State::faults, text, bytes); }

int tfddl_fake_take_warnings(char* text, size_t bytes) {
  return fake::Take(&fake::State::warnings, text, bytes);
}

void tfddl_fake_reset() {
  fake::Find("devices");
  fake::RestoreSettings();
  fake::State& state = fake::GetState();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.calls.clear();
  state.planned.clear();
  state.faults.clear();
  state.warnings.clear();
}
