"""Gathers everything that a ConsumerGroup's reconcile depends on, once per reconcile.

Objects that change often come from caches. Content that caches omit (handler source, revision records) is read live.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster, conditions
from fleet_operator.api.v1alpha1.refs import cluster_of, policy_of, source_of
from fleet_operator.clients import kinds
from fleet_operator.clients.kinds import CONFIG_MAP, JsonObject
from fleet_operator.planning import times
from fleet_operator.planning.claims import Claim
from fleet_operator.planning.fleet.blocking import find_changed_id
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart, Part, read_part
from fleet_operator.planning.fleet.revision import known_to
from fleet_operator.planning.fleet.waves import NO_SLOT, Slot
from fleet_operator.planning.labels import REVISION_ANNOTATION, annotation_of
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, WorkerObservation
from fleet_operator.planning.offsets.hold import Hold
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive.phase import at_work
from fleet_operator.planning.retry import records
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.retry.intent import PolicyRevision
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.planning.state.group import GroupState, PolicyState
from fleet_operator.reconcilers import claims, offsetreset, references, run_memory
from fleet_operator.reconcilers.context import Context, find_child, is_owned_by, read_child
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """One ConsumerGroup and everything that its fleet depends on, as read at the start of a reconcile.

    - `state`: the stored state. `own_state`: True if it was written for this object, False if for an earlier object of
      this name.
    - `cluster`: the KafkaCluster, or the problem if it does not exist or cannot be parsed.
    - `handler_files`: the handler's source files; None if the spec refers to no ConfigMap, or to a missing ConfigMap.
    - `older`, `heir`, `heir_unsure`: the claims of rivals, see the class `Rivals`.
    - `parts`: the parts of the fleet (main workers and retry workers), including a part without a StatefulSet.
    - `policy`: content of the RetryPolicy, or the problem with it; None without `spec.retry`.
    - `published`: the published policies; None for a group that has no retries and never had.
    - `hold`: the OffsetReset that keeps the main workers stopped, or None.
    - `slot`: the upgrade slot. It permits changes from outside the group's spec, such as a new worker image or
      connection.
    - `redrives`: names of the Redrives that may write to the redrive topic; `redrive_facts`: outlines of all Redrives.
    """

    body: kinds.JsonObject
    group: ConsumerGroup
    state: GroupState = field(default_factory=GroupState)
    own_state: bool = True
    cluster: KafkaCluster | Problem
    observation: ClusterObservation | None
    handler_files: Mapping[str, str] | None
    older: Claim | None
    heir: Claim | None = None
    heir_unsure: bool = False
    parts: Mapping[Part, FleetPart]
    checks: tuple[kinds.JsonObject, ...]
    config_maps: tuple[kinds.JsonObject, ...]
    worker_reports: tuple[WorkerObservation, ...]
    policy: PolicyRevision | Problem | None = None
    published: records.Published | None = None
    redrives: tuple[str, ...] = ()
    redrive_facts: tuple[Mapping[str, Any], ...] = ()
    hold: Hold | None = None
    slot: Slot = NO_SLOT

    @property
    def key(self) -> Key:
        return key_of(self.body)

    @property
    def had_retries(self) -> bool:
        """True if the group has or had retries, so that a retry group may exist in Kafka."""
        return self.group.spec.retry is not None or self.state.retries.published_at is not None

    @property
    def cluster_key(self) -> Key:
        """The key of the KafkaCluster that the group refers to, even if no such KafkaCluster exists."""
        return cluster_of(self.body)

    @property
    def cluster_id(self) -> str | None:
        """The id of the observed Kafka cluster; None while unknown. Actions run only on the cluster with this id."""
        return self.observation.cluster_id if self.observation is not None else None

    @property
    def observed_group(self) -> GroupObservation | None:
        return self.observation.groups.get(self.group.group_id) if self.observation is not None else None

    @property
    def cluster_changed(self) -> bool:
        """True if the brokers that answer belong to another Kafka cluster than the one for which the KafkaCluster was
        created."""
        return isinstance(self.cluster, KafkaCluster) and bool(find_changed_id(self.cluster, self.observation))

    @property
    def stopped(self) -> bool:
        """True if no workers may run: another Kafka cluster answers, or an older object owns the Kafka group."""
        return self.cluster_changed or self.older is not None

    @property
    def on_its_cluster(self) -> bool:
        """True if the brokers answer and belong to the Kafka cluster for which the KafkaCluster was created. Actions in
        Kafka run only then."""
        answers = self.observation is not None and self.observation.reachable
        return answers and isinstance(self.cluster, KafkaCluster) and not self.cluster_changed

    @property
    def feeds_retries(self) -> bool:
        """True if workers or Redrives may still write to the group's retry or redrive topics.

        After `spec.retry` was removed, main workers of the earlier revision may still run for a long time, if the
        revision without retries was refused.
        """
        main = self.parts[MAIN]
        templates = [{"spec": pod["spec"]} for pod in main.pods]
        if main.body is not None:
            templates.append(main.body["spec"]["template"])
        return bool(self.redrives) or any(has_retries(template) for template in templates)


async def gather(context: Context, body: kinds.JsonObject) -> Gathered:
    """Gather everything for one ConsumerGroup.

    Raises KubeError, UnreadableStateError, or pydantic's ValidationError for a spec that the CRD should have refused.
    """
    group = context.defaulted(ConsumerGroup.model_validate(body))
    key, store, source = key_of(body), context.store, source_of(body)
    cluster = references.read_cluster(context, cluster_of(body), ending="deletionTimestamp" in body["metadata"])
    config_maps = tuple(found for found in store.cache(kinds.CONFIG_MAP).having(key) if is_owned_by(found, body))
    state = context.states.read(body, GroupState)
    _record_absent(context, body)
    published = await _published(context, body, state)
    observation = references.read_observation(context, cluster, cluster_of(body))
    policy = await _policy(context, body, published)
    rivals = claims.find_rivals(context, body)
    pods = store.cache(kinds.POD).having(key)
    parts = {MAIN: await _part(context, body, MAIN, pods)}
    # A group that never had retries needs no live read.
    retry_key = (key[0], RETRY.child(key[1]))
    may_retry = policy is not None or published is not None or store.get(kinds.STATEFUL_SET, retry_key) is not None
    parts[RETRY] = await _part(context, body, RETRY, pods) if may_retry else FleetPart(part=RETRY)
    main = parts[MAIN]
    begun = main.body is not None or bool(main.workers) or state.fleet.was_good
    running = [pod for part in parts.values() for pod in part.pods]
    return Gathered(
        body=body,
        group=group,
        state=state,
        own_state=context.states.is_own(body),
        cluster=cluster,
        observation=observation,
        handler_files=await references.read_source(store, *source) if source is not None else None,
        older=rivals.older,
        heir=rivals.heir,
        heir_unsure=rivals.unsure,
        parts=parts,
        checks=tuple(pod for pod in pods if is_owned_by(pod, body)),
        config_maps=await read_records(store, body, config_maps, parts[MAIN].body),
        worker_reports=context.workers.answers(key, running),
        policy=policy,
        published=published,
        redrives=at_work(store.cache(kinds.JOB).having(key), pods),
        redrive_facts=tuple(known for _, known in run_memory.runs_of(context, kinds.REDRIVE, key)),
        hold=offsetreset.find_hold(context, key, begun=begun),
    )


NEW_SECONDS: Final = 600.0
"""Age in seconds up to which an object without a state counts as new. A new object has no children that could be
missing from the caches."""


def _record_absent(context: Context, body: kinds.JsonObject) -> None:
    """Record in the caches that a new object's children do not exist, except children that are already cached. A new
    object without a state has no children, because the state is written first.

    This record saves live reads, which would delay the first statuses when a thousand objects are created together.
    """
    created = times.from_text(body["metadata"].get("creationTimestamp"))
    young = created is not None and context.clock.wall() - created < NEW_SECONDS
    if not young or context.states.is_own(body):
        return
    namespace, name = key_of(body)
    children = [(kinds.STATEFUL_SET, part.child(name)) for part in (MAIN, RETRY)]
    for kind, child in (*children, (CONFIG_MAP, naming.retry_config(name))):
        if context.store.get(kind, (namespace, child)) is None:
            context.store.cache(kind).record_absent((namespace, child))


async def _part(context: Context, body: kinds.JsonObject, part: Part, pods: Sequence[kinds.JsonObject]) -> FleetPart:
    found = await find_child(context.store, body, kinds.STATEFUL_SET, part.child(body["metadata"]["name"]))
    if found is None:
        return FleetPart(part=part)
    mine = [pod for pod in pods if is_owned_by(pod, found)]
    return read_part(part, found, mine, context.clock.wall())


async def _published(context: Context, body: kinds.JsonObject, state: GroupState) -> records.Published | None:
    namespace, name = key_of(body)
    retry_config = naming.retry_config(name)
    has_had = policy_of(body) is not None or state.retries.published_at is not None
    if not has_had and context.store.get(kinds.CONFIG_MAP, (namespace, retry_config)) is None:
        return None
    config_map = await read_child(context.store, body, kinds.CONFIG_MAP, retry_config)
    return records.read_published(config_map, state.retries)


async def _policy(
    context: Context, body: kinds.JsonObject, published: records.Published | None
) -> PolicyRevision | Problem | None:
    """The content of the group's RetryPolicy, or the problem with it; None without `spec.retry`.

    If the present content is unusable, a group that has not published any policy yet gets the last usable content.
    """
    address = policy_of(body)
    if address is None:
        return None
    policy = context.store.get(kinds.RETRY_POLICY, address)
    if policy is None or policy["metadata"].get("deletionTimestamp"):
        message = (
            f"RetryPolicy {address[1]!r} does not exist in namespace {address[0]!r}: create it, or correct spec.retry"
        )
        return Problem(conditions.RETRY_POLICY_NOT_FOUND, message)
    content: PolicyRevision | Problem = context.store.cache(kinds.RETRY_POLICY).summary_of(address)
    if isinstance(content, PolicyRevision) or published is not None:
        return content
    try:
        good = context.states.read(policy, PolicyState).revision
    except UnreadableStateError:  # the policy's own reconcile reports the error
        good = None
    address_of_record = (address[0], records.policy_record_name(address[1], good or ""))
    seen = context.store.get(kinds.CONFIG_MAP, address_of_record)
    record = await context.store.content(kinds.CONFIG_MAP, address_of_record) if seen is not None else None
    return records.read_policy_record(record) or content


CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Maximum number of characters that are read from one group's revision records. A record by the operator has a few
thousand characters, and at most twice the maximum size of a spec. The limit is needed because other clients can create
any number of ConfigMaps of up to 1 MiB with a group's labels, and list their revisions on the StatefulSet."""


async def read_records(
    store: Store, owner: JsonObject, config_maps: Sequence[JsonObject], stateful_set: JsonObject | None
) -> tuple[JsonObject, ...]:
    """Read a group's ConfigMaps. Only those that may be revision records are read with their content. Raises KubeError.

    The record of the running revision is read first, then the records that the StatefulSet lists, then the others. Once
    more than CHARACTERS_MAX characters have been read in all, the remaining records are returned without their content,
    until earlier records have been removed.
    """
    known, read, found = known_to(stateful_set), 0, list[JsonObject]()
    running = _revision_of(stateful_set) if stateful_set is not None else ""

    def place(body: JsonObject) -> tuple[bool, bool, str]:
        revision = _revision_of(body)
        return revision != running, revision not in known, body["metadata"]["name"]

    for seen in sorted(config_maps, key=place):
        revision = _revision_of(seen)
        is_record = revision and seen["metadata"]["name"] == naming.revision_config(owner["metadata"]["name"], revision)
        if not is_record or read > CHARACTERS_MAX:
            found.append(seen)
            continue
        whole = await store.content(CONFIG_MAP, key_of(seen))
        if whole is not None and is_owned_by(whole, owner):
            read += sum(map(len, (whole.get("data") or {}).values()))
            found.append(whole)
    return tuple(sorted(found, key=lambda body: str(body["metadata"]["name"])))


def _revision_of(body: JsonObject) -> str:
    return annotation_of(body, REVISION_ANNOTATION) or ""
