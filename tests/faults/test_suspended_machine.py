"""A member whose machine sleeps for longer than its session, and wakes: CLOCK_BOOTTIME as its clock shows it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fleet_consumer import Consumer, TopicPartition
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from tests.broker.members import Member, await_shares, committed, produce, unique
from tests.faults.conftest import Proxied
from tests.faults.protocols import PROTOCOLS
from tests.support.clock import SuspendedClock
from tests.support.recording import member_settings
from tests.support.waiting import eventually

SESSION_MS = 4_000
RECORDS = 2_000
BATCH = 10


class Sleeper:
    """A consumer polled by the test, on a machine suspended by the test; `events` are its results, in order."""

    def __init__(self, bootstrap: str, group: str, topic: str, assignor: str) -> None:
        self.clock = SuspendedClock()
        self.events: list[str] = []
        self.at: dict[int, int] = {}
        settings = member_settings(
            bootstrap, group, assignors=(assignor,), session_timeout_ms=SESSION_MS, max_poll_records=BATCH
        )
        self.consumer = Consumer(settings, self.clock)
        self.consumer.subscribe(
            [topic],
            on_assigned=lambda _: self.events.append("assigned"),
            on_revoked=lambda _: self.events.append("revoked"),
            on_lost=self._lost,
        )

    def _lost(self, _partitions: Sequence[TopicPartition]) -> None:
        self.events.append("lost")
        self.at.clear()

    def poll(self) -> int:
        """Poll once; returns how many records came."""
        records = self.consumer.poll(0.1)
        for record in records:
            self.at[record.partition] = record.offset + 1
        if records:
            self.events.append("records")
        return len(records)


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_member_of_a_suspended_machine_wakes_without_its_session(proxied: Proxied, assignor: str) -> None:
    bootstrap, group = proxied.cluster.bootstrap, unique("asleep")
    topic = proxied.cluster.create_topic(unique("asleep"), 2)
    produce(bootstrap, topic, 2, RECORDS)
    sleeper = Sleeper(bootstrap, group, topic, assignor)
    try:
        eventually(sleeper.poll, what="the first records")
        sleeper.consumer.commit({TopicPartition(topic, part): OffsetAndMetadata(at) for part, at in sleeper.at.items()})
        eventually(sleeper.poll, what="records after the commit")
        assert sleeper.consumer.holds_session()
        # Much is prefetched by now. The machine falls asleep; another member takes everything over.
        sleeper.clock.suspend()
        awake = member_settings(bootstrap, group, assignors=(assignor,), session_timeout_ms=45_000)
        with Member(awake, [topic]) as other:
            await_shares([other], topic, 2, timeout_s=240)
            ends = {0: RECORDS, 1: RECORDS}
            eventually(lambda: committed(bootstrap, group, topic, 2) == ends, what="the other to read it all")
            before = len(sleeper.events)
            sleeper.clock.resume()
            assert not sleeper.consumer.holds_session()
            # A commit of the old generation would put the group back to the sleeper's position.
            stale = {TopicPartition(topic, part): OffsetAndMetadata(at) for part, at in sleeper.at.items()}
            with pytest.raises((errors.CommitFailed, errors.RebalanceInProgress)):
                sleeper.consumer.commit(stale, 30)
            assert committed(bootstrap, group, topic, 2) == ends
            # Prefetched records stay there until the session is confirmed again.
            eventually(lambda: sleeper.poll() or "lost" in sleeper.events[before:], what="the sleeper to learn")
            assert sleeper.events[before:][:1] == ["lost"], (
                "before anything else, also when it is given partitions in the same poll"
            )
            eventually(
                lambda: (sleeper.poll() or True) and "assigned" in sleeper.events[before:],
                what="the sleeper to be given something again",
            )
    finally:
        sleeper.clock.resume()
        sleeper.consumer.close(10)
