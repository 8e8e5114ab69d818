"""Records that a group's workers pass by: their publication, and what became of them. Pure.

The list reaches running workers through a ConfigMap that every worker mounts, if it exists, and reads again when it
changes. It is no part of a revision: a fleet whose workers all die at a record must not need a rollout to get past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from fleet_consumer.contract import naming
from fleet_consumer.contract.joins import JoinStep, render_join
from fleet_consumer.contract.naming import content_hash
from fleet_consumer.contract.pod import JOIN_FILE, SKIP_FILE
from fleet_consumer.contract.skips import Place, render_skips
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.planning import labels, times
from fleet_operator.planning.fleet.manifests import Notices, head
from fleet_operator.planning.objects import to_json
from fleet_operator.planning.observation import GroupObservation, TopicObservation, WorkerObservation
from fleet_operator.planning.retry.intent import RetryIntent


class SkipState(StrEnum):
    WAITING = "Waiting"  # not reached yet, or unknown
    SKIPPED = "Skipped"  # a worker wrote it to the failed topic; from a source topic, that is committed
    PASSED = "Passed"  # committed past it, and no worker reported a skip
    NOT_READ = "NotRead"  # no topic or partition that the group reads


def places_of(group: ConsumerGroup) -> tuple[Place, ...]:
    """The records of the spec, in a fixed order."""
    return tuple(sorted(Place(each.topic, each.partition, each.offset) for each in group.spec.offsets.skip))


def skip_config_map(group: ConsumerGroup, step: JoinStep | None = None) -> dict[str, Any]:
    """The ConfigMap that the group's workers mount, with the list as it is now, and the last step of the fleet: the
    workers that it adds read that when they start, and it is no part of a revision either."""
    body = head("v1", "ConfigMap", group, naming.skip_config(group.metadata.name), labels.WORKER)
    body["metadata"]["labels"][HANDLER_LABEL] = labels.RECORD
    joins = {} if step is None else {JOIN_FILE: to_json(render_join(group.metadata.uid, step))}
    return {**body, "data": {SKIP_FILE: to_json(_document(group)), **joins}}


def _document(group: ConsumerGroup) -> dict[str, Any]:
    return render_skips(group.metadata.uid, places_of(group))


def pods_with_old_skips(pods: Iterable[Mapping[str, Any]], group: ConsumerGroup) -> Notices:
    """The annotation for pods that may have read another list; none for pods that never had one and need none."""
    digest, found = content_hash(_document(group)), {}
    for pod in pods:
        metadata = pod["metadata"]
        seen = (metadata.get("annotations") or {}).get(labels.SKIP_ANNOTATION)
        if seen != digest and (group.spec.offsets.skip or seen is not None):
            found[metadata["uid"]] = {labels.SKIP_ANNOTATION: digest}
    return found


def skipped_status(
    group: ConsumerGroup,
    counts: Mapping[str, int] | None,
    observed: GroupObservation | None,
    workers: Iterable[WorkerObservation],
    previous: Iterable[Mapping[str, Any]],
    flow: Mapping[str, int | None] | None = None,
) -> list[dict[str, Any]]:
    """`status.offsets.skipped`: one entry for each record of the spec.

    `counts` are the partitions of the source topics, None while unknown; `previous` are the entries as stored.
    `flow` is as `flow_topics` returns it.
    """
    reported = {place: passed for worker in workers for place, passed in worker.skipped.items()}
    before = {(each.get("topic"), each.get("partition"), each.get("offset")): each for each in previous}
    entries = []
    for place in places_of(group):
        old = before.get((place.topic, place.partition, place.offset), {})
        known = {name: old[name] for name in ("at", "lastOffset") if name in old}
        if (passed := reported.get(place)) is not None:
            last = {} if passed.last_offset is None else {"lastOffset": passed.last_offset}
            known = {"at": times.to_text(passed.at)} | last
        skipped = bool(known)
        if _is_flow(group, place.topic):
            state = _flow_state(place, flow, skipped=skipped)
        else:
            state = _state(place, counts, observed, skipped=skipped)
        if state is None:
            state = SkipState(old["state"]) if old.get("state") in set(SkipState) else SkipState.WAITING
        seen = known if state is SkipState.SKIPPED else {}
        entries.append({**place._asdict(), "state": state.value, **seen})
    return entries


def flow_topics(
    group: ConsumerGroup, retry: RetryIntent | None, topics: Mapping[str, TopicObservation]
) -> dict[str, int | None] | None:
    """Topics of the retry flow with their numbers of partitions, None for one that is unknown.

    Returns None while it is unknown which delays there are.
    """
    if retry is None or not retry.searched or retry.current is None:
        return None
    delays = (*retry.delays, *retry.drained_delays)
    names = [naming.redrive_topic(group.group_id), *(naming.retry_topic(group.group_id, delay) for delay in delays)]
    seen = {name: topics[name].partitions for name in names if name in topics and topics[name].error is None}
    return {name: seen.get(name) for name in names}


def _flow_state(place: Place, flow: Mapping[str, int | None] | None, *, skipped: bool) -> SkipState | None:
    """State of a record of the retry flow, by reports only: the retry group is not observed by partition.

    A worker reports a record when its write to the failed topic begins. Should the worker die before that is
    acknowledged, the next one comes to the record again, and does the same.
    """
    if skipped:
        return SkipState.SKIPPED
    if flow is None:
        return None
    if place.topic not in flow:
        return SkipState.NOT_READ
    count = flow[place.topic]
    if count is None:
        return None
    return SkipState.NOT_READ if place.partition >= count else SkipState.WAITING


def _state(
    place: Place, counts: Mapping[str, int] | None, observed: GroupObservation | None, *, skipped: bool
) -> SkipState | None:
    """State of one record; None while that cannot be known, and the last one stands."""
    if counts is None or observed is None:
        return None
    if place.partition >= counts.get(place.topic, 0):
        return SkipState.NOT_READ
    committed = observed.committed.get((place.topic, place.partition))
    if committed is None or committed <= place.offset:
        return SkipState.WAITING
    return SkipState.SKIPPED if skipped else SkipState.PASSED


def _is_flow(group: ConsumerGroup, topic: str) -> bool:
    """True for the topics that the group's retry workers read."""
    return topic == naming.redrive_topic(group.group_id) or topic.startswith(naming.retry_topic(group.group_id, ""))


def awaits_skips(entries: Iterable[Mapping[str, Any]]) -> bool:
    """True while a record of the list may still be reached, so that the workers are asked about it."""
    return any(each.get("state") == SkipState.WAITING for each in entries)
