"""The peer in the backfill benchmark: a plain loop that reads, decodes and calls the handler, in one process.

The handler gets the same records as from a worker; its results are ignored. Progress is printed as JSON lists: the
time, the records so far and the CPU time of the process so far.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from bench import backfill_handler
from fleet_consumer.record import Record

BATCH = 500


class Progress(NamedTuple):
    """`at` is in seconds since the epoch, `processor` in seconds."""

    at: float
    records: int
    processor: float


def loop(bootstrap: str, topic: str, ends: dict[int, int], name: str, passes: int) -> Iterator[Progress]:
    """Handle the records of these partitions up to their ends, `passes` times; yields the progress at the first record,
    then every second, and at the end."""
    handle = getattr(backfill_handler, name)
    batches = name == "handle_batch"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-loop", "enable.auto.commit": False})
    done, told = 0, 0.0
    for _ in range(passes):
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        left = sum(ends.values())
        while left > 0:
            messages, records = consumer.consume(BATCH, 5.0), []
            if messages and time.time() - told >= 1:
                told = time.time()
                yield Progress(told, done, time.process_time())
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset < ends[partition]:
                    value: Any = json.loads(message.value() or b"")
                    headers: Any = message.headers() or ()
                    record = Record(topic, partition, offset, message.timestamp()[1], message.key(), value, headers)
                    if batches:
                        records.append(record)
                    else:
                        handle(record)
                    left -= 1
                    done += 1
            if records:
                handle(records)
    yield Progress(time.time(), done, time.process_time())
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--handler", default="handle")
    parser.add_argument("--ends", type=json.loads, default={}, help="JSON object: end offset by partition")
    parser.add_argument("--passes", type=int, default=1)
    options = parser.parse_args()
    ends = {int(number): end for number, end in options.ends.items()}
    for progress in loop(options.bootstrap, options.topic, ends, options.handler, options.passes):
        print(json.dumps(progress), flush=True)


if __name__ == "__main__":
    main()
