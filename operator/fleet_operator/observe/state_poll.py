"""Reads the states of all observed groups between two polls, with one small request to each broker.

A rebalance may begin and end between two polls. Such rebalances are found with ListGroups, which returns the state of
every group of a coordinator. The request asks for all states except Stable, so the response has only the few groups
that are not Stable. Only groups whose state differs from the last observation are described, to read their members.
State polls read no offsets.

Runs on the observer's thread. Brokers before Kafka 2.6 list no states and refuse the filter, so the states of their
groups are read only by polls.

Decision: docs/decisions/0047-state-history.md.
"""

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
"""Interval between state polls in seconds: short enough to observe every state that lasts two seconds or more."""
STATE_POLL_REST_FACTOR: Final = 9.0
"""Shortest pause after a state poll, as a multiple of its duration, so that state polls use at most a tenth of the
thread's time."""
CALL_SECONDS: Final = 2.0
"""Timeout of a call in seconds. If a broker is slower, this state poll leaves out its groups."""
NOT_STABLE: Final = ("PreparingRebalance", "CompletingRebalance", "Empty", "Dead")


class _Candidate(NamedTuple):
    """A group whose state has changed. `node_id`: the broker that describes it. `listed`: the state in that broker's
    response to ListGroups; empty if the group is not in the response."""

    node_id: int
    listed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePoll:
    """Inputs of one state poll. `last` is the newest observation, which must show a reachable cluster. Waits end when
    `stopping` returns True."""

    client: NetworkClient
    clock: Clock
    last: ClusterObservation
    stopping: Callable[[], bool]

    def run(self) -> ClusterObservation | None:
        """Return the observation with changed states and members; None without a change. The groups of a broker that
        does not answer stay unchanged. Raises PollAbandonedError."""
        known = self.last.groups
        candidates = find_candidates(known, self._list(NOT_STABLE))
        if not candidates:
            return None
        described, now = self._describe(candidates), self.clock.wall()
        seen = {name: update(known[name], candidates[name], answer, now) for name, answer in described.items()}
        changed = {name: group for name, group in seen.items() if group is not known[name]}
        return replace(self.last, groups={**known, **changed}) if changed else None

    def _list(self, states: tuple[str, ...] = ()) -> dict[int, tuple[ListedGroup, ...]]:
        """List the groups in these states (default: all), keyed by coordinator; without brokers that did not answer."""
        request = ListGroupsRequest(states_filter=states)
        answers = self._ask((node_id, request) for node_id in self.client.brokers)
        return {node_id: answer.groups for node_id, answer in answers if not answer.error_code}

    def _describe(self, candidates: Mapping[str, _Candidate]) -> dict[str, DescribedGroup]:
        """Describe the candidates. A group that changed to another protocol is also described as Dead. Therefore a Dead
        group is included only if its coordinator's list confirms that the group does not exist."""
        by_node: dict[int, list[str]] = defaultdict(list)
        for group_id, (node_id, _) in candidates.items():
            by_node[node_id].append(group_id)
        requests = ((node_id, each) for node_id, ids in by_node.items() for each in batches.describe_requests(ids))
        described = {
            group.group_id: group
            for _, answer in self._ask(requests)
            for group in answer.groups
            if group.group_id in candidates
        }
        gone = {group_id for group_id, group in described.items() if aggregation.mirror(group)[0] == DEAD}
        if not gone:
            return described
        listed = self._list()
        there = {group.group_id for groups in listed.values() for group in groups}
        left = {group_id for group_id in gone if group_id in there or candidates[group_id].node_id not in listed}
        return {group_id: group for group_id, group in described.items() if group_id not in left}

    def _ask(self, requests: Iterable[tuple[int, Request[ResponseT]]]) -> list[tuple[int, ResponseT]]:
        """Send requests, each to the broker with this node id. Return the responses of brokers that answer in time."""
        brokers = self.client.brokers
        calls = [
            (node_id, self.client.send(brokers[node_id], request, timeout_s=CALL_SECONDS))
            for node_id, request in requests
            if node_id in brokers
        ]
        wait(self.client, (call for _, call in calls), self.stopping)
        return [(node_id, call.response) for node_id, call in calls if call.error is None]


def find_candidates(
    groups: Mapping[str, GroupObservation], listed: Mapping[int, Iterable[ListedGroup]]
) -> dict[str, _Candidate]:
    """Find the observed groups whose state differs from their last observation.

    `listed` has the groups that are not Stable, keyed by the broker that listed them. A group that its coordinator does
    not list is Stable or does not exist.
    """
    found = {
        group.group_id: _Candidate(node_id, group.group_state)
        for node_id, listed_groups in listed.items()
        for group in listed_groups
        if group.group_id in groups and group.group_state and aggregation.is_classic(group)
    }
    changed: dict[str, _Candidate] = {}
    for group_id, group in groups.items():
        if not group.transitions or group.error is not None or group.coordinator_id is None:
            continue  # no poll has observed the group's state yet
        here = found.get(group_id)
        if here is not None:
            if here.listed != group.state:
                changed[group_id] = here
        elif group.coordinator_id in listed and group.state not in (STABLE, DEAD):
            changed[group_id] = _Candidate(group.coordinator_id, "")
    return changed


def update(last: GroupObservation, candidate: _Candidate, described: DescribedGroup, now: float) -> GroupObservation:
    """Return the group with its present state and members. Return `last` itself if nothing has changed, or if the
    broker returned an error, for example because the group moved to another coordinator."""
    if described.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        return last
    state, members = aggregation.mirror(described)
    visited = any(aggregation.is_visitor(each) for each in described.members)
    passed = "" if visited else candidate.listed  # hide states that the operator's own visit causes
    transitions = extend_transitions(last, state, members, now, passed=passed)
    if transitions == last.transitions:
        return last
    return replace(
        last,
        state=state,
        assignor=described.protocol_data,
        coordinator_id=candidate.node_id,
        members=members,
        transitions=transitions,
    )
