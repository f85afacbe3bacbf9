"""Predicts how long an exchange takes over a slow network, and what part of the time is training. Measures nothing.

The model is that of Hockney (1994), as used by Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005): a message of m bytes takes a + m / B, with the latency a (one way) and the bandwidth B. There
are n hosts with a rank each, or more, and S bytes of weights or gradients.

- A collective begins with a vote: log2(n) messages one after the other (docs/design.md).
- Then each rank sends a slice to each other rank: n - 1 messages, which share the link, and cost the sender o seconds each.
- A large message takes 3 a: MPI asks the receiver first.

An allreduce has two such exchanges. The mean of int8 values has four collectives: values and scales, to the owner of a slice
and back. Each has two more rounds of small messages, in which ranks agree on rows.

    allreduce(S) = 2 (n - 1) / n S / B + 2 (n - 1) o + (log2(n) + 6) a
    int8(S)      = 2 (n - 1) / n S / B + 12 (n - 1) o + (4 log2(n) + 16) a

With steps of t seconds, H steps between exchanges, F fragments, and D steps of delay, the part of the time that is training:

    an exchange in each step   t / (t + allreduce(S))
    DiLoCo                     H t / (H t + allreduce(S))
    streaming int8 DiLoCo      H t / (H t + F max(0, int8(S / F) - D t))

The formulas leave out: the overlap of gradients with the backward pass, the slow start of TCP, lost packets, the work for
quantization and outer steps, and that ranks are unequally fast. Only the first makes a real figure better than these.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

MOST_DIRECT, GATHERED = 32, 8192
"""Among more hosts, a rank's part of so few bytes takes log2(n) messages: core/collectives/gathered_allreduce.h."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and its hosts.

    Attributes:
        hosts: n.
        bandwidth: B, bytes per second that carry data.
        latency: a, seconds one way.
        message: o, seconds of work for a message.
        ranks: Of each host.
    """

    hosts: int
    bandwidth: float
    latency: float
    message: float
    ranks: int = 1

    def allreduce(self, size: float) -> float:
        """Seconds of an allreduce of so many bytes."""
        return self._wire(size) + self._messages(size) * self.message + (self._votes + 6) * self.latency

    def int8(self, size: float) -> float:
        """Seconds of a mean of values that travel as so many bytes."""
        return self._wire(size) + 12 * (self.hosts - 1) * self.message + (4 * self._votes + 16) * self.latency

    @property
    def _votes(self) -> float:
        return math.log2(self.hosts * self.ranks)

    def _messages(self, size: float) -> int:
        if self.hosts > MOST_DIRECT and size / self.ranks <= GATHERED:
            return math.ceil(math.log2(self.hosts))
        return 2 * (self.hosts - 1)

    def _wire(self, size: float) -> float:
        return 2 * (self.hosts - 1) / self.hosts * size / self.bandwidth


def utilisation(step: float, every: int, exchange: float, fragments: int = 1, delay: int = 0) -> float:
    """The part of the time that is training, from 0 to 1.

    Args:
        step: t.
        every: H; 1 for an exchange in each step.
        exchange: Seconds of the exchange of one fragment.
        fragments: F.
        delay: D.
    """
    return every * step / (every * step + fragments * max(0.0, exchange - delay * step))


def table(arguments: Any, ways: Iterable[tuple[Any, int, str]]) -> list[dict[str, Any]]:
    """Lines for the lab of two hosts at 100 Mbit/s, and for larger jobs on 1 Gbit/s.

    Args:
        arguments: Those of the command line of slow_links.py.
        ways: A `Way`, H and a name for each line.
    """
    lines, t, ways = [], arguments.step_seconds, list(ways)
    for ranks, rate in [(2, 100e6), *((ranks, 1e9) for ranks in arguments.ranks)]:
        bandwidth = arguments.efficiency * rate / 8
        network = Network(ranks, bandwidth, arguments.latency, arguments.message_seconds)
        for way, every, name in ways:
            fragments, delay = (arguments.fragments, arguments.delay) if way.streaming else (1, 0)
            size = arguments.weights * way.bytes / fragments
            exchange = network.int8(size) if way.bytes < 2 else network.allreduce(size)
            lines.append(
                {
                    "ranks": ranks,
                    "Gbit/s": rate / 1e9,
                    "way": name,
                    "an exchange, s": exchange,
                    "in steps": math.ceil(exchange / t),
                    "predicted utilisation, %": 100 * utilisation(t, every, exchange, fragments, delay),
                }
            )
    return lines
