"""DistributedGradientTape: a tf.GradientTape whose gradients are those of all ranks together."""

from typing import Any

import tensorflow as tf

from tfddl.gradients.gradient_options import checked
from tfddl.gradients.local_sources import LocalSources, check_layers
from tfddl.gradients.reduction import reduce_gradients
from tfddl.ops import names
from tfddl.ops.compression import Compression, Compressor
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
    `op=tfddl.Average` and `op=tfddl.Adasum`, which make of equal values that value. With `op=tfddl.Sum`, and
    with local sources, whose gradients that optimizer would combine, use one of the two, not both.

    The gradients of local sources (`register_local_source`) are not combined. `jacobian` and `batch_jacobian` are this
    rank's own, as in Horovod.

    Args:
        gradtape: The `tf.GradientTape` to wrap.
        compression: What gradients travel as. Defaults to `tfddl.Compression.none`.
        op: `tfddl.Average`, `tfddl.Sum` or `tfddl.Adasum`. Defaults to `tfddl.Average`.
        sparse_as_dense: Whether a `tf.IndexedSlices` becomes a dense tensor before it is reduced. That is faster where
            the rows of all ranks together are about as many as the variable has, or more. Defaults to False: the rows
            of all ranks are gathered.
        gradient_predivide_factor: Every rank's gradient is divided by it before they are added up, and the sum
            multiplied by it: a factor of the number of ranks keeps large sums finite. For `op=tfddl.Average` only.
            Defaults to 1.
        groups: Gradients that travel together, for each dtype in one piece: a number of groups of neighbours, or a
            list of lists of variables. Defaults to None: buckets of `TFDDL_BUCKET_MB`, as the rest where variables
            are listed.
        num_groups: Deprecated; use `groups`.
        process_set: Whose ranks combine their gradients; on another rank they are the rank's own. Defaults to all.
        scale_local_gradients: Whether gradients of local sources are divided by the number of ranks, so that they
            belong to the mean over the rows of all ranks. Defaults to True.
        device_dense: Only `""`: gradients are combined on the device that has computed them.
        device_sparse: The same.

    Raises:
        TypeError: If `gradtape` is not a `tf.GradientTape`, `compression` no compressor, `process_set` no `ProcessSet`, or
            what is on or off neither True nor False.
        ValueError: For another `op`, a `process_set` that is not part of the job, a `gradient_predivide_factor` that is
            not positive or comes with another `op` than Average, `groups` that are none, or a device.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        *,
        compression: type[Compressor] = Compression.none,
        op: int = Average,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        device_dense: str = "",
        device_sparse: str = "",
    ) -> None:
        if not isinstance(gradtape, tf.GradientTape):
            raise TypeError(
                f"DistributedGradientTape wraps a tf.GradientTape. Received: gradtape={gradtape!r}"
            )
        # The base class is not initialised: a tape of its own would record next to the wrapped one.
        self._wrapped = gradtape
        self._options = checked(
            op=op,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
            device_dense=device_dense,
            device_sparse=device_sparse,
        )
        self._local = LocalSources()
        # Numbered here, where the program makes it: ranks may call gradient() of two tapes in different orders.
        self._owner = names.numbered(_OWNER, id_of(process_set, _OWNER)) + "/gradient"

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of a variable, or of a tensor that the tape watches, to each rank."""
        self._local.add(source)

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
        # The rest of the tape (`_tape`, `_persistent`, ...), which TensorFlow and Keras look at in places.
        if name == "_wrapped":
            raise AttributeError(name)
        return getattr(self._wrapped, name)


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape, *, local_layers: Any = None, **options: Any
) -> DistributedGradientTape:
    """A `tfddl.DistributedGradientTape` that leaves some layers to each rank.

    The layers may be built later. Give a `BroadcastGlobalVariablesCallback` their variables as `local_variables` if they
    are to begin with different values.

    Args:
        gradtape: The `tf.GradientTape` to wrap.
        local_layers: A Keras layer or a list of them, whose trainable weights are local. Defaults to none.
        **options: The other arguments of `tfddl.DistributedGradientTape`.

    Returns:
        The tape.

    Raises:
        TypeError: As `tfddl.DistributedGradientTape` does.
        ValueError: As that does, or if `local_layers` is anything else.
    """
    layers = check_layers(local_layers)
    tape = DistributedGradientTape(gradtape, **options)
    tape._local.add_layers(layers)
    return tape
