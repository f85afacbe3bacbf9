"""Faults of sharding, of the build, and of the commands: launcher, timeline, benchmark."""

from tests.mutants.fault import Fault

FAULTS = {
    "a shard of arrays begins one row late": Fault(
        "tfddl/data/arrays.py",
        "array[rank:end:size]",
        "array[rank + 1 : end : size]",
        "tests/data/test_arrays.py::test_rows_are_dealt_in_turn",
    ),
    "the last shard of arrays gets more rows": Fault(
        "tfddl/data/arrays.py",
        "array[rank:end:size]",
        "array[rank::size]",
        "tests/data/test_arrays.py::test_rows_are_dealt_in_turn",
    ),
    "a dataset is shared out unevenly": Fault(
        "tfddl/data/dataset.py",
        "return dataset.take(each * size).shard(size, rank)",
        "return dataset.shard(size, rank)",
        "tests/data/test_shard.py::test_drop_leaves_out_less_than_one_each",
    ),
    "repeat leaves the last elements out": Fault(
        "tfddl/data/shards.py",
        'return count // size if remainder == "drop" else -(-count // size)',
        "return count // size",
        "tests/data/test_shard.py::test_repeat_covers_everything",
    ),
    "an unseeded shuffle is shared out": Fault(
        "tfddl/data/order.py",
        "    if (0, 0) in _seeds(steps):\n",
        "    if False:\n",
        "tests/data/test_shard.py::test_uncertain_order_is_refused",
    ),
    "an epoch has a step too many": Fault(
        "tfddl/data/steps.py",
        "steps = n // (batch * size)",
        "steps = -(-n // (batch * size))",
        "tests/data/test_arrays.py::test_steps_per_epoch",
    ),
    "the launcher loses the exit code": Fault(
        "tfddl/launch/outcome.py",
        "return Verdict(_shell_code(status), _last_words(how, failed, record), failed.error_text())",
        "return Verdict(1, _last_words(how, failed, record), failed.error_text())",
        "tests/launch/test_outcome.py::test_the_first_report_counts_not_the_first_rank",
    ),
    "a rank that was stopped is to blame": Fault(
        "tfddl/launch/outcome.py",
        "return self.status not in (0, None) and not self.stopped",
        "return self.status not in (0, None)",
        "tests/launch/test_outcome.py::test_a_rank_that_was_stopped_has_not_failed",
    ),
    "a lost host is a good end": Fault(
        "tfddl/launch/outcome.py",
        "        code = 1  # mpirun",
        "        code = status  # mpirun",
        "tests/launch/test_outcome.py::test_lost_host_fails_the_job_although_mpirun_does_not",
    ),
    "a chained traceback loses its first part": Fault(
        "tfddl/launch/outcome.py",
        "        start = starts.pop()\n    return",
        "        starts.pop()\n    return",
        "tests/launch/test_outcome.py::test_traceback_comes_whole_with_its_chain_and_without_what_mpi_adds",
    ),
    "a host file's slots are ignored": Fault(
        "tfddl/launch/hosts.py",
        'hosts.append(Host(host.name, int(match["slots"])) if match["slots"] else host)',
        "hosts.append(host)",
        "tests/launch/test_command_line.py::test_hosts",
    ),
    "clocks are aligned the wrong way": Fault(
        "tfddl/timeline/align.py",
        "            _move(trace, by)\n",
        "            _move(trace, -by)\n",
        "tests/timeline/test_command.py::test_clocks_are_aligned",
    ),
    "a file of an earlier run counts": Fault(
        "tfddl/timeline/align.py",
        "        if apart > _ONE_RUN:\n",
        "        if False:\n",
        "tests/timeline/test_command.py::test_a_file_of_an_earlier_run_is_left_out",
    ),
    "time that overlaps counts twice": Fault(
        "tfddl/timeline/summary.py",
        "total += max(0.0, stop - max(start, end))",
        "total += max(0.0, stop - start)",
        "tests/timeline/test_command.py::test_covered",
    ),
    "the first rank to submit is called the last": Fault(
        "tfddl/timeline/summary.py",
        "*_, before, last = sorted(requests.values(), key=lambda request: request.submitted)",
        "last, before, *_ = sorted(requests.values(), key=lambda request: request.submitted)",
        "tests/timeline/test_command.py::test_numbers",
    ),
    "the benchmark expects rank 0's part everywhere": Fault(
        "tfddl/bench/case.py",
        "mine = slice(rank * self.count // self.ranks, (rank + 1) * self.count // self.ranks)",
        "mine = slice(0, self.count // self.ranks)",
        "tests/bench/test_case.py::test_expected",
    ),
    "the benchmark overlooks wrong elements": Fault(
        "tfddl/bench/case.py",
        "return int(np.count_nonzero(result != expected))",
        "return int(np.any(result != expected))",
        "tests/bench/test_case.py::test_wrong_elements",
    ),
    "the name of a library forgets TensorFlow's version": Fault(
        "tfddl/build/sources.py",
        "f\"tf{tensorflow or 'none'}{mpi}-{system}-{libc}{libc_version}\"",
        'f"tf{mpi}-{system}-{libc}{libc_version}"',
        "tests/build/test_locate.py::test_a_library_for_something_else_is_never_taken",
    ),
    "the name of a library forgets MPI": Fault(
        "tfddl/build/sources.py",
        'mpi = f"-{mpi_tag}" if mpi_tag else ""',
        'mpi = ""',
        "tests/build/test_locate.py::test_a_library_for_something_else_is_never_taken",
    ),
    "processes that ask together all build": Fault(
        "tfddl/build/cache.py",
        "            fcntl.flock(lock, fcntl.LOCK_EX)\n",
        "            pass\n",
        "tests/build/test_cache.py::test_processes_that_ask_together_build_once",
    ),
    "a stranger's hello is not checked": Fault(
        "tfddl/launch/channel.py",
        "!= _FIELDS:",
        "!= _FIELDS and False:",
        "tests/launch/test_strangers.py::test_what_no_shim_sends_ends_the_connection",
    ),
    "a slow mpirun makes a good job fail": Fault(
        "tfddl/launch/outcome.py",
        "code = _shell_code(status or 1)",
        "code, status = 1, status or 1",
        "tests/launch/test_outcome.py::test_an_mpirun_that_tfddlrun_has_ended_is_no_failure",
    ),
    "a full disk ends the job": Fault(
        "tfddl/launch/output.py",
        "self._warn_of_loss(stream, error)",
        "raise",
        "tests/launch/test_output.py::test_a_full_disk_does_not_end_the_job",
    ),
    "nobody looks whether ranks wait for one that has ended": Fault(
        "tfddl/launch/job.py",
        "elif not self._stopping:",
        "elif self._stopping:",
        "tests/launch/test_ends.py::test_rank_that_leaves_before_others_that_wait_in_init",
    ),
    "a shell of srun --pty counts as a rank": Fault(
        "tfddl/runtime/launcher_check.py",
        'terminal != "0" and',
        "False and",
        "tests/runtime/test_launcher_check.py::test_what_slurm_started",
    ),
    "processes that srun starts train alone": Fault(
        "tfddl/runtime/basics.py",
        "        launcher_check.check(comm, MPI.COMM_WORLD.size)\n",
        "",
        "tests/runtime/test_launcher_check.py::test_processes_of_srun",
    ),
    "tfddl tune takes noise for a gain": Fault(
        "tfddl/bench/tune/candidates.py",
        'if line["p75"] < 1 - _LEAST_GAIN and',
        "if",
        "tests/bench/test_tune.py::test_the_choice",
    ),
    "tfddl tune compares with another round": Fault(
        "tfddl/bench/tune/candidates.py",
        "np.array(timing.blocks) / base",
        "np.array(timing.blocks) / base[0]",
        "tests/bench/test_tune.py::test_settings_are_compared_in_the_same_round",
    ),
}
