// The end of the process: who finalizes MPI, and what the other ranks learn about the exit code.
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "api/c_api.h"
#include "core/watchdog/exit_watchdog.h"

namespace {

// Leaked: the C library calls OnExit after the destructors of objects that were made later.
std::unique_ptr<tfddl::ExitWatchdog>& ExitWatch() {
  static auto* watch = new std::unique_ptr<tfddl::ExitWatchdog>;
  return *watch;
}

pid_t rank_process = 0;
double finalize_limit_s = 0;  // 0: none

// The C library calls it with the exit code, which nothing in Python knows for certain before. mpi4py would
// finalize MPI without it: then the ranks that wait for this one never learn that it has failed.
void OnExit(int code, void*) {
  if (getpid() != rank_process) return;  // a process that was forked from the rank
  int initialized = 0, finalized = 0, size = 1;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized) return;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  code &= 0xff;  // as the system does afterwards: exit(256) is a success
  if (code != 0 && size > 1) MPI_Abort(MPI_COMM_WORLD, code);
  if (finalize_limit_s > 0) {
    std::thread([code] {
      std::this_thread::sleep_for(std::chrono::duration<double>(finalize_limit_s));
      _exit(code);
    }).detach();
  }
  MPI_Finalize();
  ExitWatch().reset();
}

}  // namespace

void tfddl_finalize_mpi_at_exit(void) {
  rank_process = getpid();
  on_exit(OnExit, nullptr);
}

void tfddl_bound_finalize(double limit_s) { finalize_limit_s = limit_s; }

void tfddl_exit_begins(const char* presence, int rank, int size, int local_size, double warning_s,
                       double limit_s, double exit_limit_s) {
  ExitWatch() = std::make_unique<tfddl::ExitWatchdog>(
      tfddl::ExitWatchdogOptions{presence, rank, size, local_size, warning_s, limit_s, exit_limit_s});
}

void tfddl_exit_handlers_ended(void) {
  if (ExitWatch()) ExitWatch()->Wait();
}
