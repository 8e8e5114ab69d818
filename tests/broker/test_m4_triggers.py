"""Triggers of a rebalance, one test for each: Stable again, every partition owned by one.

The coordinator that moves to another broker needs three brokers; its test is in the suite of faults.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.members import (
    Member,
    await_records,
    await_shares,
    committed,
    create_topic,
    grow_topic,
    produce,
    settings,
    unique,
)
from tests.broker.test_consumer_group import MEMBER_PROCESS
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def test_m4_member_joins(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 6), unique("group")
    with Member(settings(broker.bootstrap, group), [topic]) as a:
        await_shares([a], topic, 6)
        with (
            Member(settings(broker.bootstrap, group), [topic]) as b,
            Member(settings(broker.bootstrap, group), [topic]) as c,
        ):
            await_shares([a, b, c], topic, 6)
            assert {len(member.owned) for member in (a, b, c)} == {2}


def test_m4_member_leaves_on_purpose(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 6), unique("group")
    with Member(settings(broker.bootstrap, group, session_timeout_ms=60_000), [topic]) as a:
        leaver = Member(settings(broker.bootstrap, group, session_timeout_ms=60_000), [topic])
        await_shares([a, leaver], topic, 6)
        leaver.stop()
        await_shares([a], topic, 6, timeout_s=30)  # half a session: the member was notified, and no timeout ran
        assert a.membership.last_rebalance_reason == "group is already rebalancing"


def test_m4_static_member_asked_to_leave_gives_up_its_place_at_once(broker: KafkaBroker) -> None:
    """KIP-1092: a static member remains by default; its operator can decide otherwise."""
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    static = settings(broker.bootstrap, group, session_timeout_ms=60_000)
    with Member(static, [topic]) as a:
        leaver = Member(settings(broker.bootstrap, group, session_timeout_ms=60_000, group_instance_id="b"), [topic])
        await_shares([a, leaver], topic, 4)
        leaver.stop(leave="leave")
        await_shares([a], topic, 4, timeout_s=30)


def test_m4_member_dies(broker: KafkaBroker, tmp_path: Path) -> None:
    """SIGSTOP is a death for the group: the session runs out.

    The resumed member delivers nothing of the old generation, and returns as a new member.
    """
    topic, group = create_topic(broker.bootstrap, 4), unique("group")
    log = tmp_path / "handed"
    process = subprocess.Popen([sys.executable, str(MEMBER_PROCESS), broker.bootstrap, group, topic, str(log)])
    try:
        eventually(lambda: log.exists() and "assigned 4" in log.read_text(), what="the process to join")
        with Member(settings(broker.bootstrap, group), [topic]) as survivor:
            eventually(lambda: len(survivor.owned) == 2, what="the two to share")
            process.send_signal(signal.SIGSTOP)
            await_shares([survivor], topic, 4, timeout_s=240)
            written = produce(broker.bootstrap, topic, 4, 100)
            await_records([survivor], written)
            eventually(
                lambda: committed(broker.bootstrap, group, topic, 4) == dict.fromkeys(range(4), 100),
                what="the survivor to have committed all",
            )
            before = log.read_text()
            process.send_signal(signal.SIGCONT)
            eventually(lambda: len(survivor.owned) == 2, what="the process to come back")
            eventually(lambda: log.read_text() != before, what="the process to be assigned again")
            assert "records" not in log.read_text().removeprefix(before)
    finally:
        process.kill()
        process.wait()
    assert sorted(survivor.seen) == sorted(written)


def test_m4_topic_gains_partitions(broker: KafkaBroker) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    with (
        Member(settings(broker.bootstrap, group), [topic]) as a,
        Member(settings(broker.bootstrap, group), [topic]) as b,
    ):
        await_shares([a, b], topic, 2)
        grow_topic(broker.bootstrap, topic, 4)
        await_shares([a, b], topic, 4)
        await_records([a, b], produce(broker.bootstrap, topic, 4, 10))


def test_m4_pattern_matches_a_new_topic(broker: KafkaBroker) -> None:
    family, group = unique("family"), unique("group")
    first = create_topic(broker.bootstrap, 2, f"{family}-1")
    pattern = re.compile(rf"{re.escape(family)}-\d")
    with (
        Member(settings(broker.bootstrap, group), pattern) as a,
        Member(settings(broker.bootstrap, group), pattern) as b,
    ):
        await_shares([a, b], first, 2)
        second = create_topic(broker.bootstrap, 2, f"{family}-2")
        wanted = sorted((topic, number) for topic in (first, second) for number in range(2))
        eventually(lambda: sorted([*a.owned, *b.owned]) == wanted, what="each partition to have one owner")
        await_records([a, b], produce(broker.bootstrap, second, 2, 10))
