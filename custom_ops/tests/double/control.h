// The settings and counters by which tests control the doubles of the CUDA driver and of NCCL. For processes
// that a test starts, the environment variable TFDDL_FAKE_NAME sets NAME.
//
//   devices           8        GPUs of the host, before CUDA_VISIBLE_DEVICES; read at the first call
//   driver_version    12080    cuDriverGetVersion
//   nccl_version      22707    ncclGetVersion
//   stream_delay_us   0        delays the start of each operation on each stream
//   enqueue_delay_us  0        a nonblocking communicator enqueues this long after ncclGroupEnd
//   enqueue_hold      0        a nonblocking communicator does not enqueue while this is 1
//   fail_rank         -1       collective number fail_at of this rank on a communicator never ends
//   fail_at           0        counts from 1
//   fail_code         6        the communicator's asynchronous error then
//   abort_hold        0        ncclCommAbort does not begin while this is 1
//   stuck_ms          30000    a warning names the missing ranks after this time in a collective; 0: never
//   keep_faults       0        0: a fault that no test took ends the process with status 86 at exit
#pragma once

#include <cstddef>

extern "C" {
void tfddl_fake_set(const char* name, long value);
long tfddl_fake_get(const char* name);

// The number of calls of an API function since the last reset.
long tfddl_fake_calls(const char* function);

// The nth call from now (from 1) of `function` does nothing and returns `code`.
void tfddl_fake_fail_call(const char* function, int code, int nth);

// A fault is a misuse to which the real libraries react with an illegal access, a wrong result or a hang:
// memory that is not allocated, calls that differ between ranks, handles that have ended. Returns the number
// of faults since the last call, forgets them, and writes their texts, one line each, cut to `bytes`.
int tfddl_fake_take_faults(char* text, size_t bytes);

// The same for warnings: legal but doubtful use, such as an event that is destroyed while pending.
int tfddl_fake_take_warnings(char* text, size_t bytes);

// Resets settings and counters; removes planned failures, faults and warnings. No work may be in flight.
void tfddl_fake_reset();
}
