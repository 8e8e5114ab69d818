"""The states of all watched groups between two polls, for one small request to each broker.

A rebalance may be over before the next poll. ListGroups returns the state of every group that a broker coordinates, and
can be limited to states: all but Stable, in which nearly every group is nearly always. So an answer is as long as the
list of groups that are not at work, however many there are. Only a group whose state is another one than at the last
observation is described, for its members. Offsets wait for the next poll.

Runs on the observer's thread. Brokers before Kafka 2.6 list no states and refuse the filter: their groups are polled
only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from fleet_consumer.clock import Clock
from fleet_consumer.net import NetworkClient
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import DescribedGroup, ListedGroup, ListGroupsRequest
from fleet_consumer.wire.message import Request
from fleet_operator.observe import aggregation, batches
from fleet_operator.observe.aggregation import DEAD, STABLE
from fleet_operator.observe.calls import ResponseT, wait
from fleet_operator.observe.group_aggregation import extend_transitions
from fleet_operator.planning.observation import ClusterObservation, GroupObservation

STATE_POLL_SECONDS: Final = 1.0
"""The interval. A state that lasts is to be seen within two seconds."""
STATE_POLL_REST_FACTOR: Final = 9.0
"""Least pause after a state poll, as a multiple of its duration: they take at most a tenth of the thread's time."""
CALL_SECONDS: Final = 2.0
"""Patience with a broker; one that takes longer is the next poll's."""
NOT_STABLE: Final = ("PreparingRebalance", "CompletingRebalance", "Empty", "Dead")


class _Suspect(NamedTuple):
    """A group that has changed: the broker to ask, and the state that it listed; empty if it listed none."""

    node_id: int
    listed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePoll:
    """Inputs of one state poll. `last` is the newest observation, a good one; `stopping` ends waits."""

    client: NetworkClient
    clock: Clock
    last: ClusterObservation
    stopping: Callable[[], bool]

    def take(self) -> ClusterObservation | None:
        """The observation with the states and members that have changed; None when none has.

        Raises PollAbandonedError. A broker that does not answer leaves its groups as they were.
        """
        known = self.last.groups
        suspects = suspect(known, self._list(NOT_STABLE))
        if not suspects:
            return None
        described, now = self._describe(suspects), self.clock.wall()
        seen = {name: update(known[name], suspects[name], answer, now) for name, answer in described.items()}
        changed = {name: group for name, group in seen.items() if group is not known[name]}
        return replace(self.last, groups={**known, **changed}) if changed else None

    def _list(self, states: tuple[str, ...] = ()) -> dict[int, tuple[ListedGroup, ...]]:
        """The groups in these states, by default all, by coordinator; brokers that did not answer are absent."""
        request = ListGroupsRequest(states_filter=states)
        answers = self._ask((node_id, request) for node_id in self.client.brokers)
        return {node_id: answer.groups for node_id, answer in answers if not answer.error_code}

    def _describe(self, suspects: Mapping[str, _Suspect]) -> dict[str, DescribedGroup]:
        """The descriptions without those of groups that are not gone: one that another protocol has taken over is
        described like one that was deleted."""
        by_node: dict[int, list[str]] = defaultdict(list)
        for group_id, (node_id, _) in suspects.items():
            by_node[node_id].append(group_id)
        requests = ((node_id, each) for node_id, of in by_node.items() for each in batches.describe_requests(of))
        described = {
            group.group_id: group
            for _, answer in self._ask(requests)
            for group in answer.groups
            if group.group_id in suspects
        }
        gone = {group_id for group_id, group in described.items() if aggregation.mirror(group)[0] == DEAD}
        if not gone:
            return described
        listed = self._list()
        there = {group.group_id for groups in listed.values() for group in groups}
        left = {group_id for group_id in gone if group_id in there or suspects[group_id].node_id not in listed}
        return {group_id: group for group_id, group in described.items() if group_id not in left}

    def _ask(self, requests: Iterable[tuple[int, Request[ResponseT]]]) -> list[tuple[int, ResponseT]]:
        """The answers of brokers that are there and answer in time."""
        brokers = self.client.brokers
        calls = [
            (node_id, self.client.send(brokers[node_id], request, timeout_s=CALL_SECONDS))
            for node_id, request in requests
            if node_id in brokers
        ]
        wait(self.client, (call for _, call in calls), self.stopping)
        return [(node_id, call.response) for node_id, call in calls if call.error is None]


def suspect(groups: Mapping[str, GroupObservation], listed: Mapping[int, Iterable[ListedGroup]]) -> dict[str, _Suspect]:
    """The watched groups whose state is not the one of their last observation.

    `listed` has the groups that are not Stable, by each broker that answered. A group that its coordinator does not
    list is Stable, or does not exist.
    """
    found = {
        group.group_id: _Suspect(node_id, group.group_state)
        for node_id, of in listed.items()
        for group in of
        if group.group_id in groups and group.group_state and aggregation.is_classic(group)
    }
    changed: dict[str, _Suspect] = {}
    for group_id, group in groups.items():
        if not group.transitions or group.error is not None or group.coordinator_id is None:
            continue  # polls have not seen its state, or cannot
        here = found.get(group_id)
        if here is not None:
            if here.listed != group.state:
                changed[group_id] = here
        elif group.coordinator_id in listed and group.state not in (STABLE, DEAD):
            changed[group_id] = _Suspect(group.coordinator_id, "")
    return changed


def update(last: GroupObservation, suspected: _Suspect, described: DescribedGroup, now: float) -> GroupObservation:
    """The group with its state and members as of now; the last observation itself where they are the same, and where
    this broker cannot say, as after a move to another coordinator."""
    if described.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        return last
    state, members = aggregation.mirror(described)
    visited = any(aggregation.is_visitor(each) for each in described.members)
    passed = "" if visited else suspected.listed  # the state of the operator's own visit
    transitions = extend_transitions(last, state, members, now, passed=passed)
    if transitions == last.transitions:
        return last
    return replace(
        last,
        state=state,
        assignor=described.protocol_data,
        coordinator_id=suspected.node_id,
        members=members,
        transitions=transitions,
    )
