"""Faults in optimizers whose state is divided among the ranks, and in their files."""

from tests.mutants.fault import Fault

_OPTIMIZER = "tests/keras/sharded/test_sharded_optimizer.py::"
_CHECKPOINT = "tests/keras/sharded/test_sharded_checkpoint.py::"
_DIRECTORY = "tests/keras/sharded/test_checkpoint_directory.py::"

FAULTS = {
    "checkpoints of a program that does not restore are older": Fault(
        "tfddl/keras/sharded/checkpoint.py",
        "newest_number(self._base)\n",
        "0\n",
        _DIRECTORY + "test_a_program_that_does_not_restore",
    ),
    "a layer computes with what it had adapted to": Fault(
        "tfddl/keras/sharded/checkpoint.py",
        "            model_contents.finalize_layers(self._model)\n",
        "",
        _DIRECTORY + "test_adapted_layers",
    ),
    "a slice begins anywhere": Fault(
        "tfddl/gradients/scatter.py",
        "BLOCK = 64\n",
        "BLOCK = 1\n",
        _OPTIMIZER + "test_each_kind_has_the_same_bits",
    ),
    "gradients of slices are not scaled before": Fault(
        "tfddl/gradients/scatter.py",
        "prescale=1 / options.gradient_predivide_factor",
        "prescale=1",
        _OPTIMIZER + "test_each_option_has_the_same_bits",
    ),
    "each rank clips by the norms of its slices": Fault(
        "tfddl/keras/distributed/sharded_optimizer.py",
        "            squares = allreduce(squares, op=Sum, name=name, ignore_name_scope=True, process_set=process_set)\n",
        "            assert name\n",
        _OPTIMIZER + "test_norms_are_those_of_whole_gradients",
    ),
    "an update begins with the slices of the last one": Fault(
        "tfddl/keras/distributed/sharded_optimizer.py",
        "            each.take()\n",
        "            assert each\n",
        _OPTIMIZER + "test_each_kind_has_the_same_bits",
    ),
    "averages of weights stay on their rank": Fault(
        "tfddl/keras/distributed/sharded_optimizer.py",
        "[each.part for each in mine])\n        self._spread(mine)\n\n    def save",
        "[each.part for each in mine])\n\n    def save",
        _OPTIMIZER + "test_each_option_has_the_same_bits",
    ),
    "a broadcast gives all ranks the slices of one": Fault(
        "tfddl/ops/variables.py",
        "for variable in variables if whole_of(variable) is None]",
        "for variable in variables]",
        _OPTIMIZER + "test_broadcasts_leave_slices_alone",
    ),
    "an optimizer that looks at whole variables is divided": Fault(
        "tfddl/keras/sharded/elementwise.py",
        "rtol=1e-4, atol=1e-6",
        "rtol=1e9, atol=1e-6",
        _OPTIMIZER + "test_refusals",
    ),
    "a commit holds the slices of one rank": Fault(
        "tfddl/elastic/variables_state.py",
        "list(whole_values(self.variables, _copied))",
        "list(map(_copied, self.variables))",
        _CHECKPOINT + "test_elastic_states",
    ),
    "slots that are not gathered together with others are lost": Fault(
        "tfddl/ops/variables.py",
        "            yield from _at_once(together)\n            together, elements = [], 0\n",
        "            together, elements = [], 0\n",
        "tests/keras/sharded/test_sharded_files.py::test_a_file_loads_without_tfddl",
    ),
    "each rank saves by its own metric": Fault(
        "tfddl/keras/callbacks/best_model_checkpoint.py",
        "            logs.pop(self.monitor, None)\n"
        "            logs.update({self.monitor: values[first]} if known[first] else {})\n",
        "            pass\n",
        "tests/keras/sharded/test_sharded_files.py::test_the_best_model_of_a_process_set",
        ranks=3,
    ),
    "local layers of a tape are restored from one rank": Fault(
        "tfddl/keras/sharded/contents.py",
        "    local |= {_id(each) for each in model.variables if _is_own(each)}\n",
        "",
        _CHECKPOINT + "test_local_layers",
    ),
    "a checkpoint counts before all parts are there": Fault(
        "tfddl/keras/sharded/parts.py",
        "return all(self.part",
        "return any(self.part",
        _CHECKPOINT + "test_damage",
    ),
    "a checkpoint has the averages that Keras has put into the model": Fault(
        "tfddl/keras/consistency/callback_list.py",
        "        each.on_epoch_begin(epoch)\n",
        "        pass\n",
        _CHECKPOINT + "test_averages_in_the_model",
    ),
    "an epoch that is cut counts as done": Fault(
        "tfddl/keras/callbacks/sharded_checkpoint.py",
        "epoch if self._is_cut else epoch + 1",
        "epoch + 1",
        _CHECKPOINT + "test_an_epoch_that_is_cut",
    ),
    "an exchange under way is not in a checkpoint": Fault(
        "tfddl/keras/local_steps.py",
        "return [*self.outer_variables, *held]",
        "return self.outer_variables",
        _CHECKPOINT + "test_local_steps_go_on",
    ),
    "a rank may join while it holds a slice": Fault(
        "tfddl/keras/distributed/slices.py",
        "            join.need_all(process_set, self)\n",
        "            assert join\n",
        _OPTIMIZER + "test_refusals",
    ),
}
