"""A switch in user space: holds each frame for a delay, and sends no faster than a rate.

    python relay.py RATE DELAY HOSTS

makes the TAP devices `relay0`, `relay1`, ... in its network namespace, prints `ready`, and forwards frames between
them until it is killed. Whoever starts it gives each device to a host: port n belongs to the MAC address that ends with n.

The lab uses it because its kernel may have no netem. Each host has a link to the switch that carries RATE in each
direction (`100mbit`, or `-` for no limit). DELAY is one way, as with `tc netem delay` on each host: 20ms makes a round trip
of 40 ms. A frame that comes while more than 50 ms of others wait for the same link is dropped, as a router does.

Times come from two clocks for each host, which say when its link is free again, not from the moment at which this process
runs. So a late wake-up delays a frame, but does not lower the rate.
"""

import contextlib
import fcntl
import heapq
import os
import re
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MTU = 9000
"""Jumbo frames: a sixth of the work of this process for each byte."""

FRAMING = 24
"""Bytes of an Ethernet frame that the device does not show: preamble, checksum and the gap between frames."""

QUEUE = 0.05
"""Seconds of frames that may wait for a link."""

BATCH = 64
"""Frames read from one host before the others have their turn."""


PAUSE = 1 / 40
"""Delays that this process sleeps after each round: frames come later by as much, and most wake-ups are saved."""


def seconds(text: str) -> float:
    """Seconds of a time as `tc` writes it: `20ms`, `500us`, `1s`."""
    for unit, factor in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if re.fullmatch(rf"\d+(\.\d+)?{unit}", text):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(f"A delay needs a unit: write 20ms, 500us or 1s. Received: {text!r}")


def bytes_per_second(text: str) -> float:
    """Bytes per second of a rate as `tc` writes it: `1gbit`, `100mbit`, `64kbit`; `-` is infinity."""
    if text == "-":
        return float("inf")
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        if re.fullmatch(rf"\d*[1-9]\d*(\.\d+)?{unit}", text):
            return float(text.removesuffix(unit)) * factor / 8
    raise ValueError(f"A rate needs a unit: write 1gbit, 100mbit or 64kbit. Received: {text!r}")


def open_tap(name: str) -> int:
    """Makes a TAP device, and returns the descriptor that reads and writes its frames."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


class Switch:
    """Forwards frames between ports.

    A frame passes three events: its last byte leaves the sender's link, its last byte is through the receiver's link, and
    the delay is over. The first event is in the heap without a receiver.

    Args:
        ports: A descriptor for each host.
        rate: Bytes per second of each link, in each direction.
        delay: Seconds from a sender to a receiver, beside the time for the bytes.
    """

    def __init__(self, ports: list[int], rate: float, delay: float) -> None:
        self._ports, self._rate, self._delay = ports, rate, delay
        self._up = [0.0] * len(ports)  # when the link from a host is free
        self._down = [0.0] * len(ports)
        self._events: list[tuple[float, int, int, bytes]] = []  # time, order, receiver or -1 - sender, frame
        self._order = 0

    def run(self) -> None:
        """Forwards for ever."""
        while True:
            time.sleep(PAUSE * self._delay)
            wait = max(0.0, self._events[0][0] - time.monotonic()) if self._events else None
            readable, _, _ = select.select(self._ports, [], [], wait)
            for descriptor in readable:
                self._read(descriptor)
            self._forward(time.monotonic())

    def _read(self, descriptor: int) -> None:
        sender, now = self._ports.index(descriptor), time.monotonic()
        for _ in range(BATCH):
            try:
                frame = os.read(descriptor, MTU + 64)
            except BlockingIOError:
                return
            self._take(sender, frame, now)

    def _take(self, sender: int, frame: bytes, now: float) -> None:
        if self._up[sender] - now <= QUEUE:
            self._up[sender] = max(now, self._up[sender]) + self._time_of(frame)
            self._add(self._up[sender], -1 - sender, frame)

    def _forward(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            moment, _, place, frame = heapq.heappop(self._events)
            if place >= 0:
                self._write(place, frame)
                continue
            for receiver in self._receivers(-1 - place, frame):
                if self._down[receiver] - moment <= QUEUE:
                    # The first byte goes on before the last has come, so that an idle link adds no time.
                    self._down[receiver] = max(moment, self._down[receiver] + self._time_of(frame))
                    self._add(self._down[receiver] + self._delay, receiver, frame)

    def _add(self, moment: float, place: int, frame: bytes) -> None:
        self._order += 1
        heapq.heappush(self._events, (moment, self._order, place, frame))

    def _time_of(self, frame: bytes) -> float:
        return (len(frame) + FRAMING) / self._rate

    def _receivers(self, sender: int, frame: bytes) -> list[int]:
        if frame[0] & 1:  # to all
            return [port for port in range(len(self._ports)) if port != sender]
        return [frame[5]] if frame[5] < len(self._ports) else []

    def _write(self, receiver: int, frame: bytes) -> None:
        with contextlib.suppress(OSError):  # The device is not up yet, or its host is gone.
            os.write(self._ports[receiver], frame)


def main() -> None:
    """Makes the devices and forwards."""
    rate, delay, hosts = bytes_per_second(sys.argv[1]), seconds(sys.argv[2]), int(sys.argv[3])
    ports = [open_tap(f"relay{number}") for number in range(hosts)]
    print("ready", flush=True)
    Switch(ports, rate, delay).run()


if __name__ == "__main__":
    main()
