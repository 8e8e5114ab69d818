"""The cost of a poll: requests grow with brokers and with changes, not with groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from fleet_consumer.contract import naming
from fleet_operator.observe.poll import Poll
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.observe.subscriptions import GroupSubscription, retry_subscription
from fleet_operator.planning.observation import HANGS_S, ClusterObservation
from tests.support.clock import StillClock
from tests.unit.observe.scripted_cluster import ScriptedCluster

DELAYS = ("5s", "30s", "5m")
BROKERS, PARTITIONS = 3, 6
CONFIGS = {"max.message.bytes": "1048588", "cleanup.policy": "delete"}


@dataclass
class Estate:
    """So many groups with a retry flow each, on one cluster; the first few read committed records only."""

    groups: int
    committed: int = 0
    clock: StillClock = field(default_factory=StillClock)
    memory: ClusterMemory = field(default_factory=ClusterMemory)
    part: PartMemory = field(default_factory=PartMemory)
    last: ClusterObservation | None = None

    def __post_init__(self) -> None:
        self.subscriptions = {
            name: _subscription(name, read_committed=n < self.committed)
            for n, name in enumerate(f"group-{n}" for n in range(self.groups))
        }
        topics = [topic for subscription in self.subscriptions.values() for topic in subscription.named_topics]
        self.cluster = ScriptedCluster(
            BROKERS, {(t, p): [] for t in topics for p in range(PARTITIONS)}, configs=CONFIGS
        )

    @property
    def now_ms(self) -> int:
        return int(self.clock.wall() * 1000)

    def write(self, delay: str, *, ago_s: int, count: int = 1) -> None:
        """A record in one partition of every group's topic of this delay."""
        for name in self.subscriptions:
            log = self.cluster.logs[naming.retry_topic(name, delay), 0]
            log += [self.now_ms - ago_s * 1000] * count

    def poll(self, after_s: float = 5.0) -> ClusterObservation:
        self.clock.now += after_s
        poll = Poll(
            client=cast(Any, self.cluster),
            clock=self.clock,
            subscriptions=self.subscriptions,
            last=self.last,
            cluster=self.memory,
            part=self.part,
            stopping=lambda: False,
        )
        self.last = poll.run()
        return self.last


def _subscription(name: str, *, read_committed: bool = False) -> GroupSubscription:
    return GroupSubscription(
        group_id=name,
        read_committed=read_committed,
        topics=(f"source-of-{name}",),
        failed_topic=naming.failed_topic(name),
        retry=retry_subscription(name, DELAYS),
    )


def test_hundred_groups_cost_no_more_requests_than_ten() -> None:
    """Of settings a broker is asked for 250 topics at once; everything else is one request for all groups."""
    costs = {}
    for groups in (10, 100):
        estate = Estate(groups)
        estate.write("30s", ago_s=10)
        estate.poll()
        first = estate.cluster.per_broker(without=["DescribeConfigsRequest"])
        estate.poll()
        costs[groups] = (first, estate.cluster.per_broker())
    assert costs[10] == costs[100]


def test_waiting_flow_costs_one_request_when_something_becomes_due_and_none_before() -> None:
    estate = Estate(20)
    estate.poll()
    estate.cluster.asked.clear()
    estate.poll()
    quiet = estate.cluster.per_broker()
    estate.write("30s", ago_s=0)
    estate.poll()
    assert estate.cluster.per_broker() == quiet + 1  # up to where it is due
    for _ in range(4):
        seen = estate.poll()
        assert estate.cluster.per_broker() == quiet
    flow = seen.groups["group-7"].retry
    assert flow
    assert (flow.waiting, flow.due_lag, flow.next_due_at) == (1, 0, estate.clock.wall() + 5)
    seen = estate.poll()
    assert estate.cluster.per_broker() == quiet + 1
    flow = seen.groups["group-7"].retry
    assert flow
    assert (flow.due_lag, flow.oldest_due_at) == (1, estate.clock.wall())


def test_long_outage_costs_a_bounded_number_of_requests() -> None:
    estate = Estate(20)
    for age in range(4_000, 0, -40):
        estate.write("5s", ago_s=age)
    estate.poll()
    estate.cluster.asked.clear()
    for _ in range(10):
        seen = estate.poll()
        asked = estate.cluster.asked[0, "ListOffsetsRequest"]
        estate.cluster.asked.clear()
        assert asked <= 2 + 1 + 8  # ends and starts, up to where it is due, the search
    assert {round(group.retry.oldest_due_at or 0) for group in seen.groups.values() if group.retry} == {
        1_700_000_000 + 1000 - 4_000 + 5
    }


def test_metadata_version_is_asked_once_a_minute_of_one_broker() -> None:
    estate = Estate(1)
    assert estate.poll().metadata_version == 29
    for _ in range(11):
        assert estate.poll().metadata_version == 29
    assert sum(count for (_, name), count in estate.cluster.asked.items() if name == "ApiVersionsRequest") == 1
    estate.poll(after_s=10)
    assert sum(count for (_, name), count in estate.cluster.asked.items() if name == "ApiVersionsRequest") == 2


def test_settings_are_asked_once_a_minute_and_spread_over_the_brokers() -> None:
    estate = Estate(50)  # 300 topics, so two requests
    estate.poll()
    asked = {node: estate.cluster.asked[node, "DescribeConfigsRequest"] for node in range(BROKERS)}
    assert sum(asked.values()) == 2 + BROKERS  # and what each says about __consumer_offsets
    estate.cluster.asked.clear()
    for _ in range(11):
        estate.poll()
    assert sum(estate.cluster.asked[node, "DescribeConfigsRequest"] for node in range(BROKERS)) == 0
    estate.poll()
    assert sum(estate.cluster.asked[node, "DescribeConfigsRequest"] for node in range(BROKERS)) == 2 + BROKERS


def test_broker_that_is_silent_costs_its_partitions_and_is_asked_no_more_in_that_poll() -> None:
    estate = Estate(10)
    estate.write("5s", ago_s=60)
    estate.poll()
    estate.cluster.silent.add(0)
    estate.cluster.asked.clear()
    estate.write("5s", ago_s=50)
    seen = estate.poll()
    for group in seen.groups.values():
        flow = group.retry
        assert flow
        assert (flow.waiting, flow.due_lag, flow.counted) == (None, None, False)
        assert flow.error
    assert estate.cluster.asked[0, "ListOffsetsRequest"] <= 2


def test_both_ends_are_asked_from_time_to_time_and_only_for_those_who_read_committed_records() -> None:
    """There are four polls in twenty seconds; the ends of all readers of one kind are one request to each broker."""
    plain, mixed = Estate(40), Estate(40, committed=20)
    counts = []
    for estate in (plain, mixed):
        for _ in range(4):
            estate.poll()
        estate.cluster.asked.clear()
        for _ in range(4):
            estate.poll()
        counts.append(estate.cluster.asked[0, "ListOffsetsRequest"])
    assert counts == [4 * 2, 4 * 3 + 1]


def test_hung_transaction_is_seen_by_those_whom_it_holds_back() -> None:
    """Their lag is 0 meanwhile. It ends with the transaction."""
    estate = Estate(2, committed=1)
    held, other = ("source-of-group-0", 0), ("source-of-group-1", 0)
    for partition in (held, other):
        estate.cluster.logs[partition] += [estate.now_ms] * 10
        estate.cluster.stable[partition] = 4
    began = estate.clock.wall() + 5
    for _ in range(round(HANGS_S / 5)):
        assert not any(group.hanging for group in estate.poll().groups.values())
        estate.cluster.logs[held].append(estate.now_ms)
    seen = estate.poll().groups
    assert seen["group-0"].end_offsets[held] == 4
    (found,) = seen["group-0"].hanging.values()
    assert (found.offset, found.since, seen["group-1"].open_transactions) == (4, began, {})
    assert found.end_offset > 30
    del estate.cluster.stable[held]
    assert estate.poll().groups["group-0"].open_transactions == {}
