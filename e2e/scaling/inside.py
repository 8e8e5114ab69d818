"""Producer and witness of a scaling scene, next to the brokers. One file without code of the project.

Standard input has one rate per line, records a second; each second, standard output gets one JSON object: the time, the
records written, committed and waiting, and the group's state and members as its coordinator describes them.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

pause = threading.Event().wait
speaking = threading.Lock()
TICK_S = 0.05
GIVE_UP_S = 600.0


class Load:
    """Writes records to the partitions in turn, or by the shares of `--shares`, at the last requested rate."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rate = 0.0
        self.written = 0
        self._topic = options.topic
        shares = [float(share) for share in options.shares.split(",")] if options.shares else []
        self._shares = shares or [1.0 / options.partitions] * options.partitions
        # One partition after another: equal shares from zero would all give a record at the same time.
        self._owed = [number / len(self._shares) for number in range(len(self._shares))]
        # Records are kept during an outage, and sent when the broker is back.
        settings = {"bootstrap.servers": options.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer({**settings, "message.timeout.ms": int(GIVE_UP_S * 1000)})

    def run(self) -> None:
        """Write until the process ends; the first message of each partition carries the time that it was written."""
        last = time.monotonic()
        while True:
            pause(TICK_S)
            now = time.monotonic()
            for partition, share in enumerate(self._shares):
                self._owed[partition] += self.rate * share * (now - last)
                while self._owed[partition] >= 1.0:
                    self._owed[partition] -= 1.0
                    self._write(partition)
            last = now
            self._producer.poll(0)

    def _write(self, partition: int) -> None:
        value = repr(time.time()).encode()
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: object, _: object) -> None:
        if error is None:
            self.written += 1
        else:
            print(f"a record was not written: {error}", file=sys.stderr, flush=True)


class Witness:
    """The group as the brokers know it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._settings = {"bootstrap.servers": options.bootstrap, "socket.timeout.ms": 3000}
        self._admin = AdminClient(self._settings)
        self._group, self._topic = options.group, options.topic
        self._partitions = [TopicPartition(options.topic, number) for number in range(options.partitions)]

    def renew(self) -> None:
        """Start again after an error: librdkafka's admin client asks for end offsets with the leader epochs that it
        knows, and does not refresh them if the broker rejects them (FENCED_LEADER_EPOCH after an outage)."""
        self._admin = AdminClient(self._settings)

    def observe(self) -> dict[str, Any]:
        """Wait for the responses of all three requests together; raises what they raise."""
        latest = {partition: OffsetSpec.latest() for partition in self._partitions}  # type: ignore[no-untyped-call]
        ends = self._admin.list_offsets(latest, request_timeout=3.0)
        asked = ConsumerGroupTopicPartitions(self._group, self._partitions)
        commits = self._admin.list_consumer_group_offsets([asked], request_timeout=3.0)
        described = self._admin.describe_consumer_groups([self._group], request_timeout=3.0)
        end = sum(found.result().offset for found in ends.values())
        offsets = commits[self._group].result().topic_partitions
        committed = sum(max(partition.offset, 0) for partition in offsets)
        group = described[self._group].result()
        return {"end": end, "lag": end - committed, "state": group.state.name, "members": len(group.members)}


def say(document: dict[str, Any]) -> None:
    """Print one whole line: several threads print."""
    with speaking:
        print(json.dumps(document), flush=True)


def follow(options: argparse.Namespace) -> None:
    """Print the handlers' output as it arrives."""
    consumer = Consumer({"bootstrap.servers": options.bootstrap, "group.id": "witness", "enable.auto.commit": False})
    partitions = consumer.list_topics(options.output, timeout=30).topics[options.output].partitions
    consumer.assign([TopicPartition(options.output, number, OFFSET_BEGINNING) for number in partitions])
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            say({"handled": json.loads(message.value() or b"{}")})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--shares", default="")
    parser.add_argument("--output")
    options = parser.parse_args()
    load, witness = Load(options), Witness(options)
    threading.Thread(target=load.run, daemon=True).start()
    threading.Thread(target=report, args=(load, witness), daemon=True).start()
    if options.output:
        threading.Thread(target=follow, args=(options,), daemon=True).start()
    for line in sys.stdin:
        load.rate = float(line)
    # The test is gone: stop the load.


def report(load: Load, witness: Witness) -> None:
    due = time.monotonic()
    while True:
        due = max(due + 1.0, time.monotonic())
        pause(max(due - time.monotonic(), 0.0))
        seen: dict[str, Any] = {"at": time.time(), "rate": load.rate, "written": load.written}
        try:
            seen |= witness.observe()
        except Exception as error:
            seen["error"] = str(error)[:200]
            witness.renew()
        say(seen)


if __name__ == "__main__":
    main()
