"""Faults of callbacks, layers and metrics of Keras."""

from tests.mutants.fault import Fault

FAULTS = {
    "a part of a batch has the weight of any other": Fault(
        "tfddl/keras/parallel/part.py",
        "tf.where(self.is_whole, alone, own)",
        "tf.where(self.is_whole, alone, tf.ones_like(own))",
        "tests/keras/parallel/test_equal_to_one_process.py::test_a_program",
    ),
    "a batch that all ranks have counts on all of them": Fault(
        "tfddl/keras/parallel/strategy.py",
        "        if basics.rank() > 0:\n",
        "        if basics.rank() > 9:\n",
        "tests/keras/parallel/test_equal_to_one_process.py::test_a_program",
    ),
    "a mask's denominator is the rank's": Fault(
        "tfddl/keras/parallel/losses.py",
        "        return result * tf.cast(factor, result.dtype)\n\n    return apply\n",
        "        return result\n\n    return apply\n",
        "tests/keras/parallel/test_equal_to_one_process.py::test_a_program",
    ),
    "an iterator reads ahead": Fault(
        "tfddl/keras/parallel/data_parallel.py",
        "if not isinstance(model._distribute_strategy, PartStrategy):",
        "if True:",
        "tests/keras/parallel/test_equal_to_one_process.py::test_a_program",
    ),
    "other batches on another rank pass": Fault(
        "tfddl/keras/parallel/order.py",
        "if digest != digests[0]",
        "if digest is None",
        "tests/keras/parallel/test_data_parallel.py::test_a_program_that_cannot_be_divided",
    ),
    "all ranks have the same dropout": Fault(
        "tfddl/keras/parallel/seeds.py",
        "(first + basics.rank() * _STRIDE)",
        "(first + _STRIDE)",
        "tests/keras/parallel/test_data_parallel.py::test_random_layers_draw_other_numbers_on_each_rank",
    ),
    "every rank reads its generator": Fault(
        "tfddl/keras/parallel/generators.py",
        "(next(self._generator, None),) if basics.rank() == 0 else None",
        "(next(self._generator, None),)",
        "tests/keras/parallel/test_data_parallel.py::test_only_rank_0_reads_a_generator",
    ),
    "every rank writes a model": Fault(
        "tfddl/keras/parallel/files.py",
        "_first(basics.rank() == 0, functools",
        "_first(basics.rank() >= 0, functools",
        "tests/keras/parallel/test_data_parallel.py::test_rank_0_writes",
    ),
    "the warm-up reaches the rate a batch late": Fault(
        "tfddl/keras/callbacks/learning_rate.py",
        "min(batch + _compat.steps_per_execution(self.model), self.steps_per_epoch or 1)",
        "min(batch, self.steps_per_epoch or 1)",
        "tests/keras/test_learning_rate.py::test_warmup",
    ),
    "the warm-up begins at the full rate": Fault(
        "tfddl/keras/callbacks/learning_rate.py",
        "(epoch * (size - 1) / self.warmup_epochs + 1) / size",
        "(epoch * (size - 1) / self.warmup_epochs + 1)",
        "tests/keras/test_learning_rate.py::test_warmup",
    ),
    "a schedule goes on behind its last epoch": Fault(
        "tfddl/keras/callbacks/learning_rate.py",
        "self.current_epoch >= self.end_epoch",
        "self.current_epoch > self.end_epoch",
        "tests/keras/test_learning_rate.py::test_staircase_and_scopes",
    ),
    "epochs count from the beginning of fit": Fault(
        "tfddl/keras/callbacks/learning_rate.py",
        "        self.current_epoch = epoch\n",
        "        self.current_epoch = self.current_epoch + 1 if epoch else 0\n",
        "tests/keras/test_learning_rate.py::test_epochs_are_absolute",
    ),
    "momentum is corrected the wrong way": Fault(
        "tfddl/keras/callbacks/momentum_correction.py",
        "slot.assign(slot * (after / before))",
        "slot.assign(slot * (before / after))",
        "tests/keras/test_learning_rate.py::test_momentum_correction",
    ),
    "a metric is not averaged": Fault(
        "tfddl/keras/metric_states.py",
        "value = total / size if key in means else exact[key]",
        "value = total if key in means else exact[key]",
        "tests/keras/test_callbacks.py::test_metrics_are_averaged_in_place",
    ),
    "an AUC is the mean over ranks": Fault(
        "tfddl/keras/metric_states.py",
        "value = total / size if key in means else exact[key]",
        "value = total / size",
        "tests/keras/test_metrics.py::test_fit_and_its_validation",
    ),
    "metrics keep the state of all ranks": Fault(
        "tfddl/keras/metric_states.py",
        "            _assign(self.variables, before)\n",
        "            pass\n",
        "tests/keras/test_metrics.py::test_evaluate",
    ),
    "a checkpoint is written by the last rank": Fault(
        "tfddl/keras/callbacks/best_model_checkpoint.py",
        "return basics.rank() == members(self.process_set)[0]",
        "return basics.rank() == members(self.process_set)[-1]",
        "tests/keras/test_best_model_checkpoint.py::test_the_best_of_the_job",
    ),
    "ranks stop only if all want to": Fault(
        "tfddl/keras/callbacks/stop.py",
        "self._postponed, self.model.stop_training = False, any(wants.values())",
        "self._postponed, self.model.stop_training = False, all(wants.values())",
        "tests/keras/test_stop.py::test_put_off_to_the_end_of_the_epoch",
    ),
    "a rank stops in the middle of an epoch": Fault(
        "tfddl/keras/callbacks/stop.py",
        "            self._postponed, self.model.stop_training = True, False\n",
        "            self._postponed = True\n",
        "tests/keras/test_stop.py::test_put_off_to_the_end_of_the_epoch",
    ),
    "all ranks get the weights of rank 0": Fault(
        "tfddl/keras/callbacks/broadcast.py",
        "broadcast_variables(variables, self.root_rank, self.process_set)",
        "broadcast_variables(variables, 0, self.process_set)",
        "tests/keras/test_callbacks.py::test_the_roots_variables",
    ),
    "local variables are broadcast": Fault(
        "tfddl/keras/callbacks/broadcast.py",
        "each for each in everything if not self.keeps(each) and variable_id(each) not in self._sent",
        "each for each in everything if variable_id(each) not in self._sent",
        "tests/keras/test_callbacks.py::test_random_layers_and_local_variables_keep_their_own",
    ),
    "variables of the first step are not broadcast": Fault(
        "tfddl/keras/callbacks/broadcast.py",
        "            self._look_for_divergence()\n            self._broadcast_new()\n",
        "            self._look_for_divergence()\n",
        "tests/keras/test_callbacks.py::test_a_model_built_by_its_first_step",
    ),
    "a variance lacks the distance between the ranks' means": Fault(
        "tfddl/keras/sync_batch_normalization.py",
        "        distances += counts * tf.square(means - middle)\n",
        "",
        "tests/keras/test_sync_batch_normalization.py::test_equal_to_one_process",
    ),
    "the gradient of a batch normalization is the own rank's": Fault(
        "tfddl/keras/sync_batch_normalization.py",
        "by_mean, by_variance = tf.unstack(tf.math.divide_no_nan(totals, rows))",
        "by_mean, by_variance = tf.unstack("
        "tf.math.divide_no_nan(tf.stack([of_mean, of_variance]) + 0 * totals, rows))",
        "tests/keras/test_sync_batch_normalization.py::test_equal_to_one_process",
    ),
    "LAMB ignores the norm of the weights": Fault(
        "tfddl/keras/optimizers/layerwise.py",
        "tf.where(usable, factor * numerator / safe, tf.ones_like(safe))",
        "tf.where(usable, factor / safe, tf.ones_like(safe))",
        "tests/keras/test_large_batch_optimizers.py::test_the_papers_formulas",
        ranks=1,
    ),
    "weights are compared at the wrong steps": Fault(
        "tfddl/keras/consistency/weights_check.py",
        "self._steps - self._equal_at >= self._every",
        "self._steps - self._equal_at > self._every",
        "tests/keras/test_weights_check.py::test_the_first_weight_that_differs_is_named",
    ),
    "a late backup is not noticed": Fault(
        "tfddl/keras/consistency/backup_check.py",
        "callbacks.index(each) > callbacks.index(broadcast)",
        "callbacks.index(each) < callbacks.index(broadcast)",
        "tests/keras/test_weights_check.py::test_backups_that_do_not_resume_together",
    ),
}
