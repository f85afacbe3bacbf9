"""DistributedGradientTape: a tf.GradientTape whose gradients are those of all ranks together."""

from typing import Any

import tensorflow as tf

from tfddl.gradients.compression import Compression, Compressor, check_compression
from tfddl.gradients.reduction import check_op, reduce_gradients
from tfddl.ops import names
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet, global_process_set, id_of

_OWNER = "DistributedGradientTape"
"""The name of all tapes in eager mode, where a loop makes a new one each step and one reduction is over before the next
begins. In a tf.function they are counted."""


class DistributedGradientTape(tf.GradientTape):
    """A `tf.GradientTape` that combines gradients over all ranks.

    Wraps a tape that records already, or one that is still to be entered:

        with tfddl.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = ...
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    Every rank has to ask for the gradients of the same sources, and get None for the same ones.

    Given to a `tfddl.DistributedOptimizer` as they are, the gradients are not reduced a second time.
    Gradients that you change in between are new tensors, which that optimizer reduces as well: no harm with
    `op=tfddl.Average` and `op=tfddl.Adasum`, which make of equal values that value, but with `op=tfddl.Sum`
    use one of the two, not both.

    `jacobian` and `batch_jacobian` are this rank's own, as in Horovod.

    Args:
        gradtape: The `tf.GradientTape` to wrap.
        compression: What gradients travel as. Defaults to `tfddl.Compression.none`.
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`. Defaults to `tfddl.Average`.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes a dense tensor before it is reduced. Defaults to
            False: the rows of all ranks are gathered.
        process_set: Whose ranks combine their gradients; on another rank they are the rank's own. Defaults to all.

    Raises:
        TypeError: If `gradtape` is not a `tf.GradientTape`, `compression` no compressor, or `process_set` no
            `ProcessSet`.
        ValueError: For another `op`, or a `process_set` that is not part of the job.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        *,
        compression: type[Compressor] = Compression.none,
        op: int = Average,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(
                f"DistributedGradientTape wraps a tf.GradientTape. Received: gradtape={gradtape!r}"
            )
        # The base class is not initialised: a tape of its own would record next to the wrapped one.
        self._wrapped = gradtape
        self._compression = check_compression(compression)
        self._op = check_op(op)
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        # Numbered here, where the program makes it: ranks may call gradient() of two tapes in different orders.
        self._owner = names.numbered(_OWNER, id_of(process_set, _OWNER)) + "/gradient"

    def __enter__(self) -> "DistributedGradientTape":
        self._wrapped.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
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
            Gradients in the structure of `sources`, None where `sources` has no influence on `target`. A
            `tf.IndexedSlices` has the rows of all ranks, each index once.

        Raises:
            ValueError: Inside a function compiled by XLA where there are no XLA kernels.
        """
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        flat, variables = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        reduced = reduce_gradients(
            flat,
            variables if len(variables) == len(flat) else None,
            owner=self._owner,
            op=self._op,
            compression=self._compression,
            sparse_as_dense=self._sparse_as_dense,
            process_set=self._process_set,
        )
        return tf.nest.pack_sequence_as(gradients, reduced)

    def jacobian(self, *arguments: Any, **options: Any) -> Any:
        """See `tf.GradientTape.jacobian`; not reduced."""
        return self._wrapped.jacobian(*arguments, **options)

    def batch_jacobian(self, *arguments: Any, **options: Any) -> Any:
        """See `tf.GradientTape.batch_jacobian`; not reduced."""
        return self._wrapped.batch_jacobian(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        # The rest of the tape (`_tape`, `_persistent`, ...), which TensorFlow and Keras look at in places.
        if name == "_wrapped":
            raise AttributeError(name)
        return getattr(self._wrapped, name)
