"""Everything a ConsumerGroup's reconcile looks at, read once.

What changes often comes from the caches; what they do not hold (a handler's source, the records) is read live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleet_consumer.contract import naming
from fleet_consumer.contract.patterns import Pattern
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster, conditions
from fleet_operator.clients.kinds import (
    CONFIG_MAP,
    JOB,
    POD,
    REDRIVE,
    RETRY_POLICY,
    STATEFUL_SET,
    JsonObject,
)
from fleet_operator.observe.interests import GroupInterest, RetryInterest, retry_interest
from fleet_operator.planning.claims import Claim
from fleet_operator.planning.fleet.blocking import cluster_id_changed
from fleet_operator.planning.observation import ClusterObservation, WorkerObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive.readings import at_work
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.retry.intent import PolicyRevision, RetryIntent
from fleet_operator.planning.retry.publication import plan_intent
from fleet_operator.planning.retry.records import Published, policy_record_name, read_policy_record, read_published
from fleet_operator.planning.topic_pattern import PatternRefused, group_pattern
from fleet_operator.reconcilers.claims import heir_of, older_claim
from fleet_operator.reconcilers.consumergroup.records import read_records
from fleet_operator.reconcilers.context import Context, find_child, is_owned_by, read_child
from fleet_operator.reconcilers.group_view import read_cluster, read_observation
from fleet_operator.reconcilers.retrypolicy import content_of
from fleet_operator.reconcilers.routing import cluster_of, policy_of
from fleet_operator.runtime.cache import Key, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One ConsumerGroup and all that its fleet depends on, as found.

    `cluster` is None when there is none (or it cannot be parsed); `handler_files` is None when the spec refers to a
    ConfigMap that does not exist, and when it refers to none; `retry` and `published` (what workers were told last)
    are None for a group that has no retries and never had. The lists hold only objects of this very ConsumerGroup;
    `workers` are those of its main group, `retry_workers` those of its retry group. `redrives` names the Redrives that
    may be writing to its redrive topic, `redrive_statuses` are those of all its Redrives. `older` is an older claim on
    its Kafka groups, `heir` the oldest other one.
    """

    body: JsonObject
    group: ConsumerGroup
    cluster: KafkaCluster | None
    observation: ClusterObservation | None
    handler_files: Mapping[str, str] | None
    older: Claim | None
    stateful_set: JsonObject | None
    workers: tuple[JsonObject, ...]
    checks: tuple[JsonObject, ...]
    config_maps: tuple[JsonObject, ...]
    worker_reports: tuple[WorkerObservation, ...]
    retry: RetryIntent | None = None
    published: Published | None = None
    retry_stateful_set: JsonObject | None = None
    retry_workers: tuple[JsonObject, ...] = ()
    redrives: tuple[str, ...] = ()
    redrive_statuses: tuple[JsonObject, ...] = ()
    heir: Claim | None = None

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return key_of(self.body)

    @property
    def cluster_key(self) -> Key:
        """The KafkaCluster that the group refers to, existing or not."""
        return cluster_of(self.body)

    @property
    def cluster_id(self) -> str | None:
        """The Kafka cluster that all of this is about; what is decided from it is done there and nowhere else."""
        return self.observation.cluster_id if self.observation is not None else None

    @property
    def on_its_cluster(self) -> bool:
        """Whether Kafka answers, and it is the cluster that the object was made for: nothing is done on another."""
        observation, cluster = self.observation, self.cluster
        if observation is None or cluster is None or not observation.reachable:
            return False
        return not cluster_id_changed(cluster, observation)

    @property
    def feeds_retries(self) -> bool:
        """Whether anybody may still write to the group's retry or redrive topics.

        A revision without retries that is refused leaves main workers that have them, however long ago the spec
        changed.
        """
        templates = [{"spec": pod["spec"]} for pod in self.workers]
        if self.stateful_set is not None:
            templates.append(self.stateful_set["spec"]["template"])
        return bool(self.redrives) or any(has_retries(template) for template in templates)


async def gather(context: Context, body: JsonObject) -> Gathered:
    """Read everything. Raises KubeError, or pydantic's ValidationError for a spec that the CRD should have refused."""
    group = ConsumerGroup.model_validate(body)
    key = key_of(body)
    name, store = key[1], context.store
    cluster = read_cluster(context, cluster_of(body))
    config_maps = tuple(found for found in store.cache(CONFIG_MAP).having(key) if is_owned_by(found, body))
    published = await _published(context, body)
    observation = read_observation(context, cluster, cluster_of(body))
    policy = await _policy(context, body, published)
    retry = plan_intent(group, policy, published, _left(group, observation))
    older = older_claim(context, body)
    interest = _interest(group, retry, waits=older is not None, discover=older is None and published is None)
    context.observers.watch(key, cluster_of(body), interest)
    pods = store.cache(POD).having(key)
    fleet, workers = await _fleet(context, body, naming.stateful_set(name), pods)
    retry_fleet: JsonObject | None = None
    retry_workers: tuple[JsonObject, ...] = ()
    retry_name = naming.retry_stateful_set(name)
    if retry is not None or store.get(STATEFUL_SET, (key[0], retry_name)) is not None:
        retry_fleet, retry_workers = await _fleet(context, body, retry_name, pods)
    gathered = Gathered(
        body=body,
        group=group,
        cluster=cluster,
        observation=observation,
        handler_files=await _handler_files(context, group),
        older=older,
        heir=heir_of(context, body),
        stateful_set=fleet,
        workers=workers,
        checks=tuple(pod for pod in pods if is_owned_by(pod, body)),
        config_maps=await read_records(store, body, config_maps, fleet),
        worker_reports=context.workers.answers(key, (*workers, *retry_workers)),
        retry=retry,
        published=published,
        retry_stateful_set=retry_fleet,
        retry_workers=retry_workers,
        redrives=at_work(store.cache(JOB).having(key), pods),
        redrive_statuses=tuple(found.get("status") or {} for found in store.cache(REDRIVE).having(key)),
    )
    if retry is None or not retry.ending or retry_fleet is not None or gathered.feeds_retries:
        return gathered
    return replace(gathered, retry=replace(retry, ended=True))


async def _fleet(
    context: Context, body: JsonObject, name: str, pods: Sequence[JsonObject]
) -> tuple[JsonObject | None, tuple[JsonObject, ...]]:
    """A StatefulSet of this ConsumerGroup, and its pods."""
    found = await find_child(context.store, body, STATEFUL_SET, name)
    if found is None:
        return None, ()
    return found, tuple(pod for pod in pods if is_owned_by(pod, found))


async def _published(context: Context, body: JsonObject) -> Published | None:
    """What workers were told last. For a group that never had retries there is nothing to be asked live."""
    namespace, name = key_of(body)
    retry_config = naming.retry_config(name)
    if context.store.get(CONFIG_MAP, (namespace, retry_config)) is None and not knows_retries(body):
        return None
    return read_published(await read_child(context.store, body, CONFIG_MAP, retry_config))


def knows_retries(body: JsonObject) -> bool:
    """Whether the object has retries, or its status tells of policies that its workers were given."""
    return policy_of(body) is not None or "policyRevision" in ((body.get("status") or {}).get("retry") or {})


def _left(group: ConsumerGroup, observation: ClusterObservation | None) -> tuple[str, ...] | None:
    """The delays of the group's topics on the cluster, as far as an observer was asked for them and has found out."""
    seen = observation.groups.get(group.group_id) if observation is not None else None
    return seen.retry.found_delays if seen is not None and seen.retry is not None else None


async def _policy(context: Context, body: JsonObject, published: Published | None) -> PolicyRevision | Problem | None:
    """What the group's RetryPolicy says; while that cannot be used, a new group follows what it said before."""
    address = policy_of(body)
    if address is None:
        return None
    policy = context.store.get(RETRY_POLICY, address)
    if policy is None or policy["metadata"].get("deletionTimestamp"):
        message = f"RetryPolicy {address[1]!r} is not in namespace {address[0]!r}: create it, or correct spec.retry"
        return Problem(conditions.RETRY_POLICY_NOT_FOUND, message)
    said = content_of(policy)
    if isinstance(said, PolicyRevision) or published is not None:
        return said
    good = (policy.get("status") or {}).get("revision", "")
    address_of_record = (address[0], policy_record_name(address[1], good))
    seen = context.store.get(CONFIG_MAP, address_of_record)
    record = await context.store.content(CONFIG_MAP, address_of_record) if seen is not None else None
    return read_policy_record(record) or said


def _interest(group: ConsumerGroup, retry: RetryIntent | None, *, waits: bool, discover: bool) -> GroupInterest:
    return GroupInterest(
        group_id=group.group_id,
        topics=group.source_topics,
        pattern=_pattern(group),
        other_topics=group.spec.handler.outputs,
        failed_topic=naming.failed_topic(group.group_id),
        read_committed=group.spec.consumer.isolation_level == "ReadCommitted",
        expects_members=group.wanted_replicas > 0,
        retry=_retry_interest(group, retry, discover=discover),
        waits=waits,
    )


def _retry_interest(group: ConsumerGroup, retry: RetryIntent | None, *, discover: bool) -> RetryInterest | None:
    """The retry flow, as soon as it is known which delays it has; with those on their way out."""
    if retry is None or not (retry.delays or retry.drained_delays):
        return None
    return retry_interest(group.group_id, (*retry.delays, *retry.drained_delays), discover=discover)


def _pattern(group: ConsumerGroup) -> Pattern | None:
    """The pattern to be matched; one that is refused matches nothing, and a condition says why."""
    try:
        return group_pattern(group)
    except PatternRefused:
        return None


async def _handler_files(context: Context, group: ConsumerGroup) -> Mapping[str, str] | None:
    """The handler's source: read again when its version is another one, and each time where no watch covers it.

    Binary data is no source.
    """
    python = group.spec.handler.python
    reference = python.config_map_ref if python else None
    if reference is None:
        return None
    namespace = group.metadata.namespace
    found = await context.store.content(CONFIG_MAP, (namespace, reference.name))
    return None if found is None else dict(found.get("data") or {})
