"""Predicts how training scales over many hosts whose network is the limit. Measures nothing.

    python benchmarks/scaling.py

The model is that of prediction.py (Hockney 1994): a message of m bytes takes a + m / B. H hosts have R ranks each, N = H R.
Gradients travel in buckets: the first has 1 MB, the others 25 MB. Each bucket of b bytes needs

- a vote, log2(N) messages one after the other;
- an exchange between the hosts: 2 (H - 1) / H b bytes from each host, in 2 (H - 1) messages of each rank, or log2(H) if a
  rank's part has at most 8 KiB. Starting a message costs o; a large one takes 3 a, since MPI asks the receiver first.

    bucket(b) = 2 (H - 1) / H b / B + messages o + (log2(N) + 6) a

The counts of messages and bytes are those that custom_ops/tests/collectives/many_members_test.cc and hosts_test.cc find. The
reductions inside of a host are left out. Columns:

- `nothing overlaps, %`: step / (step + all buckets).
- `overlap, %`: as before, but the buckets travel during the backward pass, which is two thirds of a step. Only the last
  bucket, and what does not fit into the backward pass, lengthens the step.
- `Horovod, %`: published for 128 servers of 4 Pascal GPUs with 25 Gbit/s (https://horovod.readthedocs.io/en/latest/benchmarks.html).

Steps are those of one P100 with 64 images, by TensorFlow in 2017: 142 images/s with Inception V3, 154 with
VGG-16 (https://github.com/tensorflow/docs/blob/master/site/en/r1/guide/performance/benchmarks.md).
"""

import argparse
import dataclasses
from typing import Any

from prediction import Network

from tfddl.bench import results

FIRST_BUCKET, BUCKET = 1e6, 25e6


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that is trained.

    Attributes:
        name: For people.
        bytes: Of its gradients in float32.
        step: Seconds of a step of one rank alone.
        horovod: The efficiency that Horovod has published for 512 ranks, in percent.
    """

    name: str
    bytes: float
    step: float
    horovod: float


MODELS = [
    Model("Inception V3", 4 * 23_851_784, 64 / 142, 90),
    Model("VGG-16", 4 * 138_357_544, 64 / 154, 68),
]


def buckets(size: float) -> list[float]:
    """The bytes of each bucket of a model."""
    made = [min(size, FIRST_BUCKET)]
    while (left := size - sum(made)) > 0.5:
        made.append(min(left, BUCKET))
    return made


def row(model: Model, network: Network) -> dict[str, Any]:
    """A line of the table."""
    times = [network.allreduce(size) for size in buckets(model.bytes)]
    left = max(times[-1], sum(times) - 2 / 3 * model.step)
    ranks = network.hosts * network.ranks
    return {
        "model": model.name,
        "ranks": ranks,
        "step, ms": 1e3 * model.step,
        "buckets": len(times),
        "all buckets, ms": 1e3 * sum(times),
        "nothing overlaps, %": 100 * model.step / (model.step + sum(times)),
        "overlap, %": 100 * model.step / (model.step + left),
        "Horovod, %": model.horovod if ranks == 512 else None,
    }


def main() -> None:
    """Predicts each model on each number of hosts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 16, 128, 1024])
    parser.add_argument("--ranks", type=int, default=4, help="of each host")
    parser.add_argument("--gigabits", type=float, default=25, help="of a link in each direction")
    parser.add_argument("--efficiency", type=float, default=0.94, help="part of the rate that is data")
    parser.add_argument("--latency", type=float, default=25e-6, help="a, seconds one way")
    parser.add_argument("--message-seconds", type=float, default=5e-6, help="o")
    given = parser.parse_args()
    bandwidth = given.efficiency * given.gigabits * 1e9 / 8
    rows = [
        row(model, Network(hosts, bandwidth, given.latency, given.message_seconds, given.ranks))
        for model in MODELS
        for hosts in given.hosts
    ]
    results.show(f"prediction, hosts of {given.ranks} ranks, {given.gigabits:g} Gbit/s", rows)


if __name__ == "__main__":
    main()
