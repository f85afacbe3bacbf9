"""Faults in elastic training."""

from tests.mutants.fault import Fault

_CUT = "tests/elastic/test_fit.py::test_a_fit_that_was_cut_goes_on"

FAULTS = {
    "an optimizer of one network keeps averages of all": Fault(
        "tfddl/elastic/variables_state.py",
        'getattr(inner, "use_ema", False) and',
        'getattr(inner, "use_ema", False) and False and',
        "tests/elastic/test_states.py::test_optimizers_of_two_networks",
        ranks=1,
    ),
    "commits count calls of Keras, not batches": Fault(
        "tfddl/elastic/callbacks.py",
        "self.batches_remaining -= done - self._last",
        "self.batches_remaining -= 1",
        "tests/elastic/test_states.py::test_callbacks_commit_batches_and_epochs",
    ),
    "a commit has the averages that Keras has put into the model": Fault(
        "tfddl/elastic/callbacks.py",
        "weights_of_training(self.in_front, epoch)",
        "weights_of_training([], epoch)",
        "tests/elastic/test_states.py::test_averages_in_the_model",
    ),
    "survivors number new optimizers each for itself": Fault(
        "tfddl/runtime/survival.py",
        "max(process.owners[key], count)",
        "max(process.owners[key], owners.get((number, kind), 0))",
        "tests/elastic/test_survival.py::test_ranks_die_and_the_others_go_on",
        extent="rest",
    ),
    "a new host has nothing until the next commit": Fault(
        "tfddl/elastic/state.py",
        "            if found[each] < self._number:\n",
        "            if found[each] > self._number:\n",
        "tests/elastic/test_commits.py::test_a_rank_without_the_newest_commit_gets_it",
    ),
    "an epoch that was cut begins with its first row": Fault(
        "tfddl/elastic/fit_data.py",
        "self._dataset.start = done",
        "self._dataset.start = 0",
        _CUT,
    ),
    "a warm-up takes the rest of an epoch for a whole one": Fault(
        "tfddl/elastic/fit.py",
        "                self._data.go_on(state.order, 0)  #",
        "                #",
        "tests/elastic/test_fit.py::test_a_schedule_by_batches_goes_on_in_the_middle_of_an_epoch",
    ),
    "each call of fit has the order of the first one": Fault(
        "tfddl/elastic/fit_state.py",
        "(*seeds, self._number, self._fits)",
        "(*seeds, self._number)",
        "tests/elastic/test_fit.py::test_each_epoch_of_each_fit_has_an_order_of_its_own",
    ),
    "a change of some rows of a shard stays unseen": Fault(
        "tfddl/data/arrays.py",
        "range(0, len(part), rows)",
        "range(0, len(part), 2 * rows)",
        "tests/data/test_arrays.py::test_a_change_of_any_row_is_seen",
    ),
    "the best value of rank 0's ModelCheckpoint dies with its host": Fault(
        "tfddl/elastic/fit.py",
        "return of_rank_0 | changed",
        "return changed",
        "tests/elastic/test_fit.py::test_all_ranks_keep_what_a_callback_of_rank_0_has_found",
    ),
    "a full /dev/shm ends the training": Fault(
        "tfddl/elastic/hand_over.py",
        "with contextlib.suppress(OSError):  # without room",
        "with contextlib.suppress():  # without room",
        "tests/elastic/test_states.py::test_no_room_for_the_files_that_supervisors_read",
    ),
    "a model that has ended keeps its older commits": Fault(
        "tfddl/elastic/commits.py",
        "for old in self._complete()[1:]:\n                    self._path(*old).unlink(missing_ok=True)",
        "for old in self._complete()[2:]:\n                    self._path(*old).unlink(missing_ok=True)",
        "tests/elastic/test_fit.py::test_a_loop_over_models_keeps_one_commit_of_each",
    ),
    "a commit of a rank that has died stays beside that of the others": Fault(
        "tfddl/elastic/commits.py",
        "older = [each for each in files if each[0] < number]",
        "older = [each for each in files if each[0] <= number]",
        "tests/elastic/test_commits.py::test_the_newest_whole_commit",
        ranks=1,
    ),
    "each rank chooses the kind of its data alone": Fault(
        "tfddl/elastic/fit_data.py",
        "    if differ(kinds):",
        "    if not kinds:",
        "tests/elastic/test_fit.py::test_the_data_of_fit",
    ),
    "a commit in the middle of gradient accumulation": Fault(
        "tfddl/elastic/fit.py",
        "self._since >= self._commit_every and passes_done(self.model.optimizer) == 0",
        "self._since >= self._commit_every",
        _CUT,
    ),
    "a rank that cannot build its model leaves the others alone": Fault(
        "tfddl/elastic/fit_state.py",
        "        if any(texts.values()):\n",
        "        if texts[basics.rank()]:\n",
        "tests/elastic/test_fit.py::test_data_that_one_rank_cannot_read",
    ),
    "EarlyStopping forgets": Fault(
        "tfddl/elastic/callback_states.py",
        "                setattr(callback, name, copy.deepcopy(value))\n",
        "                pass\n",
        _CUT,
    ),
    "Dropout draws the same numbers again": Fault(
        "tfddl/elastic/fit_state.py",
        "variable.assign([int(np.asarray(variable)[0]), count])",
        "variable.assign([int(np.asarray(variable)[0]), 0])",
        _CUT,
    ),
    "a rank that hangs is none that is lost": Fault(
        "tfddl/launch/outcome.py",
        "rank.frozen or (rank.stopped and rank.number in stalled) or rank.died",
        "rank.frozen or rank.died",
        "tests/launch/test_outcome.py::test_a_rank_that_hangs_is_lost",
    ),
    "the others go on before all have said so": Fault(
        "tfddl/launch/elastic/survival.py",
        "go_on = all(rank.goes_on_with == len(left) for rank in left)",
        "go_on = any(rank.goes_on_with == len(left) for rank in left)",
        "tests/elastic/test_survival.py::test_all_that_are_left_have_to_go_on",
    ),
    "after a loss only the state of the outermost function goes back": Fault(
        "tfddl/elastic/training.py",
        "                for each in _taken:\n",
        "                for each in _taken[:1]:\n",
        "tests/elastic/test_survival.py::test_ranks_die_and_the_others_go_on",
        extent="rest",
    ),
    "a program that has dealt its data before goes on": Fault(
        "tfddl/data/shards.py",
        '        rank_queries.note("data", "hvd.data")\n',
        "",
        "tests/runtime/test_rank_queries.py::test_calls_of_the_program",
    ),
}
