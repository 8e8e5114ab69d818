"""Records that a group's workers skip: the published list, and the status of each record. Pure.

Every worker mounts the ConfigMap with the list, if the ConfigMap exists, and reads the list again when it changes. The
list is not part of a revision, because a fleet whose workers all crash at one record must get past this record without
a rollout.

Decision: docs/decisions/0037-declared-offsets.md.
"""

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
    WAITING = "Waiting"  # the group has not reached the record, or it is unknown if it has
    SKIPPED = "Skipped"  # a worker wrote the record to the failed topic and, for a source topic, committed past it
    PASSED = "Passed"  # the committed offset is after the record, and no worker reported a skip
    NOT_READ = "NotRead"  # the group does not read this topic or partition


def places_of(group: ConsumerGroup) -> tuple[Place, ...]:
    return tuple(sorted(Place(each.topic, each.partition, each.offset) for each in group.spec.offsets.skip))


def skip_config_map(group: ConsumerGroup, step: JoinStep | None = None) -> dict[str, Any]:
    """The ConfigMap that the workers mount. It has the list of records to skip, and the fleet's last scaling step.

    Neither of them is part of a revision. The workers that a scaling step adds read the step when they start. `step`:
    None without a scaling step."""
    body = head("v1", "ConfigMap", group, naming.skip_config(group.metadata.name), labels.WORKER)
    body["metadata"]["labels"][HANDLER_LABEL] = labels.RECORD
    joins = {} if step is None else {JOIN_FILE: to_json(render_join(group.metadata.uid, step))}
    return {**body, "data": {SKIP_FILE: to_json(_document(group)), **joins}}


def _document(group: ConsumerGroup) -> dict[str, Any]:
    return render_skips(group.metadata.uid, places_of(group))


def pods_with_old_skips(pods: Iterable[Mapping[str, Any]], group: ConsumerGroup) -> Notices:
    """Return the annotation to set on each pod whose list may be outdated, keyed by the pod's uid. If the list is
    empty, pods that never had a list are left out."""
    digest = content_hash(_document(group))
    seen = {pod["metadata"]["uid"]: labels.annotation_of(pod, labels.SKIP_ANNOTATION) for pod in pods}
    unneeded = (digest,) if group.spec.offsets.skip else (digest, None)
    return {uid: {labels.SKIP_ANNOTATION: digest} for uid, read in seen.items() if read not in unneeded}


def skipped_status(
    group: ConsumerGroup,
    counts: Mapping[str, int] | None,
    observed: GroupObservation | None,
    workers: Iterable[WorkerObservation],
    previous: Iterable[Mapping[str, Any]],
    flow: Mapping[str, int | None] | None = None,
) -> list[dict[str, Any]]:
    """Build one status entry for each record in `spec.offsets.skip`. `counts`: the number of partitions of each source
    topic, None while unknown. `previous`: the entries in the present status. `flow`: the result of `flow_topics`."""
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
    """Topics that retry workers read, each with its number of partitions (None while unknown). The result is None while
    the delays are unknown."""
    if retry is None or not retry.searched or retry.current is None:
        return None
    delays = (*retry.delays, *retry.drained_delays)
    names = [naming.redrive_topic(group.group_id), *(naming.retry_topic(group.group_id, delay) for delay in delays)]
    seen = {name: topics[name].partitions for name in names if name in topics and topics[name].error is None}
    return {name: seen.get(name) for name in names}


def _flow_state(place: Place, flow: Mapping[str, int | None] | None, *, skipped: bool) -> SkipState | None:
    """Return the state of a record in a retry or redrive topic; None while unknown, so that the last state is kept.

    Only workers' reports show that a record was skipped, because the operator does not observe the retry group's
    commits by partition. A worker reports a skip when it begins to write the record to the failed topic. If the worker
    dies before the broker acknowledges the write, the next worker reads the record again and also skips it."""
    if skipped:
        return SkipState.SKIPPED
    if flow is None:
        return None
    count = flow.get(place.topic, 0)
    if count is None:
        return None
    return SkipState.NOT_READ if place.partition >= count else SkipState.WAITING


def _state(
    place: Place, counts: Mapping[str, int] | None, observed: GroupObservation | None, *, skipped: bool
) -> SkipState | None:
    """Return the state of a record in a source topic; None while unknown, so that the last state is kept."""
    if counts is None or observed is None:
        return None
    if place.partition >= counts.get(place.topic, 0):
        return SkipState.NOT_READ
    committed = observed.committed.get((place.topic, place.partition))
    if committed is None or committed <= place.offset:
        return SkipState.WAITING
    return SkipState.SKIPPED if skipped else SkipState.PASSED


def _is_flow(group: ConsumerGroup, topic: str) -> bool:
    """True for a topic that the group's retry workers read."""
    return topic == naming.redrive_topic(group.group_id) or topic.startswith(naming.retry_topic(group.group_id, ""))


def awaits_skips(entries: Iterable[Mapping[str, Any]]) -> bool:
    """True while workers may still reach a listed record. The operator then polls the workers for reports of skips."""
    return any(each.get("state") == SkipState.WAITING for each in entries)
