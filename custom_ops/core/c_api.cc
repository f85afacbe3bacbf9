#include "core/c_api.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "core/patience.h"
#include "core/process.h"

namespace {

std::string& Text() {
  thread_local std::string text;
  return text;
}

std::atomic<int> forked_code{0};

std::unique_ptr<tfddl::Patience>& Waiting() {
  static auto* waiting = new std::unique_ptr<tfddl::Patience>;
  return *waiting;
}

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

}  // namespace

namespace tfddl {
void SetLastError(const std::string& text) { Text() = text; }
}  // namespace tfddl

const char* tfddl_build_info(void) {
  return "tf=" TFDDL_BUILD_TF ";mpi=" TFDDL_BUILD_MPI ";source=" TFDDL_SOURCE_HASH;
}

const char* tfddl_last_error(void) { return Text().c_str(); }

void tfddl_init_begins(const char* roll, int rank, int size, int local_size, double warning_s,
                       double limit_s) {
  const tfddl::PatienceOptions options{roll, rank, size, local_size, warning_s, limit_s};
  Waiting() = std::make_unique<tfddl::Patience>(options);
}

void tfddl_init_ends(void) { Waiting().reset(); }

void tfddl_set_local(int local_rank, int local_size) { tfddl::SetLocalPlace({local_rank, local_size}); }

int tfddl_shutdown(double limit_s) { return tfddl::StopProcess(limit_s) ? 1 : 0; }

void tfddl_set_forked_code(int code) { forked_code = code; }

void tfddl_leave_forked(void) {
  std::fflush(nullptr);
  _exit(forked_code);
}

void tfddl_note(const char* key, const char* note) {
  if (const auto engine = tfddl::CurrentEngine()) engine->Note(key, note);
}

const char* tfddl_failure(void) {
  const auto engine = tfddl::CurrentEngine();
  Text() = engine ? engine->failure().value_or("") : "";
  return Text().c_str();
}

const char* tfddl_stats(void) {
  const auto engine = tfddl::CurrentEngine();
  Text() = "{}";
  if (!engine) return Text().c_str();
  const auto& c = engine->recorder().counters;
  Text() = "{\"requests\": " + std::to_string(c.requests) + ", \"errors\": " + std::to_string(c.errors) +
           ", \"votes\": " + std::to_string(c.votes) + ", \"empty_votes\": " + std::to_string(c.empty_votes) +
           ", \"bytes_reduced\": " + std::to_string(c.bytes_reduced) + "}";
  return Text().c_str();
}

const char* tfddl_flight_log(void) {
  const auto engine = tfddl::CurrentEngine();
  std::string json = "[";
  if (engine) {
    for (const auto& event : engine->recorder().Events()) {
      json += std::string(json.size() > 1 ? ", " : "") + "{\"time_us\": " + std::to_string(event.time_us) +
              ", \"event\": \"" + event.what + "\", \"name\": " + Quote(event.name) + "}";
    }
  }
  Text() = json + "]";
  return Text().c_str();
}
