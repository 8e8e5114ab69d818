"""M1: the heartbeat thread keeps a member that works for long, and removes one that hangs."""

from __future__ import annotations

import pytest

from tests.broker.members import Member, await_records, await_shares, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together

SESSION_MS = 1_500
"""For members whose session will end."""
KEPT_SESSION_MS = 4_000
"""For members that must keep theirs, on a busy machine too."""
POLL_INTERVAL_MS = 5_000


@pytest.mark.parametrize("instance_id", [None, "static"])
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_m1_handler_that_takes_longer_than_the_session_keeps_its_membership(
    broker: KafkaBroker, instance_id: str | None, assignor: str
) -> None:
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    chosen = settings(
        broker.bootstrap,
        group,
        group_instance_id=instance_id,
        session_timeout_ms=KEPT_SESSION_MS,
        assignors=(assignor,),
    )
    with Member(chosen, [topic]) as slow:
        await_shares([slow], topic, 2)
        before = slow.membership
        slow.hang()
        beats = before.last_heartbeat_at or 0.0
        eventually(
            lambda: (slow.membership.last_heartbeat_at or 0.0) > beats + 1.25 * KEPT_SESSION_MS / 1000,
            what="heartbeats for longer than a session while the handler works",
        )
        slow.wake()
        await_records([slow], produce(broker.bootstrap, topic, 2, 5))
        assert (slow.membership.generation, slow.membership.member_id) == (before.generation, before.member_id)
        assert [what for what, _ in slow.calls] == ["assigned"]


@pytest.mark.parametrize("instance_id", [None, "static"])
def test_m1_handler_that_hangs_gives_its_partitions_up_and_rejoins_once_it_polls(
    broker: KafkaBroker, instance_id: str | None
) -> None:
    """A dynamic member leaves; a static one sends nothing, and its partitions move when its session ends."""
    topic, group = create_topic(broker.bootstrap, 2), unique("group")
    chosen = settings(
        broker.bootstrap,
        group,
        group_instance_id=instance_id,
        session_timeout_ms=SESSION_MS,
        max_poll_interval_ms=POLL_INTERVAL_MS,
        assignors=("range",),
    )
    with Member(chosen, [topic]) as hung:
        await_shares([hung], topic, 2)
        hung.hang()
        eventually(lambda: hung.membership.error, what="the poll interval to end")
        assert getattr(hung.membership.error, "reason", "") == "PollTimedOut"
        assert hung.membership.member_id == ""
        with Member(settings(broker.bootstrap, group, assignors=("range",)), [topic]) as other:
            await_shares([other], topic, 2, timeout_s=240)
            await_records([other], produce(broker.bootstrap, topic, 2, 10))
            assert hung.seen == []
            left = [line for line in broker.log.read_text().splitlines() if group in line and "LeaveGroup" in line]
            assert bool(left) == (instance_id is None), left
            assert not left or any("consumer poll timeout has expired" in line for line in left)
            hung.wake()
            await_shares([hung, other], topic, 2)
        assert ("lost", hung.calls[0][1]) in hung.calls
