"""Faults of the engine: votes, requests, watchdog, trace, calls of compiled programs."""

from tests.mutants.fault import Fault

FAULTS = {
    "no thread polls": Fault(
        "custom_ops/core/engine/busy_poll.cc",
        "if (to_skip_.load(std::memory_order_relaxed) <= 0) return true;",
        "",
        "poll_test",
    ),
    "a request that comes during a poll wakes nobody": Fault(
        "custom_ops/core/engine/engine_control.cc",
        "    woken_ = true;\n",
        "",
        "poll_test",
    ),
    "threads poll for requests on GPUs": Fault(
        "custom_ops/core/engine/engine.cc",
        "  if (request.device != Device::kHost) StopPolling();\n",
        "",
        "poll_test",
    ),
    "a vote is dropped": Fault(
        "custom_ops/core/agreement/vote.cc",
        "    ready_all[i] &= other.ready_all[i];\n",
        "",
        "agreement_states_test",
    ),
    "a different signature is not noticed": Fault(
        "custom_ops/core/agreement/vote.cc",
        "    same_all[i] &= other.same_all[i];\n",
        "",
        "agreement_states_test",
    ),
    "an extra rank takes no part in the vote": Fault(
        "custom_ops/core/agreement/vote.cc",
        "if (extra >= 0) steps_.push_back({extra, true, true, false});",
        "if (extra >= 0) steps_.push_back({extra, true, false, false});",
        "engine_test",
    ),
    "nobody hears of a leaving rank": Fault(
        "custom_ops/core/agreement/vote.cc",
        "  departing = std::min(departing, other.departing);\n",
        "",
        "engine_test",
    ),
    "a joined rank holds the others up": Fault(
        "custom_ops/core/agreement/agreement.cc",
        "std::fill(bits->begin(), bits->end(), ~uint64_t{0});",
        "std::fill(bits->begin(), bits->end(), uint64_t{0});",
        "join_test",
    ),
    "the plan forgets a name that ranks wait for": Fault(
        "custom_ops/core/agreement/agreement.cc",
        "(i < 64 * outcome.ready_any.size() && Bit(outcome.ready_any, i))",
        "false",
        "agreement_states_test",
    ),
    "the wrong rank joined last": Fault(
        "custom_ops/core/agreement/agreement.cc",
        "if (!Bit(had_joined_, bit)) last = rank;",
        "last = rank;",
        "join_test",
    ),
    "an average ignores what ranks asked for when they joined": Fault(
        "custom_ops/core/agreement/agreement.cc",
        "joined[1].empty() ? AverageOver::kSize : AverageOver::kActive",
        "joined[1].empty() ? AverageOver::kSize : AverageOver::kSize",
        "join_data_test",
    ),
    "an average divides by joined ranks as well": Fault(
        "custom_ops/core/engine/participant_tracker.cc",
        "over_active ? static_cast<int>(boundary.active.size()) : all_->divisor",
        "over_active ? all_->divisor : all_->divisor",
        "join_data_test",
    ),
    "a rank joins before its requests are decided": Fault(
        "custom_ops/core/engine/engine_join.cc",
        "|| !pending_.empty() || !agreed_.empty()) return;",
        ") return;",
        "join_test",
    ),
    "a name may be in flight twice": Fault(
        "custom_ops/core/engine/engine_requests.cc",
        "if (live_.Contains(request.key())) {",
        "if (false && live_.Contains(request.key())) {",
        "engine_test",
    ),
    "the buckets of a sequence share one tag": Fault(
        "custom_ops/core/engine/engine_requests.cc",
        "Start(std::move(request), ticket + bucket, participants);",
        "Start(std::move(request), ticket + 0 * bucket, participants);",
        "engine_test",
    ),
    "the other collectives of a failed step go on waiting": Fault(
        "custom_ops/core/engine/engine_requests.cc",
        "for (const auto& [name, steps] : ended) EndSteps(steps, name);",
        "",
        "engine_test",
    ),
    "pending requests never hear of a shutdown": Fault(
        "custom_ops/core/engine/engine_requests.cc",
        "    FailSequence(std::move(sequence), Code::kUnknown, ClosedMessage(name));\n",
        "",
        "engine_test",
    ),
    "the flight recorder gives the end of an old operation to a new one": Fault(
        "custom_ops/base/recorder.cc",
        "  if (operation.number != number) return nullptr;\n",
        "",
        "flight_record_test",
    ),
    "a later failure replaces the record of a stall": Fault(
        "custom_ops/core/trace/flight_record.cc",
        "if (std::exchange(end_written_, true)) return",
        "if (false && std::exchange(end_written_, true)) return",
        "flight_record_test",
    ),
    "a forked process keeps the handler of its rank": Fault(
        "custom_ops/core/trace/flight_record.cc",
        "pthread_atfork(nullptr, nullptr, AfterFork)",
        "0",
        "flight_record_test",
    ),
    "a joined rank waits for ever for one that does nothing": Fault(
        "custom_ops/core/watchdog/watchdog_stalls.cc",
        "const auto waiting = oldest ? oldest : Oldest(true);\n  if (!waiting) return;",
        "const auto waiting = oldest;\n  if (!waiting) return;",
        "silent_test",
    ),
    "the watchdog names the wrong ranks": Fault(
        "custom_ops/core/watchdog/wait_state.cc",
        "} else if (!ranks[rank]->Has(key, set)) {",
        "} else if (ranks[rank]->Has(key, set)) {",
        "wait_state_test",
    ),
    "a rank that moves counts as stuck": Fault(
        "custom_ops/core/watchdog/wait_state.cc",
        " || one->idle_us < idle_us) return {};",
        ") return {};",
        "wait_state_test",
    ),
    "init names the ranks that did call it": Fault(
        "custom_ops/core/watchdog/presence.cc",
        "if (!seen.count(rank)) missing",
        "if (seen.count(rank)) missing",
        "tests/faults/test_waiting.py::test_a_rank_that_never_calls_init",
    ),
    "a stopped rank is not told from others": Fault(
        "custom_ops/core/watchdog/presence.cc",
        "if (sighting.stopped) stopped",
        "if (!sighting.stopped) stopped",
        "presence_test",
    ),
    "a forked process stands for its dead rank": Fault(
        "custom_ops/core/watchdog/presence.cc",
        "if (state == '\\0') continue;",
        "if (state == '?') continue;",
        "presence_test",
    ),
    "the exit is never bounded": Fault(
        "custom_ops/core/watchdog/exit_watchdog.cc",
        "SecondsSince(all_have_begun) >= options_.limit_s",
        "SecondsSince(all_have_begun) >= 1e9",
        "tests/faults/test_exit.py::test_an_exit_handler_that_does_not_end",
    ),
    "MPI is finalized whatever the exit code": Fault(
        "custom_ops/api/mpi_exit.cc",
        "if (code != 0 && size > 1) MPI_Abort",
        "if (code > 999 && size > 1) MPI_Abort",
        "tests/faults/test_exit.py::test_an_exit_code_that_python_does_not_tell",
    ),
}
