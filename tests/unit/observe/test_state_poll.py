"""State polls: which groups have changed between two polls, and what is asked of the brokers for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleet_consumer.net import BrokerAddress, Call, Disconnected
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from fleet_operator.observe.calls import PollAbandonedError
from fleet_operator.observe.state_poll import StatePoll
from fleet_operator.observe.subscriptions import CLIENT_ID
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, GroupTransition
from tests.support.clock import StillClock


@dataclass
class Coordinators:
    """Two brokers in memory with groups: id to broker, state by ListGroups, state by DescribeGroups, member ids."""

    groups: dict[str, tuple[int, str, str, tuple[str, ...]]]
    silent: set[int] = field(default_factory=set)
    group_type: str = "classic"
    hangs: bool = False
    asked: Counter[str] = field(default_factory=Counter)
    described: list[str] = field(default_factory=list)

    @property
    def brokers(self) -> Mapping[int, BrokerAddress]:
        return {node: BrokerAddress("broker", node) for node in (1, 2)}

    def send(self, address: BrokerAddress, request: Any, *, timeout_s: float) -> Call[Any]:
        call: Call[Any] = Call(address, request, timeout_s=timeout_s, deadline=0.0)
        self.asked[type(request).__name__] += 1
        if self.hangs:
            return call
        if address.port in self.silent:
            call.fail(Disconnected("silent", address=address, reason="Disconnected"))
            return call
        answer: Any = (
            self._listed(address.port, request.states_filter)
            if isinstance(request, ListGroupsRequest)
            else self._described(address.port, request)
        )
        version = request.MAX_VERSION
        call.succeed(type(answer).decode(version, answer.encode(version)))
        return call

    def poll(self, timeout_s: float) -> None:
        assert self.hangs

    def _listed(self, node: int, states: Sequence[str]) -> ListGroupsResponse:
        groups = tuple(
            ListedGroup(group_id=name, protocol_type="consumer", group_state=state, group_type=self.group_type)
            for name, (at, state, _, _) in self.groups.items()
            if at == node and (state in states or not states)
        )
        return ListGroupsResponse(error_code=0, groups=groups)

    def _described(self, node: int, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        self.described += request.groups
        return DescribeGroupsResponse(groups=tuple(self._describe(node, name) for name in request.groups))

    def _describe(self, node: int, name: str) -> DescribedGroup:
        at, _, state, members = self.groups.get(name, (node, "", "Dead", ()))
        error = ErrorCode.NONE if name in self.groups else ErrorCode.GROUP_ID_NOT_FOUND
        return DescribedGroup(
            error_code=error if at == node else ErrorCode.NOT_COORDINATOR,
            group_id=name,
            group_state=state,
            protocol_type="consumer",
            protocol_data="range",
            members=tuple(
                DescribedGroupMember(
                    member_id=member, client_id=member, client_host="/h", member_metadata=b"", member_assignment=b""
                )
                for member in members
            ),
        )


def observed(**states: str) -> ClusterObservation:
    """An observation of groups with these states, coordinated by broker 1."""
    return ClusterObservation(
        observed_at=10.0,
        reachable=True,
        groups={
            name: GroupObservation(
                group_id=name,
                observed_at=10.0,
                state=state,
                coordinator_id=1,
                committed={("t", 0): 7},
                transitions=(GroupTransition(before="Unknown", after=state, at=10.0),),
            )
            for name, state in states.items()
        },
    )


def poll_states(cluster: Any, last: ClusterObservation, *, stopping: bool = False) -> ClusterObservation | None:
    return StatePoll(client=cluster, clock=StillClock(), last=last, stopping=lambda: stopping).run()


def steady(name: str, state: str, *, at: int = 1) -> dict[str, tuple[int, str, str, tuple[str, ...]]]:
    return {name: (at, state, state, ())}


def test_nothing_but_one_list_is_asked_while_nothing_changes() -> None:
    cluster = Coordinators({**steady("a", "Stable"), **steady("b", "Empty")})
    assert poll_states(cluster, observed(a="Stable", b="Empty", c="Dead")) is None
    assert cluster.asked == {"ListGroupsRequest": 2}


def test_only_groups_that_have_changed_are_described() -> None:
    joined = {"b": (1, "PreparingRebalance", "PreparingRebalance", ("m",))}
    cluster = Coordinators({**steady("a", "Stable"), **joined, **steady("foreign", "PreparingRebalance")})
    last = observed(a="Stable", b="Empty")
    seen = poll_states(cluster, last)
    assert seen is not None
    assert cluster.described == ["b"]
    assert seen.groups["a"] is last.groups["a"]
    found = seen.groups["b"]
    assert (found.state, [m.member_id for m in found.members], found.committed) == (
        "PreparingRebalance",
        ["m"],
        {("t", 0): 7},
    )
    assert [(t.before, t.after, t.joined_count) for t in found.transitions[1:]] == [("Empty", "PreparingRebalance", 1)]


def test_state_that_ends_while_it_is_seen_is_recorded() -> None:
    cluster = Coordinators({"a": (1, "PreparingRebalance", "Stable", ("m",))})
    seen = poll_states(cluster, observed(a="Stable"))
    assert seen is not None
    assert [(t.before, t.after) for t in seen.groups["a"].transitions[1:]] == [
        ("Stable", "PreparingRebalance"),
        ("PreparingRebalance", "Stable"),
    ]


def test_visit_of_the_operator_is_no_change() -> None:
    cluster = Coordinators({"b": (1, "PreparingRebalance", "PreparingRebalance", (CLIENT_ID,))})
    assert poll_states(cluster, observed(b="Empty")) is None
    assert cluster.described == ["b"]


def test_group_that_is_not_listed_any_more_is_stable_or_gone() -> None:
    cluster = Coordinators(steady("a", "Stable"))
    seen = poll_states(cluster, observed(a="CompletingRebalance", b="Empty"))
    assert seen is not None
    assert {name: group.state for name, group in seen.groups.items()} == {"a": "Stable", "b": "Dead"}


def test_group_that_moved_to_another_coordinator_is_no_transition() -> None:
    cluster = Coordinators(steady("a", "Empty", at=2))
    assert poll_states(cluster, observed(a="Empty")) is None
    cluster = Coordinators(steady("a", "Stable", at=2))
    assert poll_states(cluster, observed(a="Empty")) is None, "its old coordinator does not know it: the next poll asks"
    cluster = Coordinators(steady("a", "PreparingRebalance", at=2))
    seen = poll_states(cluster, observed(a="Stable"))
    assert seen is not None
    assert (seen.groups["a"].state, seen.groups["a"].coordinator_id) == ("PreparingRebalance", 2)


def test_silent_broker_leaves_its_groups_as_they_were() -> None:
    assert poll_states(Coordinators({}, silent={1}), observed(a="Empty", b="PreparingRebalance")) is None
    assert poll_states(Coordinators({}, silent={1, 2}), observed(a="Stable")) is None


@pytest.mark.parametrize("group_type", ["consumer", "share"])
def test_group_of_another_protocol_is_left_to_the_polls(group_type: str) -> None:
    """DescribeGroups does not know it: it would be asked for each second."""
    cluster = Coordinators(steady("a", "Empty"), group_type=group_type)
    assert poll_states(cluster, observed(a="Dead")) is None
    assert cluster.described == []


@pytest.mark.parametrize("group_type", ["consumer", "share"])
def test_group_that_another_protocol_has_taken_over_is_not_dead(group_type: str) -> None:
    """DescribeGroups answers GROUP_ID_NOT_FOUND for it, and its offsets are there."""
    cluster = Coordinators({"a": (1, "Stable", "Dead", ())}, group_type=group_type)
    assert poll_states(cluster, observed(a="Empty")) is None
    assert cluster.asked == {"ListGroupsRequest": 4, "DescribeGroupsRequest": 1}


def test_group_that_polls_have_not_seen_is_left_to_them() -> None:
    cluster = Coordinators(steady("a", "Empty"))
    never = GroupObservation(group_id="a", observed_at=1.0, error="NotObserved", coordinator_id=1)
    last = ClusterObservation(observed_at=1.0, reachable=True, groups={"a": never})
    assert poll_states(cluster, last) is None


def test_state_poll_ends_with_its_observer() -> None:
    with pytest.raises(PollAbandonedError):
        poll_states(Coordinators({}, hangs=True), observed(a="Stable"), stopping=True)
