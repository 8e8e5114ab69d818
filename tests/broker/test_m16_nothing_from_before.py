"""M16: after a seek, a pause, or a lost partition no record from before is delivered, and none is left out."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from fleet_consumer import Consumer, TopicPartition
from tests.broker.members import create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker

PARTITIONS = 8
EACH = 40_000
CHUNK = 10_000
DEADLINE_S = 120.0


class Script:
    """Drives one consumer at random, and knows for each partition which offset must come next.

    `expected` moves with deliveries and seeks; any other record, or a gap, is a fault.
    """

    def __init__(self, consumer: Consumer, topic: str, seed: int) -> None:
        self.consumer = consumer
        self.parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.expected: dict[TopicPartition, int] = dict.fromkeys(self.parts, 0)
        self.paused: set[TopicPartition] = set()
        self.owned: set[TopicPartition] = set()
        self.chance = random.Random(seed)
        self.handed = 0
        self.moves = dict.fromkeys(("pause", "resume", "seek back", "seek on", "revoke"), 0)

    def assigned(self, parts: Sequence[TopicPartition]) -> None:
        self.owned |= set(parts)
        for part in parts:
            # A fresh owner: earlier deliveries are committed, so reading continues exactly there.
            self.consumer.seek(part, self.expected[part])

    def gone(self, parts: Sequence[TopicPartition]) -> None:
        self.owned -= set(parts)
        self.paused -= set(parts)

    def step(self) -> None:
        records = self.consumer.poll(0.2)
        for run in records.runs:
            part, offsets = run.topic_partition, [record.offset for record in run.records]
            assert part in self.owned, f"{part} came out after it was given back"
            assert part not in self.paused, f"{part} came out while paused"
            first = self.expected[part]
            assert offsets == list(range(first, first + len(offsets))), f"{part}: {offsets[:3]}… instead of {first}…"
            assert [record.partition for record in run.records] == [part.partition] * len(offsets)
            self.expected[part] = run.next_offset
            self.handed += len(offsets)
            assert self.consumer.position(part) == run.next_offset
        self.move()

    def move(self) -> None:
        unfinished = sorted(part for part in self.owned if self.expected[part] < EACH)
        if not unfinished:
            self.resume(self.paused)
            return
        part = self.chance.choice(unfinished)
        match self.chance.randrange(60):
            case 0 | 1 | 2 | 3 | 4 | 5:
                self.consumer.pause([part])
                self.paused.add(part)
                self.moves["pause"] += 1
            case 6 | 7 | 8 | 9 | 10 | 11 | 12:
                self.resume(self.paused)
            case 13 | 14:
                self.seek(part, max(0, self.expected[part] - self.chance.randrange(1_500)), "seek back")
            case 15:
                self.seek(part, min(EACH, self.expected[part] + self.chance.randrange(1, 50)), "seek on")
            case 16:
                # The member joins again: eager ones give everything back and get it again.
                self.consumer.enforce_rebalance("the test wants it")
                self.moves["revoke"] += 1
        if self.paused >= set(unfinished):
            self.resume(self.paused)

    def resume(self, parts: set[TopicPartition]) -> None:
        if parts:
            self.consumer.resume(sorted(parts))
            self.moves["resume"] += 1
            self.paused = set()

    def seek(self, part: TopicPartition, offset: int, what: str) -> None:
        self.consumer.seek(part, offset)
        self.expected[part] = offset
        self.moves[what] += 1


def test_m16_320000_records_of_random_pauses_seeks_and_revocations(broker: KafkaBroker) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    topic = create_topic(broker.bootstrap, PARTITIONS)
    for first in range(0, EACH, CHUNK):
        produce(broker.bootstrap, topic, PARTITIONS, CHUNK, first)
    began = time.monotonic()
    with Consumer(settings(broker.bootstrap, unique("group"), assignors=("range",))) as consumer:
        script = Script(consumer, topic, seed)
        consumer.subscribe([topic], on_assigned=script.assigned, on_revoked=script.gone, on_lost=script.gone)
        while any(offset < EACH for offset in script.expected.values()):
            script.step()
            assert time.monotonic() - began < DEADLINE_S, script.expected
    print(f"handed out {script.handed} records in {time.monotonic() - began:.1f} s; {script.moves}")
    assert script.handed >= PARTITIONS * EACH - 50 * script.moves["seek on"]
    assert min(script.moves.values()) > 0, script.moves
