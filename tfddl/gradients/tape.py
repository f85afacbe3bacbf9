"""`DistributedGradientTape`: a `tf.GradientTape` that combines gradients over all ranks."""

from contextvars import ContextVar
from typing import Any, Unpack

import tensorflow as tf

from tfddl.gradients.gradient_options import GradientKeywords, GradientOptions
from tfddl.gradients.local_sources import LocalSources, check_layers
from tfddl.gradients.reduction import reduce_gradients
from tfddl.ops import names
from tfddl.ops.compression import StatefulCompressor, name_of
from tfddl.runtime import basics
from tfddl.runtime.log import warn_once
from tfddl.runtime.process_sets import id_of

_OWNER = "DistributedGradientTape"
"""The name of all tapes in eager mode: a loop makes a new tape each step, and one reduction ends before the next begins. In
a tf.function tapes are numbered."""
_recording: ContextVar[tuple[Any, ...]] = ContextVar("recording", default=())
"""The distributed tapes of this thread whose `with` has not ended."""


class DistributedGradientTape(tf.GradientTape):
    """A `tf.GradientTape` that combines gradients over all ranks.

    Wraps a tape, which may record already:

        with tfddl.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = ...
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    Every rank has to ask for the gradients of the same sources, and get None for the same ones.

    A `tfddl.DistributedOptimizer` does not reduce these gradients a second time, unless you change them first: changed
    gradients are new tensors, and the optimizer reduces them again. This does no harm with `op=tfddl.Average` and
    `op=tfddl.Adasum`, since equal values stay as they are. With `op=tfddl.Sum` or with local sources use either the tape
    or the optimizer, not both.

    The gradients of local sources (`register_local_source`) are not combined, and neither are `jacobian` and
    `batch_jacobian`, as in Horovod.

    Args:
        gradtape: The `tf.GradientTape` to wrap.
        compression: The format in which gradients travel: a value of `tfddl.Compression`, or an instance of
            `tfddl.PowerSGD` or `tfddl.Compression.int8` that is made once for the tapes of all steps. Defaults to
            `tfddl.Compression.none`.
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`. Defaults to `tfddl.Average`.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes a dense tensor before it is reduced. This is faster if all
            ranks together have about as many rows as the variable, or more. Defaults to False: the rows of all ranks
            are gathered.
        gradient_predivide_factor: Divides the gradients before they are added up, and multiplies the sum. The number of
            ranks as the factor keeps large sums finite. For `op=tfddl.Average` only. Defaults to 1.
        groups: Gradients that travel together, in one piece for each dtype: a number of groups of neighbours, or a list
            of lists of variables. All other gradients travel in buckets of `TFDDL_BUCKET_MB`. Defaults to None.
        num_groups: Deprecated; use `groups`.
        process_set: The ranks that combine their gradients. Another rank gets its own gradients. Defaults to all ranks.
        scale_local_gradients: Whether gradients of local sources are divided by the number of ranks, so that they
            belong to the mean over the rows of all ranks. With any `op`, as in Horovod: pass
            False with Sum or Adasum, which take no mean. Defaults to True.
        device_dense: Only `""`: gradients are combined on the device that has computed them.
        device_sparse: The same.

    Raises:
        TypeError: If `gradtape` is not a `tf.GradientTape`, `compression` no compressor, `process_set` no `ProcessSet`, or a
            bool neither True nor False; for an unknown argument.
        ValueError: For another `op`; for a `process_set` that is not part of the job; for a `gradient_predivide_factor`
            that is not positive, or not 1 with another `op` than Average; for wrong `groups`; for a device; for a
            compression that keeps errors, if it is a class and no instance, or with Adasum.

    Example:
        On 2 ranks:

        >>> x = tf.Variable(1.0 + hvd.rank())  # 1 and 2
        >>> with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        ...     loss = x * x
        >>> float(tape.gradient(loss, x))
        3.0
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        **options: Unpack[GradientKeywords],
    ) -> None:
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(
                "DistributedGradientTape wraps a tf.GradientTape: pass the tape that recorded the loss. "
                f"Received: gradtape={gradtape!r}"
            )
        # Does not call the base class, which would make a second tape.
        self._wrapped = gradtape
        self._options = GradientOptions.of("DistributedGradientTape", options)
        compression = self._options.compression
        if isinstance(compression, type) and issubclass(compression, StatefulCompressor):
            raise ValueError(
                "This compression keeps errors from step to step, and each step has a tape of its own: make one instance "
                f"before the loop, compression = hvd.{compression.spelling}(), and give it to each tape. "
                f"Received: compression={name_of(compression)}"
            )
        self._local = LocalSources()
        # Numbered here and not in gradient(): ranks may call gradient() of two tapes in different orders.
        self._owner = names.numbered(_OWNER, id_of(self._options.process_set, _OWNER)) + "/gradient"

    def register_local_source(self, source: Any) -> None:
        """Excludes the gradient of a variable, or of a tensor that the tape watches, from combining."""
        self._local.add(source)

    def __enter__(self) -> "DistributedGradientTape":
        self._wrapped.__enter__()
        _recording.set((*_recording.get(), self))
        return self

    def __exit__(self, *exception: Any) -> None:
        _recording.set(tuple(tape for tape in _recording.get() if tape is not self))
        self._wrapped.__exit__(*exception)

    def watch(self, tensor: Any) -> None:
        """See `tf.GradientTape.watch`."""
        self._wrapped.watch(tensor)

    def stop_recording(self) -> Any:
        """See `tf.GradientTape.stop_recording`."""
        return self._wrapped.stop_recording()

    def reset(self) -> None:
        """See `tf.GradientTape.reset`."""
        self._wrapped.reset()

    def watched_variables(self) -> Any:
        """See `tf.GradientTape.watched_variables`."""
        return self._wrapped.watched_variables()

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradient of `target` with respect to `sources`, combined over all ranks.

        Args:
            target: See `tf.GradientTape.gradient`.
            sources: Tensors or variables, nested as you like.
            output_gradients: See `tf.GradientTape.gradient`.
            unconnected_gradients: See `tf.GradientTape.gradient`.

        Returns:
            Gradients in the structure of `sources`; None for a source without influence on `target`. A
            `tf.IndexedSlices` has the rows of all ranks, each index once.

        Raises:
            ValueError: In a function that XLA compiles, if there are no XLA kernels.
        """
        if any(tape is not self for tape in _recording.get()) and basics.size() > 1:
            warn_once(
                "A DistributedGradientTape computes a gradient inside the `with` of another one. If the loss of the outer "
                "tape uses this gradient, the loss has a mean over all ranks in place of the rank's own gradient: wrap only "
                "the outer tape, whose gradients go to the optimizer, and make the inner one with tf.GradientTape()."
            )
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        flat, variables = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        reduced = reduce_gradients(
            flat,
            variables if len(variables) == len(flat) else None,
            owner=self._owner,
            options=self._options,
            local=self._local,
        )
        return tf.nest.pack_sequence_as(gradients, reduced)

    def jacobian(self, *arguments: Any, **options: Any) -> Any:
        """See `tf.GradientTape.jacobian`; not reduced."""
        return self._wrapped.jacobian(*arguments, **options)

    def batch_jacobian(self, *arguments: Any, **options: Any) -> Any:
        """See `tf.GradientTape.batch_jacobian`; not reduced."""
        return self._wrapped.batch_jacobian(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        # TensorFlow and Keras read other attributes of a tape (`_tape`, `_persistent`, ...).
        if name == "_wrapped":
            raise AttributeError(name)
        return getattr(self._wrapped, name)


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, *, local_layers: Any = None, **options: Unpack[GradientKeywords]
) -> DistributedGradientTape:
    """A `tfddl.DistributedGradientTape` that does not combine the gradients of some layers.

    The layers may be built later. If their variables have to begin with different values, give them to
    `BroadcastGlobalVariablesCallback` as `local_variables`.

    Args:
        gradtape: The `tf.GradientTape` to wrap.
        local_layers: A Keras layer or a list of them, whose trainable weights are local. Defaults to none.
        **options: The other arguments of `tfddl.DistributedGradientTape`.

    Returns:
        The tape.

    Raises:
        TypeError: See `tfddl.DistributedGradientTape`.
        ValueError: See `tfddl.DistributedGradientTape`; or if `local_layers` is anything else.
    """
    layers = check_layers(local_layers)
    tape = DistributedGradientTape(gradtape, **options)
    tape._local.add_layers(layers)
    return tape
