"""The consumers compared by the latency benchmark, each in a separate process.

A record's value begins with its production time in nanoseconds of the machine's monotonic clock; the handler first
reads the same clock. Records without a time are for warm-up; after one end marker per partition the side prints its
results.
"""

from __future__ import annotations

import json
import struct
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import confluent_kafka

from bench.fleet_loop import FleetLoop
from fleet_consumer.librdkafka.settings import CONSUMER_DEFAULTS
from fleet_consumer.record import Record

STAMP: Final = struct.Struct(">Q")
WARM: Final = 0
END: Final = (1 << 64) - 1
READY: Final = "ready"
GIVE_UP_S: Final = 60.0


class Seen:
    """Latencies recorded by a side's handler."""

    def __init__(self, partitions: int) -> None:
        self._ends_left = partitions
        self._warm: set[int] = set()
        self._partitions = partitions
        self.waited_ns: list[int] = []
        self._give_up_at = time.monotonic() + GIVE_UP_S

    def value(self, partition: int, value: bytes) -> None:
        now = time.monotonic_ns()
        (stamp,) = STAMP.unpack_from(value)
        if stamp == WARM:
            self._warm.add(partition)
            if len(self._warm) == self._partitions:
                print(READY, flush=True)
                self._partitions = -1  # printed only once
        elif stamp == END:
            self._ends_left -= 1
        else:
            self.waited_ns.append(now - stamp)

    @property
    def ended(self) -> bool:
        """True if all partitions have ended. Raises SystemExit on a timeout."""
        if time.monotonic() > self._give_up_at:
            raise SystemExit(f"no end after {GIVE_UP_S:g} s; {len(self.waited_ns)} records seen")
        return self._ends_left == 0


def fleet(bootstrap: str, topic: str, seen: Seen) -> None:
    """The worker's consume loop."""

    def handle(record: Record) -> None:
        seen.value(record.partition, record.value)

    loop = FleetLoop(bootstrap, topic, handle)
    try:
        while not seen.ended:
            loop.step()
    finally:
        loop.close()


def librdkafka(bootstrap: str, topic: str, seen: Seen) -> None:
    """librdkafka's group consumer, with its own commits and our settings of queue and CRC checks."""
    queue = {
        name: value for name, value in CONSUMER_DEFAULTS.items() if name.startswith(("queued.", "fetch.", "check."))
    }
    group = {"group.id": f"bench-{uuid.uuid4().hex}", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, **queue, **group})
    consumer.subscribe([topic])
    try:
        while not seen.ended:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                seen.value(message.partition() or 0, message.value() or b"")
    finally:
        consumer.close()


SIDES: dict[str, Callable[[str, str, Seen], None]] = {"fleet": fleet, "librdkafka": librdkafka}


def percentiles(values: Sequence[int]) -> dict[str, float]:
    """Percentiles in milliseconds, by nearest rank, so that each is an actual value."""
    ranked = sorted(values)

    def rank(share: float) -> float:
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] / 1e6

    return {"p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99), "max": ranked[-1] / 1e6}


if __name__ == "__main__":
    side, bootstrap, topic, partitions = sys.argv[1:]
    noted = Seen(int(partitions))
    cpu_before = time.process_time()
    SIDES[side](bootstrap, topic, noted)
    cpu = (time.process_time() - cpu_before) / len(noted.waited_ns) * 1_000_000
    figures = {**percentiles(noted.waited_ns), "records": len(noted.waited_ns), "cpu_per_million": cpu}
    print(json.dumps(figures), flush=True)
