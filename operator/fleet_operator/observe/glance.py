"""The states of all watched groups between two looks, for one small request to each broker.

A rebalance may be over before the next look. ListGroups returns the state of every group that a broker coordinates, and
can be limited to states: all but Stable, in which nearly every group is nearly always. So an answer is as long as the
list of groups that are not at work, however many there are. Only a group whose state is another one than at the last
observation is described, for its members. Offsets wait for the next look.

Runs on the observer's thread. Brokers before Kafka 2.6 list no states and refuse the filter: their groups are looked at
only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from fleet_consumer.clock import Clock
from fleet_consumer.net import Call, NetworkClient
from fleet_consumer.wire.admin.list_groups import ListedGroup, ListGroupsRequest
from fleet_consumer.wire.describe_groups import DescribedGroup
from fleet_consumer.wire.errors import ErrorCode
from fleet_operator.observe import batches, folding
from fleet_operator.observe.states import DEAD, STABLE, extend_transitions
from fleet_operator.planning.observation import ClusterObservation, GroupObservation

GLANCE_SECONDS: Final = 1.0
"""The interval. A state that lasts is to be seen within two seconds."""
GLANCE_REST_FACTOR: Final = 9.0
"""Least pause after a glance, as a multiple of its duration: glances take at most a tenth of the thread's time."""
CALL_SECONDS: Final = 2.0
"""Patience with a broker; one that takes longer is the next look's."""
NOT_STABLE: Final = ("PreparingRebalance", "CompletingRebalance", "Empty", "Dead")


class GlanceAbandonedError(Exception):
    """The observer is being stopped in the middle of a glance."""


class _Suspect(NamedTuple):
    """A group that has changed: the broker to ask, and the state that it listed; empty if it listed none."""

    node_id: int
    listed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """Inputs of one glance. `last` is the newest observation, a good one; `stopping` ends waits."""

    client: NetworkClient
    clock: Clock
    last: ClusterObservation
    stopping: Callable[[], bool]

    def take(self) -> ClusterObservation | None:
        """The observation with the states and members that have changed; None when none has.

        Raises GlanceAbandonedError. A broker that does not answer leaves its groups as they were.
        """
        suspects = suspect(self.last.groups, self._list(NOT_STABLE))
        if not suspects:
            return None
        described = self._without_foreign(self._describe(suspects), suspects)
        now = self.clock.wall()
        changed = {
            group_id: update(self.last.groups[group_id], suspects[group_id], answer, now)
            for group_id, answer in described.items()
        }
        groups = {group_id: group for group_id, group in changed.items() if group is not self.last.groups[group_id]}
        return replace(self.last, groups={**self.last.groups, **groups}) if groups else None

    def _list(self, states: tuple[str, ...] = ()) -> dict[int, tuple[ListedGroup, ...]]:
        """The groups in these states, by default all, by coordinator; brokers that did not answer are absent."""
        request = ListGroupsRequest(states_filter=states)
        brokers = self.client.brokers
        calls = {node: self.client.send(brokers[node], request, timeout_s=CALL_SECONDS) for node in brokers}
        self._wait(calls.values())
        return {
            node_id: call.response.groups
            for node_id, call in calls.items()
            if call.error is None and not call.response.error_code
        }

    def _without_foreign(
        self, described: dict[str, DescribedGroup], suspects: Mapping[str, _Suspect]
    ) -> dict[str, DescribedGroup]:
        """The descriptions without those of groups that do exist: one that another protocol has taken over is described
        like one that was deleted."""
        gone = {group_id for group_id, group in described.items() if folding.mirror(group)[0] == DEAD}
        if not gone:
            return described
        listed = self._list()
        there = {group.group_id for groups in listed.values() for group in groups}
        left = {group_id for group_id in gone if group_id in there or suspects[group_id].node_id not in listed}
        return {group_id: group for group_id, group in described.items() if group_id not in left}

    def _describe(self, suspects: Mapping[str, _Suspect]) -> dict[str, DescribedGroup]:
        by_node: dict[int, list[str]] = defaultdict(list)
        for group_id, (node_id, _) in suspects.items():
            if node_id in self.client.brokers:
                by_node[node_id].append(group_id)
        calls = [
            self.client.send(self.client.brokers[node_id], request, timeout_s=CALL_SECONDS)
            for node_id, groups in by_node.items()
            for request in batches.describe_requests(groups)
        ]
        self._wait(calls)
        return {
            group.group_id: group
            for call in calls
            if call.error is None
            for group in call.response.groups
            if group.group_id in suspects
        }

    def _wait(self, calls: Iterable[Call[Any]]) -> None:
        pending = list(calls)
        while pending := [call for call in pending if not call.done]:
            if self.stopping():
                raise GlanceAbandonedError
            self.client.poll(CALL_SECONDS)


def suspect(groups: Mapping[str, GroupObservation], listed: Mapping[int, Iterable[ListedGroup]]) -> dict[str, _Suspect]:
    """The watched groups whose state is not the one of their last observation.

    `listed` has the groups that are not Stable, by each broker that answered. A group that its coordinator does not
    list is Stable, or does not exist.
    """
    found = {
        group.group_id: _Suspect(node_id, group.group_state)
        for node_id, of in listed.items()
        for group in of
        if group.group_id in groups and group.group_state and folding.is_classic(group)
    }
    changed: dict[str, _Suspect] = {}
    for group_id, group in groups.items():
        if not group.transitions or group.error is not None or group.coordinator_id is None:
            continue  # looks have not seen its state, or cannot
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
    state, members = folding.mirror(described)
    visited = any(folding.is_visitor(each) for each in described.members)
    passed = "" if visited else suspected.listed  # the state of the operator's own visit
    transitions = extend_transitions(last, state, members, now, passed=passed)
    if transitions == last.transitions:
        return last
    return replace(
        last,
        state=state,
        protocol_type=described.protocol_type,
        assignor=described.protocol_data,
        coordinator_id=suspected.node_id,
        members=members,
        transitions=transitions,
    )
