// What tests set in, and ask of, the doubles of the CUDA driver and of NCCL. A setting NAME also comes from
// the environment, as TFDDL_FAKE_NAME in capitals, for processes that a test starts.
//
//   devices           8        GPUs of the host, before CUDA_VISIBLE_DEVICES; read at the first call
//   driver_version    12080    cuDriverGetVersion
//   nccl_version      22707    ncclGetVersion
//   stream_delay_us   0        every operation of every stream starts that late
//   enqueue_delay_us  0        a non-blocking communicator enqueues that long after ncclGroupEnd
//   enqueue_hold      0        it does not enqueue until this is 0 again
//   fail_rank, fail_at, fail_code   -1, 0, 6   that rank's n-th collective (from 1) on a communicator never
//   ends,
//                              and the code becomes the communicator's asynchronous error
//   stuck_ms          30000    after that long in one collective a warning names who is missing; 0: never
//   keep_faults       0        at exit, a fault that no test took ends the process with status 86 unless this
//   is 1
#pragma once

#include <cstddef>

extern "C" {
void tfddl_fake_set(const char* name, long value);
long tfddl_fake_get(const char* name);

// Calls of an API function since the last reset.
long tfddl_fake_calls(const char* function);

// The nth call from now (from 1) of `function` does nothing and returns `code`.
void tfddl_fake_fail_call(const char* function, int code, int nth);

// Faults are what the real libraries would answer by an illegal access, a wrong result or a hang: memory not
// allocated or freed, calls that do not match between ranks, handles used after their end. Returns how many
// there were since the last call, takes them, and writes their text, one line each, cut to `bytes`.
int tfddl_fake_take_faults(char* text, size_t bytes);

// Warnings are legal but doubtful: an event destroyed while pending, a collective that waits for very long.
int tfddl_fake_take_warnings(char* text, size_t bytes);

// Settings as at the start, counters, planned failures, faults and warnings to nothing. No work may be in
// flight.
void tfddl_fake_reset();
}
