"""The Kafka side of the demo. It runs in a pod next to the brokers, so that it works on any cluster.

It is one file without code of the project: the counter must share no code with the fleet. Progress goes to standard
error, the result to standard output as one JSON object. `serve` takes any number of commands, one after another, with
one process for all. Decision: docs/decisions/0005-demo-from-a-pod.md.
"""

from __future__ import annotations

import argparse
import base64
import csv
import gzip
import hashlib
import io
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

pause = threading.Event().wait
EXACT = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
"""Settings of an exact producer: each record is written once, and none counts as written because a later one was."""
LARGEST = 32 * 1024 * 1024
PROGRESS_EVERY = 100_000
IDLE_SECONDS_MAX = 30.0
GROUP_EMPTY_SECONDS_MAX = 90.0
"""Twice the default session timeout, after which killed members are removed from the group."""


def create_topics(options: argparse.Namespace) -> dict[str, Any]:
    """Create the demo's topics; those that exist are left as they are. Records are stamped 2013, so none may expire."""
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    config = {"retention.ms": "-1", **dict(setting.split("=", 1) for setting in options.config)}
    wanted = [NewTopic(name, options.partitions, 1, config=config) for name in options.topics]
    created = []
    for name, outcome in admin.create_topics(wanted).items():
        error = outcome.exception()
        if error is None:
            created.append(name)
        elif error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise error
    return {"created": created}


def delete_topics(options: argparse.Namespace) -> dict[str, Any]:
    """Delete topics; those that do not exist are no error."""
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    present = set(admin.list_topics(timeout=10).topics)
    doomed = [name for name in options.topics if name in present]
    for outcome in (admin.delete_topics(doomed) if doomed else {}).values():
        outcome.result()
    return {"deleted": doomed}


def delete_group(options: argparse.Namespace) -> dict[str, Any]:
    """Delete the groups with their offsets, waiting until their former members are removed."""
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    deadline = time.monotonic() + GROUP_EMPTY_SECONDS_MAX
    for name in options.groups:
        while True:
            error = admin.delete_consumer_groups([name])[name].exception()
            if error is None or error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                break
            if error.args[0].code() != KafkaError.NON_EMPTY_GROUP or time.monotonic() > deadline:
                raise error
            print(f"  waiting for the members of {name} to expire", file=sys.stderr, flush=True)
            pause(3.0)
    return {"deleted": options.groups}


def flights(stream: Iterator[str]) -> Iterator[tuple[str, int, bytes]]:
    """Key, timestamp in milliseconds, and JSON value of each flight; "NA" becomes null and numbers become numbers."""
    for row in csv.DictReader(stream):
        value = {
            name: None if text == "NA" else int(text) if text.lstrip("-").isdigit() else text
            for name, text in row.items()
        }
        stamp = datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00")).astimezone(UTC)
        key = f"{row['carrier']}{row['flight']}"
        yield key, int(stamp.timestamp() * 1000), json.dumps(value, separators=(",", ":")).encode()


def produce(options: argparse.Namespace) -> dict[str, Any]:
    """Write every flight of the gzipped CSV on standard input to the topic, and wait for all acknowledgements."""
    failures: list[str] = []

    def acknowledged(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer({"bootstrap.servers": options.bootstrap, **EXACT, "linger.ms": 20, "compression.type": "lz4"})
    count = 0
    rest = options.pause_seconds_per_thousand
    with gzip.open(sys.stdin.buffer, "rb") as raw:
        for key, stamp, value in flights(io.TextIOWrapper(raw, encoding="utf-8")):
            while True:
                try:
                    producer.produce(options.topic, value=value, key=key, timestamp=stamp, on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.5)
            count += 1
            if count % 1000 == 0:
                producer.poll(0)
                if rest:
                    pause(rest)
            if count % PROGRESS_EVERY == 0:
                print(f"  {count} flights written", file=sys.stderr, flush=True)
    left = producer.flush(60)
    if failures or left:
        raise SystemExit(f"{len(failures)} flights failed, {left} unacknowledged; first: {failures[:1]}")
    return {"produced": count}


def watermarks(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    """First and end offset of each partition; empty when the topic does not exist."""
    metadata = consumer.list_topics(topic, timeout=10).topics[topic]
    if metadata.error is not None:
        return {}
    return {
        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
        for number in metadata.partitions
    }


def read_all(bootstrap: str, topic: str) -> Iterator[Any]:
    """Every message that the topic holds now, whatever any group has committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo-report", "enable.auto.commit": False})
    try:
        remaining = {number: marks for number, marks in watermarks(consumer, topic).items() if marks[0] < marks[1]}
        consumer.assign([TopicPartition(topic, number, marks[0]) for number, marks in remaining.items()])
        quiet_since = time.monotonic()
        while remaining:
            for message in consumer.consume(5000, 0.2):
                if message.error() is not None:
                    raise SystemExit(f"reading {topic}: {message.error()}")
                quiet_since = time.monotonic()
                yield message
                offset, partition = message.offset(), message.partition()
                assert offset is not None
                assert partition is not None
                if offset + 1 >= remaining.get(partition, (0, sys.maxsize))[1]:
                    remaining.pop(partition)
            if time.monotonic() - quiet_since > IDLE_SECONDS_MAX:
                raise SystemExit(
                    f"reading {topic}: nothing for {IDLE_SECONDS_MAX} s, partitions left {sorted(remaining)}"
                )
    finally:
        consumer.close()


def origin_of_output(message: Any) -> tuple[int, int]:
    partition, offset = message.key().decode().split("-")
    return int(partition), int(offset)


def headers_of(message: Any) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in message.headers() or () if value is not None}


def origin_of_failed(message: Any) -> tuple[int, int]:
    headers = headers_of(message)
    return int(headers["kr-origin-partition"]), int(headers["kr-origin-offset"])


def put_back(bootstrap: str, topic: str) -> set[str]:
    """The places in the failed topic (partition:offset) whose records were put back, from the redrive topic."""
    return {headers_of(message)["kr-redrive-source"] for message in read_all(bootstrap, topic)} if topic else set()


def count(options: argparse.Namespace) -> dict[str, Any]:
    """Compare input and output, each record known by its origin's partition and offset.

    A failed record that was put back counts by its later outcome.
    """
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": "demo-report"})
    try:
        marks = watermarks(consumer, options.topic)
    finally:
        consumer.close()
    given = {(number, offset) for number, (first, end) in marks.items() for offset in range(first, end)}
    done = [origin_of_output(message) for message in read_all(options.bootstrap, options.output)]
    redriven = put_back(options.bootstrap, options.redrive)
    failed = [
        origin_of_failed(message)
        for message in read_all(options.bootstrap, options.failed)
        if f"{message.partition()}:{message.offset()}" not in redriven
    ]
    ended = set(done) | set(failed)
    seen = Counter(done + failed)
    return {
        "repeated": [f"{partition}-{offset}" for (partition, offset), times in sorted(seen.items()) if times > 1],
        "in": len(given),
        "done": len(set(done)),
        "failed": len(set(failed)),
        "lost": len(given - ended),
        "duplicated": len(done) + len(failed) - len(ended),
        "unknown": len(ended - given),
    }


def expect(options: argparse.Namespace) -> dict[str, Any]:
    """Outcomes of the example's handler for the topic's flights, computed independently.

    `checksum` is the sum of the digests of keys and values, independent of the order. `--fixed` is the handler that
    accepts cancelled flights too. `--from-ms` (inclusive) and `--to-ms` (exclusive) bound the flights' times.
    """
    total, given, written, checksum = 0, 0, 0, 0
    for message in read_all(options.bootstrap, options.topic):
        total += 1
        stamp = message.timestamp()[1]
        if not (options.from_ms <= stamp < options.to_ms):
            continue
        given += 1
        flight = json.loads(message.value())
        cancelled = flight["dep_time"] is None
        if cancelled and not options.fixed:
            continue
        line = {"flight": f"{flight['carrier']}{flight['flight']}", "origin": flight["origin"], "dest": flight["dest"]}
        line |= {"cancelled": cancelled} if options.fixed else {}
        line |= {"dep_delay": flight["dep_delay"], "arr_delay": flight["arr_delay"]}
        pair = f"{message.partition()}-{message.offset()}".encode() + b"\0" + json.dumps(line).encode()
        checksum += int.from_bytes(hashlib.sha256(pair).digest()[:8], "big")
        written += 1
    return {"total": total, "in": given, "out": written, "failed": given - written, "checksum": checksum % 2**64}


def committed(options: argparse.Namespace) -> dict[str, Any]:
    """The group's committed offsets of the topic, by partition."""
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": options.group})
    try:
        marks = watermarks(consumer, options.topic)
        asked = consumer.committed([TopicPartition(options.topic, number) for number in marks], timeout=30)
    finally:
        consumer.close()
    return {str(partition.partition): partition.offset for partition in asked}


def lag(options: argparse.Namespace) -> dict[str, Any]:
    """Records of the topic that the group has not committed yet."""
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": options.group})
    try:
        marks = watermarks(consumer, options.topic)
        asked = consumer.committed([TopicPartition(options.topic, number) for number in marks], timeout=30)
    finally:
        consumer.close()
    committed = {partition.partition: partition.offset for partition in asked}
    total = sum(end for _, end in marks.values())
    return {"end": total, "lag": sum(end - max(first, committed.get(n, 0)) for n, (first, end) in marks.items())}


def waiting(options: argparse.Namespace) -> dict[str, Any]:
    """Records of several topics that a group has not committed yet; topics that do not exist hold none."""
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": options.group})
    total = 0
    try:
        for topic in options.topics:
            marks = watermarks(consumer, topic)
            asked = consumer.committed([TopicPartition(topic, number) for number in marks], timeout=30) if marks else []
            committed = {partition.partition: partition.offset for partition in asked}
            total += sum(max(end - max(first, committed.get(n, 0)), 0) for n, (first, end) in marks.items())
    finally:
        consumer.close()
    return {"waiting": total}


def write(options: argparse.Namespace) -> dict[str, Any]:
    """Write each line of standard input as one record, without a key or with the line as its key."""
    producer = Producer({"bootstrap.servers": options.bootstrap, **EXACT, "message.max.bytes": LARGEST})
    lines = sys.stdin.buffer.read().splitlines()
    for line in lines:
        producer.produce(options.topic, value=line, key=line if options.keyed else None)
    left = producer.flush(30)
    if left:
        raise SystemExit(f"{left} records unacknowledged")
    return {"written": len(lines)}


def read(options: argparse.Namespace) -> dict[str, Any]:
    """The topic's content as strings: the values, and each record with its headers and its time."""
    found = list(read_all(options.bootstrap, options.topic))
    records = [
        {
            "place": f"{message.partition()}-{message.offset()}",
            "timestamp": message.timestamp()[1],
            "value": (message.value() or b"").decode(errors="replace"),
            "headers": headers_of(message),
        }
        for message in found
    ]
    return {"values": [record["value"] for record in records], "records": records}


def topics(options: argparse.Namespace) -> dict[str, Any]:
    """The topics whose names begin with a prefix: partitions, and settings that differ from the brokers' defaults."""
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    present = admin.list_topics(timeout=10).topics
    named = {name: len(topic.partitions) for name, topic in present.items() if name.startswith(options.prefix)}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in named]
    answers = admin.describe_configs(resources) if resources else {}
    settings = {
        resource.name: {name: entry.value for name, entry in answer.result().items() if not entry.is_default}
        for resource, answer in answers.items()
    }
    return {name: {"partitions": count, "settings": settings[name]} for name, count in sorted(named.items())}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command; `run` is its function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    commands = parser.add_subparsers(required=True)
    for name, function in (("create-topics", create_topics), ("delete-topics", delete_topics)):
        command = commands.add_parser(name)
        command.add_argument("topics", nargs="+")
        command.add_argument("--partitions", type=int, default=12)
        command.add_argument("--config", action="append", default=[])
        command.set_defaults(run=function)
    command = commands.add_parser("delete-group")
    command.add_argument("groups", nargs="+")
    command.set_defaults(run=delete_group)
    command = commands.add_parser("waiting")
    command.add_argument("--group", required=True)
    command.add_argument("topics", nargs="+")
    command.set_defaults(run=waiting)
    command = commands.add_parser("topics")
    command.add_argument("prefix")
    command.set_defaults(run=topics)
    reading = (("count", count), ("lag", lag), ("read", read), ("expect", expect))
    changing = (("produce", produce), ("write", write))
    for name, function in (*changing, *reading, ("committed", committed)):
        command = commands.add_parser(name)
        command.add_argument("--topic", required=True)
        command.add_argument("--output", default="")
        command.add_argument("--failed", default="")
        command.add_argument("--redrive", default="")
        command.add_argument("--group", default="")
        command.add_argument("--keyed", action="store_true")
        command.add_argument("--fixed", action="store_true")
        command.add_argument("--from-ms", type=int, default=0)
        command.add_argument("--to-ms", type=int, default=sys.maxsize)
        command.add_argument("--pause-seconds-per-thousand", type=float, default=0.0)
        command.set_defaults(run=function)
    command = commands.add_parser("serve")
    command.set_defaults(run=serve)
    return parser.parse_args(arguments)


def serve(_options: argparse.Namespace) -> dict[str, Any]:
    """Run the command of each line of standard input, and print its result, or its error, as one line."""
    requests, served = sys.stdin, 0
    for line in requests:
        request = json.loads(line)
        sys.stdin = io.TextIOWrapper(io.BytesIO(base64.b64decode(request["stdin"])))
        try:
            options = parsed(request["arguments"])
            answer: dict[str, Any] = {"answer": options.run(options)}
        except (Exception, SystemExit) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        served += 1
    return {"served": served}


def main() -> None:
    options = parsed(sys.argv[1:])
    print(json.dumps(options.run(options)))


if __name__ == "__main__":
    main()
