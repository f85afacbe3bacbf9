// The C ABI by which Python (ctypes) reaches the engine. Strings returned stay valid until the calling
// thread's next call.
#pragma once

#define TFDDL_EXPORT extern "C" __attribute__((visibility("default")))

// "tf=2.21.0;mpi=openmpi-5;source=<hash>": what this library was built for.
TFDDL_EXPORT const char* tfddl_build_info(void);

// Why the last call on this thread failed.
TFDDL_EXPORT const char* tfddl_last_error(void);

// `call` ("hvd.init()"), which waits for other ranks inside MPI, stands between these two, from one thread;
// see InitWatchdogOptions.
TFDDL_EXPORT void tfddl_wait_begins(const char* call, const char* socket_name, int rank, int size,
                                    int local_size, double warning_s, double limit_s);
TFDDL_EXPORT void tfddl_wait_ends(void);

// Starts the engine. `data` and `control` point to MPI_Comm handles that belong to the engine until
// tfddl_shutdown() has returned 1. Seconds: see WatchdogOptions. Returns 0, or -1 on an error.
TFDDL_EXPORT int tfddl_init(const void* data, const void* control, double warning_s, double limit_s);

// One line of each rank of the job on each: `mine` and the others', by rank, null on an error. Waits for all.
TFDDL_EXPORT const char* tfddl_gather(const char* name, const char* mine);

// Before each further process set, on all ranks at once. Returns 0, or -1 when the job has failed.
TFDDL_EXPORT int tfddl_share_gpus(void);

// A further process set: `ranks` are `count` ranks of the job, sorted. `data` as in tfddl_init, of the
// members alone, and null where this process is none. Returns 0, or -1 on an error. All members call it at
// once.
TFDDL_EXPORT int tfddl_add_set(int set, const int* ranks, int count, const void* data);

// The names of the set's collectives that are in flight on this rank; empty when there are none.
TFDDL_EXPORT const char* tfddl_set_in_flight(int set);

// Ends a set, on all its members. Returns 0; or -1 when the job has failed, also because not all members came
// within `limit_s` seconds: then `data` may not be freed.
TFDDL_EXPORT int tfddl_remove_set(int set, double limit_s);

// Forgets a set that not all members could make. Its `data` may not be freed.
TFDDL_EXPORT void tfddl_drop_set(int set);

// Tells the ops about this process among those on its host.
TFDDL_EXPORT void tfddl_set_local(int local_rank, int local_size);

// Returns 1 when all ranks agreed within `limit_s` seconds; 2 when they did, but messages may be under way,
// so that nothing may be freed; else 0: then nothing may be freed either, and tfddl_last_error() tells why.
TFDDL_EXPORT int tfddl_shutdown(double limit_s);

// The path of libnccl.so.2 in the Python package that brings it, to be used unless the environment names one.
TFDDL_EXPORT void tfddl_set_nccl_wheel(const char* path);

// NCCL's version (22707 is 2.27.7); 0 where there is none to use, and tfddl_last_error() tells why.
TFDDL_EXPORT int tfddl_nccl_version(void);

// For a process that a rank forked. Py_AtExit() takes the first one, which ends the process before mpi4py
// finalizes MPI, which belongs to the rank. The second says with which code.
TFDDL_EXPORT void tfddl_leave_forked(void);
TFDDL_EXPORT void tfddl_set_forked_code(int code);

// See Engine::Note.
TFDDL_EXPORT void tfddl_note(int set, const char* key, const char* note);

// The reason when the job has failed on this rank, else an empty string.
TFDDL_EXPORT const char* tfddl_failure(void);

// JSON: an object of counters, and an array of {"time_us", "event", "name", "process_set"} of the last
// operations, oldest first.
TFDDL_EXPORT const char* tfddl_stats(void);
TFDDL_EXPORT const char* tfddl_flight_log(void);

// The timeline (timeline.h): takes the descriptor of a file, which is empty. Returns 0, or -1 before
// tfddl_init() and where there is one already; then the descriptor stays the caller's.
TFDDL_EXPORT int tfddl_timeline_start(int file, int mark_votes);

// Ends it, if there is one. Returns 0, or -1 when not all could be written.
TFDDL_EXPORT int tfddl_timeline_stop(void);
