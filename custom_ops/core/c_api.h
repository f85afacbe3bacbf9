// The C ABI by which Python (ctypes) reaches the engine. Strings returned stay valid until the calling
// thread's next call.
#pragma once

#define TFDDL_EXPORT extern "C" __attribute__((visibility("default")))

// "tf=2.21.0;mpi=openmpi-5;source=<hash>": what this library was built for.
TFDDL_EXPORT const char* tfddl_build_info(void);

// Why the last call on this thread failed.
TFDDL_EXPORT const char* tfddl_last_error(void);

// hvd.init() stands between these two calls, from one thread; see PatienceOptions.
TFDDL_EXPORT void tfddl_init_begins(const char* roll, int rank, int size, int local_size, double warning_s,
                                    double limit_s);
TFDDL_EXPORT void tfddl_init_ends(void);

// Starts the engine. `data` and `control` point to MPI_Comm handles that belong to the engine until
// tfddl_shutdown() has returned 1. Seconds: see WatchdogOptions. Returns 0, or -1 on an error.
TFDDL_EXPORT int tfddl_init(const void* data, const void* control, double warning_s, double limit_s);

// Tells the ops about this process among those on its host.
TFDDL_EXPORT void tfddl_set_local(int local_rank, int local_size);

// Returns 1 when all ranks agreed within `limit_s` seconds, else 0: then nothing may be freed, and
// tfddl_last_error() tells why.
TFDDL_EXPORT int tfddl_shutdown(double limit_s);

// For a process that a rank forked. Py_AtExit() takes the first one, which ends the process before mpi4py
// finalizes MPI, which belongs to the rank. The second says with which code.
TFDDL_EXPORT void tfddl_leave_forked(void);
TFDDL_EXPORT void tfddl_set_forked_code(int code);

// See Engine::Note.
TFDDL_EXPORT void tfddl_note(const char* key, const char* note);

// The reason when the job has failed on this rank, else an empty string.
TFDDL_EXPORT const char* tfddl_failure(void);

// JSON: an object of counters, and an array of {"time_us", "event", "name"} of the last operations.
TFDDL_EXPORT const char* tfddl_stats(void);
TFDDL_EXPORT const char* tfddl_flight_log(void);
