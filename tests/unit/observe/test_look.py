"""What a pattern is when a look has been taken."""

from __future__ import annotations

import re

from fleet_operator.observe.look import _resolved
from fleet_operator.observe.settings import GroupInterest
from fleet_operator.planning.observation import TopicObservation

TOPICS = {name: TopicObservation(partitions=1) for name in ("orders.eu", "orders.us", "payments", "_fleet.orders.x")}


def test_pattern_becomes_the_topics_that_match_now() -> None:
    interests = {
        "pattern": GroupInterest(group_id="pattern", pattern=re.compile("orders.*|_fleet.*")),
        "named": GroupInterest(group_id="named", topics=("payments",)),
    }
    resolved = _resolved(interests, TOPICS)
    assert resolved["pattern"].topics == ("orders.eu", "orders.us")
    assert resolved["named"] == interests["named"]
