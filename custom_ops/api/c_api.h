// The C ABI by which Python (ctypes) reaches the engine. Strings returned stay valid until the calling
// thread's next call.
#pragma once

#define TFDDL_EXPORT extern "C" __attribute__((visibility("default")))

// "tf=2.21.0;mpi=openmpi-5;source=<hash>": the target of this library.
TFDDL_EXPORT const char* tfddl_build_info(void);

// The reason why the last call on this thread failed.
TFDDL_EXPORT const char* tfddl_last_error(void);

// Before and after `call` ("hvd.init()"), which waits for other ranks inside MPI; from one thread. See
// InitWatchdogOptions.
TFDDL_EXPORT void tfddl_wait_begins(const char* call, const char* presence, int rank, int size,
                                    int local_size, double warning_s, double limit_s);
TFDDL_EXPORT void tfddl_wait_step(void);
TFDDL_EXPORT void tfddl_wait_ends(void);

// Starts the engine. `data` and `control` point to MPI_Comm handles that belong to the engine until
// tfddl_shutdown() has returned 1. Seconds: see WatchdogOptions. Returns 0, or -1 on an error.
TFDDL_EXPORT int tfddl_init(const void* data, const void* control, double warning_s, double limit_s);

// Gathers a line from each rank of the job: returns all lines, by rank; null on an error. Waits for all
// ranks.
TFDDL_EXPORT const char* tfddl_gather(const char* name, const char* mine);

// All ranks call it before each further process set. Returns 0, or -1 when the job has failed.
TFDDL_EXPORT int tfddl_share_gpus(void);

// Adds a process set: `ranks` are `count` ranks of the job, sorted. `data` is as in tfddl_init, for the
// members alone; null where this process is not a member. All ranks call it. Returns 0, or -1 on an error.
TFDDL_EXPORT int tfddl_add_set(int set, const int* ranks, int count, const void* data);

// The names of the set's collectives that are in flight on this rank; empty when there are none.
TFDDL_EXPORT const char* tfddl_set_in_flight(int set);

// Ends a set; all members call it. Returns 0, or -1 when the job has failed, or not all members called it
// within `limit_s` seconds: then `data` may not be freed.
TFDDL_EXPORT int tfddl_remove_set(int set, double limit_s);

// Removes a set that not all members could make. Its `data` may not be freed.
TFDDL_EXPORT void tfddl_drop_set(int set);

// Sets the answers of local_rank_op() and local_size_op().
TFDDL_EXPORT void tfddl_set_local(int local_rank, int local_size);

// Ends the job. Returns 1 when all ranks agreed within `limit_s` seconds; 2 when they did, but messages may
// be under way, so that nothing may be freed; else 0: nothing may be freed either, and tfddl_last_error() has
// the reason.
TFDDL_EXPORT int tfddl_shutdown(double limit_s);

// Sets the path of libnccl.so.2 in the Python package that has it. The environment may name another one.
TFDDL_EXPORT void tfddl_set_nccl_wheel(const char* path);

// NCCL's version (22707 is 2.27.7); 0 if it cannot be used, and tfddl_last_error() has the reason.
TFDDL_EXPORT int tfddl_nccl_version(void);

// For a process that a rank forked. Py_AtExit() takes the first function, which ends the process before
// mpi4py finalizes MPI, which belongs to the rank. The second function sets the exit code.
TFDDL_EXPORT void tfddl_leave_forked(void);
TFDDL_EXPORT void tfddl_set_forked_code(int code);

// Makes the exit of this process finalize MPI where nobody has, or end the job if the exit code is not 0.
// Also to be called after MPI_Init: MPICH's own exit handler, which must run after ours, is made there, and
// the C library calls the last one first. Without it mpiexec takes the end of the rank for a crash.
TFDDL_EXPORT void tfddl_finalize_mpi_at_exit(void);
// MPI_Finalize gets so many seconds, then the process ends without it: for a job that has lost ranks.
TFDDL_EXPORT void tfddl_bound_finalize(double limit_s);

// For the begin of the exit handlers of a rank, and for their end: Py_AtExit() takes the second function. See
// ExitWatchdogOptions.
TFDDL_EXPORT void tfddl_exit_begins(const char* presence, int rank, int size, int local_size,
                                    double warning_s, double limit_s, double exit_limit_s);
TFDDL_EXPORT void tfddl_exit_handlers_ended(void);

// See Engine::Note.
TFDDL_EXPORT void tfddl_note(int set, const char* key, const char* note);

// The reason when the job has failed on this rank, else an empty string.
TFDDL_EXPORT const char* tfddl_failure(void);

// JSON: an object of counters.
TFDDL_EXPORT const char* tfddl_stats(void);

// The flight record (flight_record.h); `stacks` has the five numbers of PythonStacks. The second function
// makes a signal write it: returns 0, or -1 if the program handles the signal already. The last one returns
// the path; null on an error.
TFDDL_EXPORT void tfddl_record_start(const char* directory, int at_every_failure, const int* stacks);
TFDDL_EXPORT int tfddl_record_on(int signal, const char* name);
TFDDL_EXPORT void tfddl_record_job(const char* job, int rank, int size);
TFDDL_EXPORT const char* tfddl_record_write(const char* directory, const char* reason);

// This rank is about to end the job: writes its flight record, and gives the other ranks a moment for theirs.
TFDDL_EXPORT void tfddl_record_failure(const char* reason);

// Starts the timeline (timeline.h), which takes the descriptor of an empty file. Returns 0, or -1 before
// tfddl_init() and when there is a timeline already; then the descriptor stays the caller's.
TFDDL_EXPORT int tfddl_timeline_start(int file, int mark_votes);

// Ends the timeline, if there is one. Returns 0, or -1 when the file is incomplete.
TFDDL_EXPORT int tfddl_timeline_stop(void);
