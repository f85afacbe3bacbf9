"""A model of training on many hosts, beside the numbers that Horovod's authors have published.

For n ranks, g of them on a host, h = n/g hosts, and gradients of S bytes in k buckets:

    comm       = k (alpha + 2 ceil(log2 h) latency) + beta S + 2 (h-1)/h S / rate
    step       = C + max(comm / k, comm - (1 - 1/k) 2/3 C)
    efficiency = C / step

k = S / 25 MB, rounded up. (Large gradients have their own buckets, which changes k by a few.) alpha + beta S is the time
of a bucket inside a host, by shared memory. Between hosts each rank exchanges its own slice, so a host sends and receives
2 (h-1)/h of the data.
C is the time of a step without communication. The backward pass takes two thirds of C, and its gradients become ready
evenly. So bucket i of k starts i/k into the backward pass, and the last bucket is fully exposed. A bucket costs one vote,
with log2 h rounds there and back. The model has no late ranks and no shared links, and assumes the full rate of the
network. It gives an upper bound of the efficiency.

alpha and beta come from a run of `tfddl bench allreduce`: the excess over an op that does nothing at the smallest size,
and the time of each further byte up to the largest size. Memory shared by more than two ranks is slower than this.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

RANKS = (8, 16, 32, 64, 128, 256, 512)
RANKS_PER_HOST = 4
_BUCKET_BYTES = 25e6


@dataclasses.dataclass(frozen=True)
class Model:
    """A network as trained in the publications.

    Attributes:
        name: The name in the table.
        weights: Trained parameters, float32.
        images: Images a second on one Tesla P100, batch 64: "Benchmarks" in TensorFlow's guide
            (site/en/r1/guide/performance), May 2017.
        published: Efficiency in percent at 512 ranks: Sergeev and Del Balso, "Horovod: fast and easy distributed deep
            learning in TensorFlow", and Horovod's docs/benchmarks.rst: 128 hosts of 4 Pascal GPUs, 25 Gbit/s.
    """

    name: str
    weights: float
    images: float
    published: int


MODELS = (
    Model("Inception-V3", 23.8e6, 142, 90),
    # Not in the guide: interpolated between ResNet-50 (219 images/s) and ResNet-152 (91.8) by operations, 3.8, 7.6, 11.3 G.
    Model("ResNet-101", 44.6e6, 1 / (1 / 219 + (7.6 - 3.8) / (11.3 - 3.8) * (1 / 91.8 - 1 / 219)), 90),
    Model("VGG-16", 138.4e6, 154, 68),
)
_BATCH = 64


@dataclasses.dataclass(frozen=True)
class Costs:
    """Costs of communication.

    Attributes:
        alpha: Seconds for each bucket inside a host.
        beta: Seconds for each byte inside a host.
        latency: Seconds for each message between hosts.
        rate: Bytes a second that a host sends, and receives at the same time.
    """

    alpha: float
    beta: float
    latency: float
    rate: float


def measured(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """alpha and beta from the rows of a run of `tfddl bench allreduce`.

    Raises:
        ValueError: The rows lack tfddl, the op that does nothing, or a second size.
    """
    of = {
        name: {row["bytes"]: row["us"] for row in rows if row["name"] == name}
        for name in ("tfddl", "nothing")
    }
    sizes = sorted(of["tfddl"])
    if len(sizes) < 2 or sizes != sorted(of["nothing"]):
        raise ValueError(
            f"alpha and beta need a run of `tfddl bench allreduce` with two sizes or more. Received sizes: {sizes}"
        )
    excess = [max(0.0, of["tfddl"][size] - of["nothing"][size]) / 1e6 for size in (sizes[0], sizes[-1])]
    return excess[0], max(0.0, excess[1] - excess[0]) / (sizes[-1] - sizes[0])


def step(model: Model, ranks: int, costs: Costs) -> tuple[float, float, float]:
    """Seconds of computation, of all communication, and of a step."""
    compute, size, hosts = _BATCH / model.images, 4 * model.weights, max(1, ranks // RANKS_PER_HOST)
    buckets = math.ceil(size / _BUCKET_BYTES)
    rounds = 2 * math.ceil(math.log2(hosts))
    sent = 2 * (hosts - 1) / hosts * size
    all_ = buckets * (costs.alpha + rounds * costs.latency) + costs.beta * size + sent / costs.rate
    exposed = max(all_ / buckets, all_ - (1 - 1 / buckets) * 2 / 3 * compute)
    return compute, all_, compute + exposed


def rows(costs: Costs) -> list[dict[str, Any]]:
    """The table: a line for each model and number of ranks."""
    table = []
    for model in MODELS:
        for ranks in RANKS:
            compute, all_, whole = step(model, ranks, costs)
            table.append(
                {
                    "model": model.name,
                    "ranks": ranks,
                    "compute ms": compute * 1e3,
                    "communication ms": all_ * 1e3,
                    "exposed ms": (whole - compute) * 1e3,
                    "efficiency %": 100 * compute / whole,
                    "Horovod published %": model.published if ranks == 512 else None,
                }
            )
    return table
