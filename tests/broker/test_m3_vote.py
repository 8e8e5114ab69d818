"""M3: the vote for an assignor."""

from __future__ import annotations

import pytest

from fleet_consumer.group.errors import InconsistentProtocol
from tests.broker.members import Member, await_records, await_shares, create_topic, produce, settings, unique
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.together


def test_m3_group_uses_a_common_assignor_and_refuses_members_without_one(broker: KafkaBroker) -> None:
    """Three members listing [range, roundrobin], [roundrobin, range], [roundrobin] use roundrobin; a fourth that
    lists only sticky is refused with a clear error, and the other three go on."""
    topic, group = create_topic(broker.bootstrap, 6), unique("group")

    def member(*assignors: str) -> Member:
        return Member(settings(broker.bootstrap, group, assignors=assignors), [topic])

    with member("range", "roundrobin") as a, member("roundrobin", "range") as b, member("roundrobin") as c:
        await_shares([a, b, c], topic, 6)
        assert {one.membership.protocol for one in (a, b, c)} == {"roundrobin"}
        generation = a.membership.generation
        other = member("sticky")
        eventually(lambda: other.error, what="the other to be refused")
        assert isinstance(other.error, InconsistentProtocol)
        assert group in str(other.error)
        assert "assignor" in str(other.error)
        other.stop()
        await_records([a, b, c], produce(broker.bootstrap, topic, 6, 10))
        assert {one.membership.generation for one in (a, b, c)} == {generation}
