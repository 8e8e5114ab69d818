"""Status of a ConsumerGroup, built from facts. Equal facts and an equal previous status give an equal status.

The status has times of events instead of ages, and lag rounded to buckets. Fields that could not be observed keep their
last values, `state` becomes Unknown, and conditions have the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.api.v1alpha1.kafkacluster import KafkaCluster
from fleet_operator.planning import times
from fleet_operator.planning.fleet.parts import MAIN, RETRY
from fleet_operator.planning.fleet.rollout_facts import PodFacts
from fleet_operator.planning.labels import selector_text
from fleet_operator.planning.lag import UNKNOWN_TEXT, behind_text, lag_bucket
from fleet_operator.planning.observation import UNKNOWN_STATE, GroupObservation
from fleet_operator.planning.offsets.skips import flow_topics, skipped_status
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.status.conditions import project_conditions
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.kafkacluster import recorded_crowded
from fleet_operator.planning.status.members import member_entries, namer, shorten_id
from fleet_operator.planning.status.retry import redriven_of, retry_status
from fleet_operator.planning.status.rollout import updated_replicas
from fleet_operator.planning.status.scaling import scaling_status
from fleet_operator.planning.status.transitions import project_transitions, since

STUCK_MAX: Final = 20
STUCK_REASON_MAX: Final = 128
STUCK_MESSAGE_MAX: Final = 512
"""Limits in the CRD for the entries of stuck partitions: their number, and the length of a reason and of a message in
characters."""

MIRRORED: Final = (
    "assignor",
    "generation",
    "coordinator",
    "memberCount",
    "members",
    "partitions",
    "lagApproximate",
    "behindText",
    "transitions",
    "retry",
)
"""Fields from Kafka and the workers, which keep their values while the Kafka group cannot be observed."""


def project_consumergroup_status(facts: ConsumerGroupFacts, previous: Mapping[str, Any], now: float) -> dict[str, Any]:
    observed = facts.observed_group
    stuck = _stuck_partitions(facts, previous)
    before = previous.get("conditions") or ()
    status: dict[str, Any] = {
        **_fleet(facts),
        **_mirrored(facts, previous),
        "limit": facts.scale.limit,
        **scaling_status(facts, previous, now),
        "stuckPartitions": stuck or [],
        **_offsets(facts, previous),
    }
    status |= _state(observed, status["transitions"], previous, now)
    found = project_conditions(facts, before, stuck)
    if facts.upgrade is not None:
        last = facts.upgrade
        upgrade = {"phase": str(last.phase), "image": last.image, "connection": last.connection}
        status["upgrade"] = {key: value for key, value in upgrade.items() if value is not None}
    status = conditions.with_conditions(status, found, times.to_text(now), facts.group.metadata.generation, previous)
    retry = {key: value for key, value in status.pop("retry", {}).items() if key not in ("replicas", "readyReplicas")}
    workers = facts.parts[RETRY].fleet
    if workers is not None:
        retry |= {"replicas": workers.current_replicas, "readyReplicas": workers.ready_replicas}
    return _with_observed_at(status | ({"retry": retry} if retry else {}), previous, observed)


def invalid_spec_status(
    metadata: Mapping[str, Any], problem: Problem, previous: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Build the status of an object with an unreadable spec: the previous status, with new conditions that have the
    reason."""
    unknown = [
        Condition(kind, "Unknown", problem.reason, "the spec cannot be read: see Ready")
        for kind in conditions.CONSUMER_GROUP_CONDITIONS
        if kind not in (conditions.READY, conditions.PROGRESSING, conditions.STALLED, conditions.DEGRADED)
    ]
    verdict = [
        Condition(conditions.READY, "False", problem.reason, problem.message),
        Condition(conditions.PROGRESSING, "False", conditions.REFUSED, problem.message),
        Condition(conditions.STALLED, "True", conditions.REFUSED, problem.message),
        Condition(conditions.DEGRADED, "True", problem.reason, problem.message),
    ]
    status = {"state": UNKNOWN_STATE, **previous}
    return conditions.with_conditions(
        status, [*verdict, *unknown], times.to_text(now), metadata.get("generation", 0), previous
    )


def _state(
    observed: GroupObservation | None, transitions: Sequence[Mapping[str, Any]], previous: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Return the state of the Kafka group, and the time at which the group entered this state."""
    state = observed.state if observed else UNKNOWN_STATE
    shown = previous.get("stateSince") if previous.get("state") == state else None
    began = since(transitions, state) or shown or times.to_text(observed.observed_at if observed else now)
    return {"state": state, "stateSince": began}


def _fleet(facts: ConsumerGroupFacts) -> dict[str, Any]:
    fleet = facts.fleet
    return {
        "image": facts.image.name,
        "imageSource": facts.image.source,
        **({"connection": facts.connection} if facts.connection else {}),
        "groupId": facts.group.group_id,
        "replicas": fleet.current_replicas if fleet else 0,
        "readyReplicas": fleet.ready_replicas if fleet else 0,
        "updatedReplicas": updated_replicas(facts),
        "targetReplicas": facts.scale.replicas,
        **({"revision": facts.revision} if facts.revision is not None else {}),
        "selector": selector_text(MAIN.selector(facts.group.metadata.name)),
    }


def _mirrored(facts: ConsumerGroupFacts, previous: Mapping[str, Any]) -> dict[str, Any]:
    blank: dict[str, Any] = {"assignor": "", "members": [], "behindText": UNKNOWN_TEXT, "transitions": []}
    kept = blank | {key: previous[key] for key in MIRRORED if key in previous}
    observed = facts.observed_group
    if observed is None:
        return kept
    mine = {pod.name for pod in facts.pods}
    workers = [worker for worker in facts.workers if worker.pod in mine]
    counts, lag, before = facts.view.partition_counts, facts.view.lag, previous.get("retry") or {}
    redriven = redriven_of(facts.redriven, facts.failed_topic_id)
    retry = retry_status(observed, facts.retry, before, facts.workers, redriven, facts.retries_kept.safe_until)
    seen: dict[str, Any] = {
        "assignor": shorten_id(observed.assignor) or kept["assignor"],
        "generation": _generation(facts, observed, previous),
        "coordinator": _coordinator(facts, observed) or None,
        "memberCount": len(observed.members),
        "members": member_entries(facts, observed, previous.get("members") or ()),
        "partitions": sum(counts.values()) if counts is not None else None,
        "transitions": project_transitions(previous, observed, workers, namer(facts)),
        "retry": retry or None,
    }
    if lag is not None and lag.complete and lag.total is not None:
        bucket = lag_bucket(lag.total, previous.get("lagApproximate"))
        seen |= {"lagApproximate": bucket, "behindText": behind_text(lag.behind, previous.get("behindText", ""))}
    return kept | {key: value for key, value in seen.items() if value is not None}


def _generation(facts: ConsumerGroupFacts, observed: GroupObservation, previous: Mapping[str, Any]) -> int | None:
    """Return the newest group generation that a worker reports. If no worker reports a generation, return the
    generation in the previous status."""
    members = {member.member_id for member in observed.members}
    reported = [worker.generation for worker in facts.workers if worker.generation >= 0 and worker.member_id in members]
    # A recreated group counts generations from the start again, so the reported generation may be lower than the
    # previous one.
    return max(reported, default=previous.get("generation"))


def _coordinator(facts: ConsumerGroupFacts, observed: GroupObservation) -> dict[str, Any]:
    observation, cluster = facts.observation, facts.cluster
    if observation is None or observed.coordinator_id is None:
        return {}
    broker = next((broker for broker in observation.brokers if broker.id == observed.coordinator_id), None)
    coordinator: dict[str, Any] = {
        "id": observed.coordinator_id,
        "host": shorten_id(f"{broker.host}:{broker.port}") if broker else "",
    }
    if observation.offsets_topic is not None:
        partitions = observation.offsets_topic.partitions
        coordinator["offsetsPartition"] = naming.coordinator_partition(observed.group_id, partitions)
    if isinstance(cluster, KafkaCluster) and observed.coordinator_id in recorded_crowded(cluster.status):
        coordinator["crowded"] = True
    return coordinator


_place: Final = itemgetter("topic", "partition", "offset", "pod")


def _stuck_partitions(facts: ConsumerGroupFacts, previous: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the stuck records that workers report, and the records at which a worker's process died. If a worker does
    not answer, its earlier entries are kept. None if no worker has ever answered."""
    asked = {worker.pod for worker in facts.workers}
    every = facts.all_pods
    deadly = _deadly(every, previous)
    known = conditions.find_condition(previous.get("conditions") or (), conditions.STUCK)
    if not asked and not deadly and (known is None or known.get("status") == "Unknown"):
        return None
    silent = {pod.name for pod in every} - asked
    kept = [dict(e) for e in previous.get("stuckPartitions") or () if e["pod"] in silent]
    reported = [
        {
            "topic": stuck.topic,
            "partition": stuck.partition,
            "offset": stuck.offset,
            "pod": worker.pod,
            "reason": stuck.reason[:STUCK_REASON_MAX],
            "message": stuck.message[:STUCK_MESSAGE_MAX],
            "since": times.to_text(stuck.since),
        }
        for worker in facts.workers
        for stuck in worker.stuck
    ]
    # Each record has one entry. An entry about a process that died is preferred, then an entry from a new report, then
    # an entry from an earlier report.
    found = {_place(e): e for e in (*kept, *reported, *deadly)}
    return sorted(found.values(), key=lambda e: (e["since"], e["topic"], e["partition"]))[:STUCK_MAX]


def _deadly(pods: Iterable[PodFacts], previous: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return entries of records that were being processed when a container died. `since`: time of the first known
    death."""
    before = {_place(e): e["since"] for e in previous.get("stuckPartitions") or ()}
    found = []
    for pod in pods:
        end = pod.ended
        if end is None or pod.deleting:
            continue
        for record in end.records:
            since = before.get((*record, pod.name)) or times.to_text(end.at or 0.0)
            why = {"reason": end.reason or conditions.WORKERS_FAILING, "message": str(end)[:STUCK_MESSAGE_MAX]}
            found.append({**record._asdict(), "pod": pod.name, **why, "since": since})
    return found


def _offsets(facts: ConsumerGroupFacts, previous: Mapping[str, Any]) -> dict[str, Any]:
    before = previous.get("offsets") or {}
    counts, observed = facts.view.partition_counts, facts.observed_group
    found: dict[str, Any] = {}
    seen = facts.view.observation
    flow = flow_topics(facts.group, facts.retry, seen.topics) if seen is not None and seen.reachable else None
    skipped = skipped_status(facts.group, counts, observed, facts.workers, before.get("skipped") or (), flow)
    found |= {"skipped": skipped} if skipped else {}
    kept = {"keptAt": facts.expiry.kept_at, "safeUntil": facts.expiry.safe_until}
    found |= {key: times.to_text(at) for key, at in kept.items() if at is not None}
    return {"offsets": found} if found else {}


def _with_observed_at(
    status: dict[str, Any], previous: Mapping[str, Any], observed: GroupObservation | None
) -> dict[str, Any]:
    """Add `observedAt`, the time of the observation from which the status was built. This field changes only if another
    field also changes."""
    before = previous.get("observedAt")
    unchanged = {key: value for key, value in previous.items() if key != "observedAt"} == status
    if observed is None or (unchanged and before):
        return status | ({"observedAt": before} if before else {})
    newest = observed.transitions[-1].at if observed.transitions else observed.observed_at
    return status | {"observedAt": times.to_text(max(observed.observed_at, newest))}
