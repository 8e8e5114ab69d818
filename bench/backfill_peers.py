"""The peers of the backfill benchmark: a plain Python loop and a bare scan of Spark, over the same records.

It runs in a pod of the Spark image, next to the brokers, as one file without any code of the project. The result is one
JSON object on standard output.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition


def handle(partition: int, offset: int, value: bytes) -> tuple[str, str]:
    """The example's handler, and what its worker does around it: parse, change, serialise."""
    flight = json.loads(value)
    if flight["dep_time"] is None:
        return "", ""
    departure = {
        "flight": f"{flight['carrier']}{flight['flight']}",
        "origin": flight["origin"],
        "dest": flight["dest"],
        "dep_delay": flight["dep_delay"],
        "arr_delay": flight["arr_delay"],
    }
    return f"{partition}-{offset}", json.dumps(departure)


def loop(bootstrap: str, topic: str, ends: dict[int, int]) -> float:
    """Seconds of one process that reads the records and calls the handler, from the first record on."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-loop", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    left, started = sum(ends.values()), 0.0
    while left > 0:
        for message in consumer.consume(1000, 5.0):
            started = started or time.monotonic()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if offset < ends[partition]:
                handle(partition, offset, message.value() or b"")
                left -= 1
    consumer.close()
    return time.monotonic() - started


def scan(bootstrap: str, topic: str, ends: dict[int, int], tasks: int) -> tuple[float, float]:
    """Seconds until a session of Spark is there, and those of a scan that reads every value and counts."""
    from pyspark.sql import SparkSession  # type: ignore[import-not-found,unused-ignore]

    began = time.monotonic()
    spark = SparkSession.builder.master(f"local[{tasks}]").config("spark.ui.enabled", "false").getOrCreate()
    spark.range(1).count()
    session_s = time.monotonic() - began

    def once() -> float:
        started = time.monotonic()
        frame = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("assign", json.dumps({topic: list(ends)}))
            .option("startingOffsets", json.dumps({topic: dict.fromkeys(map(str, ends), 0)}))
            .option("endingOffsets", json.dumps({topic: {str(number): end for number, end in ends.items()}}))
            .load()
        )
        # Whole rows, as a backfill reads them; a count alone would leave the values where they are.
        frame.write.format("noop").mode("overwrite").save()
        return time.monotonic() - started

    once()
    return session_s, once()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("loop", "scan", "additions"))
    parser.add_argument("--bootstrap")
    parser.add_argument("--topic")
    parser.add_argument("--ends", type=json.loads, default={}, help="the end offset of each partition")
    parser.add_argument("--tasks", type=int, default=1)
    options = parser.parse_args()
    ends = {int(number): end for number, end in options.ends.items()}
    result: dict[str, Any] = {"records": sum(ends.values())}
    if options.side == "loop":
        result["seconds"] = loop(options.bootstrap, options.topic, ends)
    elif options.side == "scan":
        result["session_s"], result["seconds"] = scan(options.bootstrap, options.topic, ends, options.tasks)
    else:
        result["seconds"] = additions()
    print(json.dumps(result))


def additions() -> float:
    """Seconds of 20 million additions in a Python function: the machine's measure."""
    started, total = time.monotonic(), 0
    for number in range(20_000_000):
        total += number
    return time.monotonic() - started


if __name__ == "__main__":
    main()
