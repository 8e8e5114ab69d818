"""View model of one fleet: explained conditions, members, lag and owner of each partition, and state transitions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from fleet_operator.api.v1alpha1 import conditions, refs
from fleet_operator.console.views.fleets import FleetRow, fleet_row
from fleet_operator.planning import times
from fleet_operator.planning.lag import GroupLag, ResetPolicy, group_lag
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, last_known

PARTITIONS_MAX: Final = 500
"""Maximum number of partitions that a page lists: first partitions with unknown lag, then those with the largest
lag."""
BAD_WHEN_FALSE: Final = frozenset(
    {
        *(conditions.READY, conditions.SERVING, conditions.CLUSTER_REACHABLE, conditions.LAG_KNOWN),
        *(conditions.TOPICS_READY, conditions.OFFSETS_KEPT, conditions.RETRIES_KEPT),
        *(conditions.SPARK_AVAILABLE, conditions.RANGE_RESOLVED, conditions.HANDLER_SUPPORTED),
    }
)
BAD_WHEN_TRUE: Final = frozenset(
    {conditions.STALLED, conditions.STUCK, conditions.DEGRADED, conditions.GROUP_SHARED, conditions.FAILED}
)


class Explains(Protocol):
    """The explanation of a condition's reason or type."""

    @property
    def meaning(self) -> str: ...
    @property
    def command(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ConditionView:
    """A condition with its explanation; without one, `meaning` and `command` are empty."""

    type: str
    status: str
    reason: str
    message: str
    since: str
    mood: str
    meaning: str
    command: str


@dataclass(frozen=True, slots=True)
class MemberView:
    name: str
    host: str
    state: str
    count: int
    partitions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. `lag` is in records, and None while unknown. `share` is this lag in percent of the largest lag of
    a partition of the fleet."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    share: int
    owner: str


@dataclass(frozen=True, slots=True)
class TransitionView:
    before: str
    after: str
    at: str
    cause: str
    inferred: bool
    generation: int | None


@dataclass(frozen=True, slots=True)
class StuckView:
    topic: str
    partition: int
    offset: int
    pod: str
    reason: str
    message: str
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """One fleet.

    - `observed_at`: empty while the Kafka group is not observed; `partitions` is then None.
    - `old`: why the observed values are outdated; empty if they are current.
    - `lag`: the sum of the known lags of all source partitions. `lag_complete`: True if all these lags are known.
    - `unlisted`: number of source partitions that `partitions` omits.
    """

    row: FleetRow
    image: str
    topics: tuple[str, ...]
    assignor: str
    coordinator: str
    observed_at: str
    old: str
    verdicts: tuple[ConditionView, ...]
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...] | None
    lag: int | None
    lag_complete: bool
    unlisted: int
    transitions: tuple[TransitionView, ...]
    stuck: tuple[StuckView, ...]


def fleet_view(
    body: Mapping[str, Any], observation: ClusterObservation | None, explanations: Mapping[str, Explains]
) -> FleetView:
    """Build the view of a ConsumerGroup from its object and the newest observation of its cluster."""
    status, row = body.get("status") or {}, fleet_row(body)
    seen = observed_group(body, observation)
    lag = _lag(body, observation, seen) if observation is not None and seen is not None else None
    partitions = _partitions(status, seen, lag) if seen is not None and lag is not None else None
    coordinator = status.get("coordinator") or {}
    return FleetView(
        row=row,
        image=str(status.get("image") or ""),
        topics=tuple(body["spec"].get("topics") or ()),
        assignor=str(status.get("assignor") or ""),
        coordinator=f"{coordinator.get('id')} ({coordinator.get('host')})" if coordinator else "",
        observed_at=times.to_text(seen.observed_at) if seen is not None else "",
        old=_old(last_known(observation), seen),
        verdicts=condition_views(status, explanations),
        members=tuple(_member(each) for each in status.get("members") or ()),
        partitions=partitions[:PARTITIONS_MAX] if partitions is not None else None,
        lag=lag.total if lag is not None else None,
        lag_complete=lag is not None and lag.complete,
        unlisted=max(0, len(partitions or ()) - PARTITIONS_MAX),
        transitions=tuple(_transition(each) for each in reversed(status.get("transitions") or ())),
        stuck=tuple(
            StuckView(*(each[name] for name in ("topic", "partition", "offset", "pod", "reason", "message", "since")))
            for each in status.get("stuckPartitions") or ()
        ),
    )


def observed_group(body: Mapping[str, Any], observation: ClusterObservation | None) -> GroupObservation | None:
    """The observation of a ConsumerGroup's Kafka group, with last known values; None before the first observation."""
    group_id = refs.group_id_of(dict(body))
    shown = last_known(observation, group_id)
    return shown.groups.get(group_id) if shown is not None else None


def condition_views(status: Mapping[str, Any], explanations: Mapping[str, Explains]) -> tuple[ConditionView, ...]:
    """The conditions of any kind's status: problems first, then unknown conditions, then the others."""
    found = []
    for each in status.get("conditions") or ():
        word, kind, state = str(each.get("reason", "")), str(each["type"]), str(each["status"])
        about = explanations.get(word) or explanations.get(kind)
        bad = kind in {"True": BAD_WHEN_TRUE, "False": BAD_WHEN_FALSE}.get(state, ())
        mood = "bad" if bad else "unknown" if state == "Unknown" else "good"
        since, message = str(each.get("lastTransitionTime", "")), str(each.get("message", ""))
        meaning, command = (about.meaning, about.command) if about is not None else ("", "")
        found.append(ConditionView(kind, state, word, message, since, mood, meaning, command))
    return tuple(sorted(found, key=lambda each: ("bad", "unknown", "good").index(each.mood)))


def _member(entry: Mapping[str, Any]) -> MemberView:
    listed = tuple((str(each["topic"]), str(each["ranges"])) for each in entry.get("partitions") or ())
    return MemberView(
        name=str(entry.get("pod") or entry["id"]),
        host=str(entry.get("host") or ""),
        state=str(entry.get("state") or ""),
        count=entry.get("partitionCount") or 0,
        partitions=listed,
    )


def _old(observation: ClusterObservation | None, seen: GroupObservation | None) -> str:
    """A sentence that says why observed values are outdated; empty if they are current."""
    if observation is None or seen is None:
        return ""
    if not observation.current:
        return "These values were read before the connection of the KafkaCluster was edited."
    if not observation.reachable:
        return "The Kafka cluster does not answer: these are the last known values."
    return f"The group could not be observed ({seen.error}): these are the last known values." if seen.error else ""


def _lag(body: Mapping[str, Any], observation: ClusterObservation, seen: GroupObservation) -> GroupLag:
    """The lag of all partitions of the source topics, computed as for the status."""
    spec = body["spec"]
    reset: ResetPolicy = (spec.get("consumer") or {}).get("autoOffsetReset") or "Earliest"
    topics = spec.get("topics") or observation.matches.get(spec.get("topicPattern") or "", ())
    found = {name: observation.topics.get(name) for name in topics}
    known = {name: topic.partitions for name, topic in found.items() if topic is not None and not topic.error}
    lag = group_lag(seen, [(name, number) for name, count in known.items() for number in range(count)], reset)
    return lag if len(known) == len(found) else replace(lag, complete=False)


def _partitions(status: Mapping[str, Any], seen: GroupObservation, lag: GroupLag) -> tuple[PartitionView, ...]:
    """All source partitions: first those with unknown lag, then the others by decreasing lag."""
    pods = {each.get("instanceId") or each.get("id"): each.get("pod") for each in status.get("members") or ()}
    owners = {
        (topic, number): str(pods.get(member.key) or member.key)
        for member in seen.members
        for topic, numbers in member.partitions.items()
        for number in numbers
    }
    most = max((each for each in lag.partitions.values() if each), default=0)
    found = [
        PartitionView(
            *key,
            seen.committed.get(key),
            seen.end_offsets.get(key),
            each,
            -(-100 * (each or 0) // most) if most else 0,
            owners.get(key, ""),
        )
        for key, each in lag.partitions.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.lag is not None, -(each.lag or 0), each.topic, each.partition)))


def _transition(entry: Mapping[str, Any]) -> TransitionView:
    return TransitionView(
        before=str(entry["from"]),
        after=str(entry["to"]),
        at=str(entry["at"]),
        cause=str(entry.get("cause") or ""),
        inferred=bool(entry.get("inferred")),
        generation=entry.get("generation"),
    )
