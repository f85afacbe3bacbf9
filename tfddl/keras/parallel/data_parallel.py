"""`DataParallel`: an unchanged Keras program trains on all ranks, with the numbers of one process."""

import atexit
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import tensorflow as tf

from tfddl import _compat, _graphs
from tfddl.gradients.gradient_options import GradientOptions
from tfddl.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from tfddl.keras.callbacks.metric_average import MetricAverageCallback
from tfddl.keras.consistency import callback_list, model_contents
from tfddl.keras.distributed import patches
from tfddl.keras.distributed.distribute import distribute
from tfddl.keras.distributed.settings import SETTINGS, Settings
from tfddl.keras.metric_states import merge, snapshot
from tfddl.keras.parallel import checks, files, losses, own_callbacks, part, row_losses, seeds, writers
from tfddl.keras.parallel.generators import advanced_shared, share
from tfddl.keras.parallel.order import OrderCallback
from tfddl.keras.parallel.single_batches import SingleBatches
from tfddl.keras.parallel.states import StatesCallback
from tfddl.keras.parallel.strategy import PartStrategy
from tfddl.keras.sync_batch_normalization import synchronized_moments
from tfddl.runtime import basics, launcher_check
from tfddl.runtime.gpu import set_visible_gpu
from tfddl.runtime.log import warn
from tfddl.runtime.process_sets import global_process_set


class DataParallel:
    """Makes an unchanged Keras program train on all ranks, with the numbers of one process.

    Call it once, before the model is made; or start the program with `tfddlrun --auto`, which calls it. The program gives
    `fit` all its data and the global batch size. Each rank builds every global batch, and trains on its part of the rows.
    Without random layers N ranks compute the weights, losses and metrics of one process with the same seed, up to rounding.

    - `fit` and `train_on_batch` divide each batch. Gradients are weighted by rows, so batches need not be divisible by the
      number of ranks. Losses with masks or `mean_with_sample_weight`, and losses of `compile` with `sum`, are those of the
      global batch. The validation of `fit` is divided too. Metrics in `logs` and the history are the whole job's.
    - `evaluate` and `predict` outside of `fit` run whole on every rank.
    - In training, random layers such as Dropout draw other numbers on each rank. So do `keras.random` and `tf.random` in a
      `train_step`.
    - BatchNormalization takes mean and variance over the global batch. Other weights that a layer changes itself follow the
      rank's rows; all ranks take their mean before validation and at the end of an epoch.
    - Rank 0 shows the progress bar and writes files: `model.save`, `save_weights`, `export`, ModelCheckpoint, CSVLogger,
      TensorBoard, BackupAndRestore. `keras.utils.get_file` downloads once on each host.
    - Python generators of `fit` are read by rank 0, which sends the batches to the others. `evaluate` and `predict` do the
      same with a generator that `fit` has read.
    - A `train_step` of your own runs on the rank's rows; its loss has to be a mean over rows.

    Args:
        seed: int for `keras.utils.set_random_seed`, the same on all ranks. Defaults to one that rank 0 draws.
        synchronize_batch_normalization: False leaves BatchNormalization to each rank's rows.

    Raises:
        RuntimeError: Keras 2 is in use.
        ValueError: In `fit`, on every rank: the model has a fixed batch size, a stateful RNN or a loss without reduction;
            tf.distribute, keras.distribution or the program divides the training already; the tensors of a batch have
            different first dimensions; or the ranks have built different batches.

    Example:
        On 2 ranks:

        >>> parallel = hvd.DataParallel(seed=1)
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        >>> model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
        >>> history = model.fit(np.array([[1.0], [2.0], [3.0]]), np.array([[2.0], [0.0], [1.0]]), verbose=0)
        >>> round(float(model.get_weights()[0][0, 0]), 4)  # -0.5 * mean(2 * (0 - y) * x)
        1.6667
        >>> parallel.stop()
    """

    _active: ClassVar["DataParallel | None"] = None

    def __init__(self, *, seed: int | None = None, synchronize_batch_normalization: bool = True) -> None:
        if _compat.is_keras_2():
            raise RuntimeError(
                "DataParallel needs Keras 3: use TensorFlow 2.16 or newer, without TF_USE_LEGACY_KERAS=1. "
                f"Received: Keras {_compat.keras().__version__}"
            )
        basics.init()
        if basics.size() == 1 and not launcher_check.is_launched(os.environ):
            warn(
                "DataParallel has one process to train on. Start the program by tfddlrun -np 2 python train.py; in a "
                "notebook, call DataParallel inside of a function, and the function by tfddl.run(train, np=2)."
            )
        set_visible_gpu()
        self.seed = seeds.set_seed(seed)
        self.synchronizes_batch_normalization = synchronize_batch_normalization
        self.has_divided = False
        DataParallel._active = self
        atexit.register(_warn_of_no_training, self)
        callback_list.watch()
        _graphs.separate_traces(part.trace_key)
        patches.divide_training(_METHODS)
        patches.divide_losses(
            losses.with_callers_known,
            losses.with_global_sums,
            losses.with_global_masks,
            losses.with_global_additions,
        )
        patches.add_rows(losses.with_rows_added)
        patches.try_losses(row_losses.with_rows_tried)
        patches.divide_metrics(losses.with_rows_as_weight, losses.with_numbers_of_a_step)
        patches.synchronize_batch_normalization(_moments)
        patches.draw_seeds(seeds.with_streams)

    def stop(self) -> None:
        """Ends it: later calls of `fit` train on this rank alone, unless their optimizer is distributed."""
        DataParallel._active = None

    @classmethod
    def divides(cls) -> bool:
        """Whether a DataParallel is active in a job of several ranks."""
        return cls._active is not None and basics.size() > 1

    @classmethod
    def seeds(cls) -> tuple[int, ...]:
        """The seed of the active DataParallel, also in a job of one rank. Empty without one."""
        return () if cls._active is None else (cls._active.seed,)


class _OfOneProcess(GradientOptions):
    """One process leaves the rows of an embedding's gradient as they are, and so its Adam squares each."""

    merge_slices = False


class _Methods:
    """The methods of models, in a job of several ranks."""

    def __init__(self) -> None:
        self._fits = 0
        self._order: OrderCallback | None = None  # of the fit that is under way
        self._single_batches = SingleBatches()

    def fit(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`Model.fit` on this rank's parts of the global batches."""
        signature = inspect.signature(plain)

        def fit(model: Any, *arguments: Any, **options: Any) -> Any:
            call = signature.bind(model, *arguments, **options)
            listed = callback_list.callbacks_of(call.arguments)
            checks.check_program(model, listed)
            order = self._order = OrderCallback(shows_batch=call.arguments.get("verbose", "auto") != 0)
            average = MetricAverageCallback()
            average.decided_by_rank_0 = True  # the others take back the rows of a batch that all ranks have
            broadcast = BroadcastGlobalVariablesCallback(0)
            broadcast.refuses_divergence = True
            added = [broadcast, average, order]
            shared = share(call)
            added += shared
            # The broadcast gives all ranks what BackupAndRestore restores on rank 0.
            first = [each for each in listed if writers.is_backup(each)]
            rest = [each for each in listed if not writers.is_backup(each)]
            call.arguments["callbacks"] = [StatesCallback(), *first, *added, *rest]
            _quiet(call)
            self._distribute(model)
            checkpoints = [os.path.abspath(each.filepath) for each in listed if writers.is_checkpoint(each)]
            files.exchange_paths(checkpoints, "DataParallel.fit")
            reads_ahead = _are_arrays(call.arguments.get("x"))
            strategy = PartStrategy(model, self._distribute, order.watch, reads_ahead)
            with self._divided(model, strategy), writers.writing_on_rank_0(listed):
                try:
                    history = plain(*call.args, **call.kwargs)
                finally:
                    self._order = None
                    for each in shared:
                        each.close()
            writers.share_best(listed)
            own_callbacks.compare_weights(model, listed)
            return history

        return _if_active(plain, fit)

    def train_on_batch(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`Model.train_on_batch` on this rank's part of the batch."""
        signature = inspect.signature(plain)

        def train_on_batch(model: Any, *arguments: Any, **options: Any) -> Any:
            call = signature.bind(model, *arguments, **options)
            wants_dictionary = call.arguments.get("return_dict", False)
            call.arguments["return_dict"] = True
            if model.train_function is None:  # the first time after compile()
                checks.check_program(model, [])
                self._distribute(model)
            batch = [call.arguments.get(name) for name in ("x", "y", "sample_weight")]
            with (
                self._divided(model, PartStrategy(model, self._distribute)),
                self._single_batches.next(model, batch),
            ):
                logs = plain(*call.args, **call.kwargs)
            owner = "DataParallel.train_on_batch"
            merge(logs, {"": snapshot(model)}, owner, global_process_set, decided_by_rank_0=True)
            return logs if wants_dictionary else _compat.results_of_evaluate(model, logs)

        return _if_active(plain, train_on_batch)

    def whole(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A method that runs whole on every rank, also in a callback of `fit`, unless it is the validation of `fit`."""
        signature = inspect.signature(plain)

        def whole(model: Any, *arguments: Any, **options: Any) -> Any:
            call = signature.bind(model, *arguments, **options)
            if "verbose" in signature.parameters:
                _quiet(call)
            if options.get("_use_cached_eval_dataset"):
                return plain(*call.args, **call.kwargs)
            with self._divided(model, None), advanced_shared(call), self._rows_on_rank_0(model, plain):
                return plain(*call.args, **call.kwargs)

        return _if_active(plain, whole)

    @contextmanager
    def _rows_on_rank_0(self, model: Any, plain: Callable[..., Any]) -> Iterator[None]:
        """Keras adds the rows that `fit` trains on next to those that a callback evaluates; only rank 0 counts these."""
        others = self._fits > 0 and basics.rank() > 0
        variables = [variable for metric in model.metrics for variable in metric.variables] if others else []
        before = [tf.convert_to_tensor(variable) for variable in variables]
        yield
        if others and _compat.starts_metrics_anew(plain):
            model.reset_metrics()
        elif others:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

    def build(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`Model._maybe_symbolic_build`: not for parts. An iterator made for it would draw random numbers."""

        @functools.wraps(plain)
        def build(model: Any, *arguments: Any, **options: Any) -> None:
            if not isinstance(model._distribute_strategy, PartStrategy):
                plain(model, *arguments, **options)

        return build

    def writes(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A function that writes a file."""
        return _if_active(plain, files.by_rank_0(plain, lambda: self._fits > 0))

    def reads(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A function that reads a file."""

        def is_training() -> bool:
            return self._order is not None and self._order.has_begun

        return _if_active(plain, files.after_rank_0(plain, is_training))

    def downloads(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """`keras.utils.get_file`."""
        return _if_active(plain, files.by_first_rank_of_host(plain))

    def _distribute(self, model: Any) -> None:
        checks.check_optimizers(model, _is_ours)
        for optimizer in model_contents.optimizers_of(model):
            distribute(optimizer, Settings("DataParallel", _OfOneProcess()))

    @contextmanager
    def _divided(self, model: Any, strategy: PartStrategy | None) -> Iterator[None]:
        before = model._distribute_strategy
        if strategy is not None and DataParallel._active is not None:
            DataParallel._active.has_divided = True
        model._distribute_strategy = strategy
        self._fits += strategy is not None
        try:
            yield
        finally:
            model._distribute_strategy = before
            self._fits -= strategy is not None


_METHODS = _Methods()


def _is_ours(optimizer: Any) -> bool:
    """Whether DataParallel has distributed an optimizer, or the optimizer of which it is a copy, or that is inside it."""
    settings = vars(_compat.innermost(optimizer)).get(SETTINGS)
    return settings is not None and isinstance(settings.options, _OfOneProcess)


def _warn_of_no_training(parallel: DataParallel) -> None:
    if (
        DataParallel._active is parallel
        and not parallel.has_divided
        and basics.is_initialized()
        and basics.size() > 1
    ):
        warn(
            "DataParallel has divided nothing: the program calls neither fit nor train_on_batch of a Keras model, so each "
            f"of {basics.size()} processes has done all the work, unless the program shards its data. Use fit; or start a "
            "loop of your own without --auto and DataParallel, with hvd.init(), hvd.data.shard, "
            "hvd.DistributedGradientTape and hvd.broadcast_variables(model.weights + optimizer.variables): see "
            "docs/guides/custom-loops.md."
        )


def _if_active(plain: Callable[..., Any], divided: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*arguments: Any, **options: Any) -> Any:
        return (divided if DataParallel.divides() else plain)(*arguments, **options)

    return call


def _moments(layer: Any, plain: Callable[..., Any], inputs: Any, mask: Any) -> tuple[Any, Any]:
    """The statistics of BatchNormalization in training."""
    active = DataParallel._active
    if part.current() is None or active is None or not active.synchronizes_batch_normalization:
        moments: tuple[Any, Any] = plain(layer, inputs, mask)
        return moments
    return synchronized_moments(inputs, mask, list(layer._reduction_axes))


def _are_arrays(data: Any) -> bool:
    return all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(data))


def _quiet(call: inspect.BoundArguments) -> None:
    """Leaves the progress bar to rank 0."""
    if basics.rank() > 0:
        call.arguments["verbose"] = 0
