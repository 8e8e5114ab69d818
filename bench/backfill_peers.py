"""The peer of the backfill benchmark: a plain loop that reads, decodes, and calls the handler, in one process.

It gives the handler the same records as a worker does, and does nothing with what comes back. The result is one JSON
object on standard output.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench import backfill_handler
from fleet_consumer.record import Record

BATCH = 500


def loop(bootstrap: str, topic: str, ends: dict[int, int], name: str) -> tuple[float, float]:
    """The times of the first and the last record, in seconds since the epoch."""
    handle = getattr(backfill_handler, name)
    batches = name == "handle_batch"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-loop", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    left, started = sum(ends.values()), 0.0
    while left > 0:
        records = []
        for message in consumer.consume(BATCH, 5.0):
            started = started or time.time()
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
        if records:
            handle(records)
    ended = time.time()
    consumer.close()
    return started, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--handler", default="handle")
    parser.add_argument("--ends", type=json.loads, default={}, help="the end offset of each partition")
    options = parser.parse_args()
    ends = {int(number): end for number, end in options.ends.items()}
    print(json.dumps(loop(options.bootstrap, options.topic, ends, options.handler)))


if __name__ == "__main__":
    main()
