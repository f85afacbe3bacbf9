"""Faults in LocalSGD and DiLoCo."""

from tests.mutants.fault import Fault

_TESTS = "tests/keras/test_local_steps.py::"

FAULTS = {
    "without a broadcast ranks keep the weights that they have restored": Fault(
        "tfddl/keras/callbacks/local_steps.py",
        "        stop.add_to(callbacks, self.process_set, trains_alone=True)\n",
        "",
        _TESTS + "test_the_best_weights_are_restored",
    ),
    "averages of weights violate constraints": Fault(
        "tfddl/keras/fragments.py",
        "    if constraint is not None:\n",
        "    if False:\n",
        _TESTS + "test_constraints",
    ),
    "frozen weights are averaged": Fault(
        "tfddl/keras/statistics.py",
        "strict=True) if differs]",
        "strict=True)]",
        _TESTS + "test_what_travels",
    ),
    "a variable that the model does not track differs between ranks": Fault(
        "tfddl/keras/callbacks/local_steps.py",
        "            self._check_trained()\n",
        "            pass\n",
        "tests/keras/test_odd_training.py::test_a_step_that_trains_a_variable_of_its_own",
    ),
    "an exchange under way at the next one is lost": Fault(
        "tfddl/keras/local_steps.py",
        "(begins or self.steps >= self._under_way[1])",
        "self.steps >= self._under_way[1]",
        _TESTS + "test_executions_of_different_lengths",
    ),
    "int8 rounds to the nearest value": Fault(
        "tfddl/gradients/quantized.py",
        "tf.floor(exact + tf.random.stateless_uniform(tf.shape(blocks), seed))",
        "tf.round(exact)",
        _TESTS + "test_int8",
    ),
    "what a rank finds during an exchange is lost": Fault(
        "tfddl/keras/fragments.py",
        "            if mixing:\n                own",
        "            if False:\n                own",
        _TESTS + "test_streaming_in_numpy",
    ),
    "moving averages of weights stay on their rank": Fault(
        "tfddl/keras/callbacks/local_steps.py",
        "        if model_contents.ends_with_averages(self.model):\n",
        "        if False:\n",
        _TESTS + "test_moving_averages_of_weights",
    ),
    "a fit begins at the weights of the fit before": Fault(
        "tfddl/keras/callbacks/local_steps.py",
        "if self._begins or before is not current:",
        "if before is not current:",
        _TESTS + "test_weights_that_change_between_two_fits",
    ),
    "a fit exchanges the variables of the fit before": Fault(
        "tfddl/keras/callbacks/local_steps.py",
        "self._local is None or list(map(id, variables)) != list(map(id, self._variables))",
        "self._local is None",
        _TESTS + "test_variables_that_change_within_a_fit_or_between_two",
    ),
}
