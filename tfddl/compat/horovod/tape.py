"""The tapes with Horovod's arguments and its further method."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfddl.gradients import tape as tapes
from tfddl.gradients.local_sources import check_layers
from tfddl.ops.compression import Compression
from tfddl.ops.constants import Average
from tfddl.runtime.process_sets import ProcessSet, global_process_set


def without_devices(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of Horovod that tfddl takes too. It reduces on the device that has the gradient."""
    return {name: value for name, value in arguments.items() if name not in ("device_dense", "device_sparse")}


class HorovodTape(tapes.DistributedGradientTape):
    """`tfddl.DistributedGradientTape`, which does not ask for names, with a method of Horovod's."""

    def gradient(  # type: ignore[override]
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **options: Any,
    ) -> Any:
        """See `tfddl.DistributedGradientTape.gradient`. `use_generic_names` changes nothing."""
        if isinstance(use_generic_names, tf.UnconnectedGradients):  # by position, as TensorFlow has it
            options["unconnected_gradients"] = use_generic_names
        return super().gradient(target, sources, output_gradients, **options)

    def add_local_layers(self, layers: list[Any]) -> None:
        """Keeps the gradients of layers each rank's own."""
        self._local.add_layers(layers)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Returns the pairs of source and gradient of local sources, and those of the others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        local = self._local.among(sources)
        return (
            [pair for slot, pair in enumerate(pairs) if slot in local],
            [pair for slot, pair in enumerate(pairs) if slot not in local],
        )


@tf.autograph.experimental.do_not_convert  # the converted function would have a local variable more
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> HorovodTape:
    """See `tfddl.DistributedGradientTape`. The devices change nothing."""
    return HorovodTape(**without_devices(locals()))


@tf.autograph.experimental.do_not_convert  # the converted function would have a local variable more
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> HorovodTape:
    """See `tfddl.PartialDistributedGradientTape`. The devices change nothing."""
    options = without_devices(locals())
    layers = check_layers(options.pop("local_layers"))
    tape = HorovodTape(**options)
    tape.add_local_layers(layers)
    return tape
