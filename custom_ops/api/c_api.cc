#include "api/c_api.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/engine/gather.h"
#include "core/process/flight_contents.h"
#include "core/process/process.h"
#include "core/trace/flight_record.h"
#include "core/trace/timeline.h"
#include "core/watchdog/init_watchdog.h"

namespace {

std::string& Text() {
  thread_local std::string text;
  return text;
}

std::atomic<int> forked_code{0};

std::unique_ptr<tfddl::InitWatchdog>& Waiting() {
  static auto* waiting = new std::unique_ptr<tfddl::InitWatchdog>;
  return *waiting;
}

}  // namespace

namespace tfddl {
void SetLastError(const std::string& text) { Text() = text; }
}  // namespace tfddl

const char* tfddl_last_error(void) { return Text().c_str(); }

void tfddl_wait_begins(const char* call, const char* presence, int rank, int size, int local_size,
                       double warning_s, double limit_s) {
  const tfddl::InitWatchdogOptions options{call, presence, rank, size, local_size, warning_s, limit_s};
  Waiting() = std::make_unique<tfddl::InitWatchdog>(options);
}

void tfddl_wait_step(void) {
  if (Waiting()) Waiting()->Step();
}

void tfddl_wait_ends(void) { Waiting().reset(); }

const char* tfddl_gather(const char* name, const char* mine) {
  std::shared_ptr<tfddl::Engine> engine;
  const auto found = tfddl::FindEngine(0, &engine);
  try {
    if (!found.ok()) throw std::runtime_error(found.message());
    const auto texts = tfddl::GatherTexts(engine.get(), name, mine);
    Text().clear();
    for (const auto& text : texts) Text() += text + "\n";
    return Text().c_str();
  } catch (const std::exception& error) {
    tfddl::SetLastError(error.what());
    return nullptr;
  }
}

const char* tfddl_set_in_flight(int set) {
  std::shared_ptr<tfddl::Engine> engine;
  Text().clear();
  if (!tfddl::FindEngine(set, &engine).ok()) return Text().c_str();
  for (const auto& request : engine->Waiting()) Text() += (Text().empty() ? "'" : ", '") + request.key + "'";
  return Text().c_str();
}

int tfddl_remove_set(int set, double limit_s) { return tfddl::RemoveSet(set, limit_s) ? 0 : -1; }

void tfddl_drop_set(int set) { tfddl::DropSet(set); }

void tfddl_set_local(int local_rank, int local_size) { tfddl::SetLocalRank({local_rank, local_size}); }

int tfddl_share_gpus(void) {
  const tfddl::Status status = tfddl::ShareGpus();
  if (!status.ok()) tfddl::SetLastError(status.message());
  return status.ok() ? 0 : -1;
}

int tfddl_shutdown(double limit_s) {
  bool clean = true;
  if (!tfddl::StopProcess(limit_s, &clean)) return 0;
  return clean ? 1 : 2;
}

void tfddl_set_forked_code(int code) { forked_code = code; }

void tfddl_leave_forked(void) {
  std::fflush(nullptr);
  _exit(forked_code);
}

void tfddl_note(int set, const char* key, const char* note) {
  std::shared_ptr<tfddl::Engine> engine;
  if (tfddl::FindEngine(set, &engine).ok()) engine->Note(key, note);
}

const char* tfddl_failure(void) {
  Text().clear();
  for (const auto& [set, entry] : tfddl::CurrentSets().entries) {
    if (entry.engine && Text().empty()) Text() = entry.engine->failure().value_or("");
  }
  return Text().c_str();
}

const char* tfddl_stats(void) {
  std::string json;
  for (const auto& [name, value] : tfddl::AllCounters()) {
    json += (json.empty() ? "\"" : ", \"") + std::string(name) + "\": " + std::to_string(value);
  }
  Text() = "{" + json + "}";
  return Text().c_str();
}

void tfddl_record_start(const char* directory, int at_every_failure, const int* stacks) {
  tfddl::FlightRecord::OfProcess().SetContents(tfddl::FlightContents);
  tfddl::FlightRecord::OfProcess().Start(
      {directory, at_every_failure != 0, {stacks[0], stacks[1], stacks[2], stacks[3], stacks[4]}});
}

int tfddl_record_on(int signal, const char* name) {
  return tfddl::FlightRecord::OfProcess().WriteOn(signal, name) ? 0 : -1;
}

void tfddl_record_job(const char* job, int rank, int size) {
  tfddl::FlightRecord::OfProcess().SetJob(job, rank, size);
}

const char* tfddl_record_write(const char* directory, const char* reason) {
  std::string error;
  Text() = tfddl::FlightRecord::OfProcess().Write(reason, directory, &error);
  if (!Text().empty()) return Text().c_str();
  tfddl::SetLastError(error);
  return nullptr;
}

void tfddl_record_failure(const char* reason) { tfddl::RecordFailure(reason); }

int tfddl_timeline_start(int file, int mark_votes) {
  std::shared_ptr<tfddl::Engine> engine;
  const auto found = tfddl::FindEngine(0, &engine);
  if (!found.ok()) {
    tfddl::SetLastError(found.message());
    return -1;
  }
  const auto timeline = tfddl::Timeline::OfProcess();
  if (timeline->Start(file, engine->rank(), engine->size(), mark_votes != 0)) return 0;
  tfddl::SetLastError("there is a timeline already: call hvd.stop_timeline() first");
  return -1;
}

int tfddl_timeline_stop(void) {
  const std::string error = tfddl::Timeline::OfProcess()->Stop();
  tfddl::SetLastError(error);
  return error.empty() ? 0 : -1;
}
