"""Gathers everything that a Backfill's reconcile needs: from caches, or live before an irreversible step.

The SparkApplication and the ledger are not watched, so they are always read live. SparkApplications must not be
watched: their CRD may be installed or removed at any time, and if one watched kind disappears, all watches end.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import ALIVE_KEY, LEDGER_KEY, Control
from fleet_consumer.contract.pod import BACKFILL_FILE, WORKER_FILE
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import parse_config as parse_worker
from fleet_operator.api.v1alpha1 import Backfill, ConsumerGroup, KafkaCluster, conditions
from fleet_operator.clients.kinds import CONFIG_MAP, CONSUMER_GROUP, POD, SPARK_APPLICATION, STATEFUL_SET, JsonObject
from fleet_operator.clients.kube import KubeForbiddenError, KubeNotFoundError
from fleet_operator.planning.backfill import needs, parsing, ranges
from fleet_operator.planning.backfill.attempts import NEVER_WATCHED, AttemptEnd, Watched, read_end, subject_of, watch
from fleet_operator.planning.backfill.manifests import Handlers, SourceFiles
from fleet_operator.planning.backfill.parsing import SparkPod
from fleet_operator.planning.backfill.phase import BackfillFacts
from fleet_operator.planning.backfill.ranges import RangeQuestion, TopicOffsets, Unresolved
from fleet_operator.planning.backfill.spark import NO_APPLICATION, SparkState, read_application
from fleet_operator.planning.fleet.blocking import SOURCE_FILES_MAX, find_source_problem
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.revision import plan_revision
from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import BACKFILL_LABEL, REVISION_ANNOTATION, annotation_of, label_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import ReferencedGroup
from fleet_operator.planning.state.group import RevisionState
from fleet_operator.reconcilers.context import Context, is_owned_by, read_child, read_live
from fleet_operator.reconcilers.references import read_group, read_group_state, read_source
from fleet_operator.reconcilers.run_session import RunSession
from fleet_operator.runtime.cache import key_of
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """The settings and handler sources of a Backfill's first attempt. Later attempts reuse them."""

    config: Mapping[str, Any]
    files: SourceFiles


async def read_handlers(
    context: Context, backfill: Backfill, group: ConsumerGroup, cluster: KafkaCluster, image: str
) -> Handlers | Problem:
    """Read the handler that a Backfill runs. This is the handler of the good revision that the workers run. If they run
    no good revision, it is the handler in the group's spec.

    For a comparison, also read the candidate's source. Returns a Problem if a source is missing. Raises KubeError.
    """
    handlers = await _serving(context, group, cluster, image) or await _of_spec(context.store, group, cluster, image)
    compare = backfill.spec.compare
    reference = compare.config_map_ref if compare is not None else None
    if isinstance(handlers, Problem) or reference is None or compare is None:
        return handlers
    files = await read_source(context.store, backfill.metadata.namespace, reference.name)
    if not files or len(files) > SOURCE_FILES_MAX:
        message = (
            f"ConfigMap {reference.name!r} with the candidate's source does not exist in namespace "
            f"{backfill.metadata.namespace!r}, has no text, or has more than {SOURCE_FILES_MAX} files: create it with "
            f"the module of {compare.callable!r}"
        )
        return Problem(conditions.CANDIDATE_SOURCE_NOT_FOUND, message)
    return Handlers(worker=handlers.worker, handler_files=handlers.handler_files, candidate_files=files)


async def _serving(context: Context, group: ConsumerGroup, cluster: KafkaCluster, image: str) -> Handlers | None:
    """The handler of the good revision that the workers run; None if they run no good revision.

    The connection and the retry policies are not read from the revision, but from the objects as they are now.
    """
    store, key = context.store, (group.metadata.namespace, group.metadata.name)
    owner = store.get(CONSUMER_GROUP, key)
    fleet = store.get(STATEFUL_SET, (key[0], MAIN.child(key[1])))
    if owner is None or fleet is None or not is_owned_by(fleet, owner):
        return None
    revision = annotation_of(fleet, REVISION_ANNOTATION) or ""
    verdict = read_group_state(context, owner).fleet.verdicts.get(revision)
    if verdict is None or verdict.state is not RevisionState.GOOD:
        return None
    record = await read_child(store, owner, CONFIG_MAP, naming.revision_config(key[1], revision))
    if record is None:
        return None
    worker = read_object((record.get("data") or {}).get(WORKER_FILE))
    now = plan_revision(group, cluster, handler_files=None, image=image).worker_config
    worker = {**worker, **{name: now[name] for name in ("connection", "retry")}} if worker is not None else None
    try:
        python = parse_worker(worker).handler.python
    except SettingsInvalid:
        return None
    if worker is None or python is None or python.path is None:
        return Handlers(worker=worker or {})
    copy = await read_child(store, owner, CONFIG_MAP, naming.revision_handler(key[1], revision))
    return Handlers(worker=worker, handler_files=dict(copy.get("data") or {})) if copy is not None else None


async def _of_spec(store: Store, group: ConsumerGroup, cluster: KafkaCluster, image: str) -> Handlers | Problem:
    python = group.spec.handler.python
    reference = python.config_map_ref if python is not None else None
    files = None
    if reference is not None:
        files = await read_source(store, group.metadata.namespace, reference.name)
        problem = find_source_problem(group, files)
        if problem is not None:
            return problem
    planned = plan_revision(group, cluster, handler_files=files, image=image)
    return Handlers(worker=planned.worker_config, handler_files=files)


async def read_frozen(store: Store, owner: JsonObject, backfill: Backfill) -> Frozen | Problem:
    """Read the settings and handler sources that the first attempt used, for a later attempt. Raises KubeError."""
    name = backfill.metadata.name
    found = await read_live(store, owner, CONFIG_MAP, naming.backfill_settings(name))
    config = read_object((found or {}).get("data", {}).get(BACKFILL_FILE))
    if config is None:
        return _lost(naming.backfill_settings(name))
    python = ((config.get("worker") or {}).get("handler") or {}).get("python") or {}
    candidate = (config.get("compare") or {}).get("candidate") or {}
    keys: list[tuple[str, ...] | None] = []
    for copy, needed in (
        (naming.backfill_handler(name), python.get("path")),
        (naming.backfill_candidate(name), candidate.get("path")),
    ):
        source = await read_live(store, owner, CONFIG_MAP, copy) if needed else None
        if needed and source is None:
            return _lost(copy)
        keys.append(tuple(sorted(source.get("data") or {})) if source is not None else None)
    return Frozen(config=config, files=SourceFiles(*keys))


def _lost(name: str) -> Problem:
    message = (
        f"ConfigMap {name!r} of the first attempt does not exist, and all attempts of a Backfill must use the same "
        "handler: raise spec.retry to continue with the group's present handler"
    )
    return Problem(conditions.SETTINGS_LOST, message)


ANSWER_SECONDS: Final = 60.0
UNKNOWN_MAX: Final = 3
"""Number of consecutive responses without the topic after which the topic counts as missing. One response is not
enough, because some brokers learn of a new topic later than others."""


@dataclass(slots=True)
class RangeRead:
    """The results of reading one Backfill's range from Kafka, and the newest resolution of the range to offsets.

    `now` (epoch seconds) and `highs` (high watermarks) are from the first read, so that the range does not change while
    the Backfill waits. If the topic was recreated, `highs` are from the first read of the new topic.
    """

    now: float
    highs: Mapping[int, int] | None = None
    topic_id: str | None = None
    resolution: ranges.Resolution | None = None
    unknown: int = 0

    def record_answer(
        self, backfill: Backfill, group: ConsumerGroup, question: RangeQuestion, read: TopicOffsets
    ) -> None:
        self.unknown = self.unknown + 1 if read.partitions is None else 0
        if read.partitions is not None:
            known = self.highs if self.highs is not None and self.topic_id == read.topic_id else {}
            self.highs, self.topic_id = {**read.highs, **known}, read.topic_id
            read = replace(read, highs=self.highs)
        if 0 < self.unknown < UNKNOWN_MAX:
            message = f"the brokers do not know topic {question.topic!r} yet; the operator asks again"
            self.resolution = Unresolved(Problem(conditions.SOURCE_TOPIC_NOT_FOUND, message))
            return
        missing = needs.missing_topic(group, read.unknown) if read.partitions is not None else None
        self.resolution = Unresolved(missing) if missing is not None else ranges.resolve(backfill, question, read)


@dataclass(slots=True)
class Memory:
    """Data that this process keeps in memory about a Backfill until the Backfill ends. Times are monotonic seconds.

    - `ended`: the attempt whose end is in the status, and the time when this process first saw that end.
    - `control`: the last instructions for the driver, written at `control_written_at`.
    - `at_least`: number of offsets that are done, as shown by the ledger or the status. None until one of the two shows
      a number.
    """

    watched: Watched = NEVER_WATCHED
    ended: tuple[int, float] | None = None
    control: Control | None = None
    control_written_at: float = 0.0
    range: RangeRead | None = None
    at_least: int | None = None

    def since_end(self, end: AttemptEnd | None, now: float) -> float:
        """Seconds since this process first saw in the status that the last attempt has ended; infinity if no attempt
        has ended yet."""
        if end is None:
            return math.inf
        if self.ended is None or self.ended[0] != end.attempt:
            self.ended = (end.attempt, now)
        return now - self.ended[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The facts about a Backfill, and the objects from which they were read. `handlers` is set only before the first
    attempt."""

    body: JsonObject
    facts: BackfillFacts
    referenced: ReferencedGroup
    memory: Memory
    application: JsonObject | None = None
    handlers: Handlers | None = None


class Gatherer:
    """Reads the facts about Backfills and updates their memory. Used on the event loop only."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def read(self, memory: Memory, body: JsonObject, backfill: Backfill, *, live: bool) -> Gathered:
        """Gather the facts; with `live`, pods are read from the API server. Raises KubeError."""
        now = self._context.clock.monotonic()
        referenced = read_group(self._context, backfill.group_key)
        application, ledger, pods = await self._children(body, backfill, live=live)
        resolved = ranges.read_range(backfill)
        progress = None
        if resolved is not None:
            passes = parsing.passes_of(backfill, self._context.settings.spark_image)
            if memory.at_least is None:
                memory.at_least = _known_least(backfill)
            progress = parsing.read_ledger(backfill, resolved, passes, ledger, memory.at_least)
            if isinstance(progress, parsing.Progress) and progress.ledger is not None:
                memory.at_least = progress.covered
        seen = read_application(application)
        usual = f"{naming.backfill_application(backfill.metadata.name, backfill.attempts)}-driver"
        driver = next((pod for pod in pods if pod.name == (seen.driver_pod or usual)), None)
        end = driver.end if driver is not None else None
        written = (ledger or {}).get("data") or {}
        text = "".join(written.get(key, "") for key in (LEDGER_KEY, ALIVE_KEY))
        memory.watched = watch(memory.watched, subject_of(backfill, seen, text), now)
        facts = BackfillFacts(
            backfill=backfill,
            obstacle=needs.find_obstacle(backfill, referenced),
            refusal=needs.find_refusal(backfill, referenced.group),
            group_gone=referenced.gone,
            resolved=resolved,
            resolution=memory.range.resolution if memory.range is not None else None,
            elsewhere=ranges.find_other_cluster(resolved, referenced.seen),
            progress=progress,
            application=seen,
            known=bool(backfill.status.get("applicationUid")),
            driver=end if end is not None else parsing.end_by_message(seen.message),
            waiting=_waiting(driver, pods),
            pods_left=tuple(pod.name for pod in pods if not pod.ended),
            watched=memory.watched,
            since_end=memory.since_end(read_end(backfill.status), now),
        )
        found = Gathered(body=body, facts=facts, referenced=referenced, memory=memory, application=application)
        return await self._with_needs(found)

    def ask_range(self, session: RunSession[Memory], found: Gathered) -> None:
        """Start to resolve the range in the background. Call this only for a Backfill without an obstacle."""
        backfill, group, seen = found.facts.backfill, found.referenced.group, found.referenced.seen
        assert group is not None, "no range is read without a ConsumerGroup"
        assert seen is not None, "no range is read before the Kafka cluster was observed"
        topic = needs.source_topic(backfill, group)
        if isinstance(topic, Problem):
            return
        memory = session.memory
        asked = memory.range = memory.range or RangeRead(self._context.clock.wall())
        cluster, of = (group.metadata.namespace, group.spec.cluster_ref.name), group
        question = ranges.ask_range(
            backfill,
            topic,
            read_committed=group.spec.consumer.isolation_level == "ReadCommitted",
            others=needs.other_topics(backfill, group),
            now=asked.now,
        )

        def fail(error: Exception) -> None:
            reason = getattr(error, "reason", conditions.BROKER_UNREACHABLE)
            message = f"the range cannot be read from Kafka: {error or type(error).__name__}"
            asked.resolution = Unresolved(Problem(str(reason), message))
            log.warning("range of a backfill cannot be read", extra={"key": "/".join(session.key), "error": str(error)})

        session.ask(
            lambda: self._context.observers.change(cluster, seen.cluster_id, lambda admin: admin.read_topic(question)),
            lambda read: asked.record_answer(backfill, of, question, read),
            fail,
            seconds=ANSWER_SECONDS,
        )

    async def _children(
        self, body: JsonObject, backfill: Backfill, *, live: bool
    ) -> tuple[JsonObject | None, JsonObject | None, tuple[SparkPod, ...]]:
        """Read the newest SparkApplication, the ledger, and the pods of all attempts."""
        (namespace, name), store = key_of(body), self._context.store
        application = ledger = None
        if backfill.attempts:
            number = naming.backfill_application(name, backfill.attempts)
            application = await read_live(store, body, SPARK_APPLICATION, number)
            ledger = await read_live(store, body, CONFIG_MAP, naming.backfill_ledger(name))
        ended = read_application(application).state in (SparkState.SUCCEEDED, SparkState.FAILED)
        last = read_end(backfill.status)
        # Read pods live until the end of the driver is recorded, because the cache may be late.
        if live or (ended and (last is None or last.attempt != backfill.attempts)):
            pods = (await store.list(POD, namespace, f"{BACKFILL_LABEL}={name}")).items
        else:
            pods = store.cache(POD).having((namespace, backfill.spec.group_ref.name))
        own = tuple(parsing.read_pod(pod) for pod in pods if label_of(pod, BACKFILL_LABEL) == name)
        return application, ledger, own

    async def _with_needs(self, found: Gathered) -> Gathered:
        """Add the facts that only a new attempt needs: about Spark, and the handlers if the Backfill uses them."""
        facts, referenced = found.facts, found.referenced
        backfill, group, cluster = facts.backfill, referenced.group, referenced.cluster
        if facts.application.state is not NO_APPLICATION.state:
            return found
        if facts.obstacle is not None or group is None or not isinstance(cluster, KafkaCluster):
            return found
        if not backfill.only_counts:
            missing = await self._missing_spark(found.body)
            facts = replace(facts, obstacle=missing, spark=missing, spark_asked=missing is None)
        if not backfill.takes_handler or facts.known:
            return replace(found, facts=facts)
        handlers = await read_handlers(self._context, backfill, group, cluster, referenced.image)
        if isinstance(handlers, Problem):
            return replace(found, facts=replace(facts, obstacle=handlers))
        refused = needs.find_handler_refusal(backfill, handlers.worker)
        facts = replace(facts, handler=refused, handler_read=refused is None, refusal=facts.refusal or refused)
        return replace(found, facts=facts, handlers=handlers)

    async def _missing_spark(self, body: JsonObject) -> Problem | None:
        """The reason why no SparkApplication can be created, or None. Each call asks the API server, because the CRD
        may be installed or removed at any time."""
        namespace, name = key_of(body)
        kind = SPARK_APPLICATION
        try:
            await self._context.store.list(kind, namespace, f"{BACKFILL_LABEL}={name}")
        except KubeNotFoundError:
            message = (
                f"the API server has no {kind.plural}.{kind.group}: install the kubeflow Spark operator; "
                "the Backfill then starts automatically"
            )
            return Problem(conditions.SPARK_NOT_INSTALLED, message)
        except KubeForbiddenError as error:
            return Problem(conditions.FORBIDDEN_BY_API_SERVER, str(error))
        return None


def _known_least(backfill: Backfill) -> int | None:
    """The number of offsets that are already done according to the status; None if the status does not show it. The
    status of an ended Backfill lacks this number, so a retry uses `offsetsCovered`."""
    found = backfill.status.get(parsing.AT_LEAST)
    if found is None and backfill.is_reopened:
        found = backfill.status.get("offsetsCovered") or None
    return found if isinstance(found, int) else None


def _waiting(driver: SparkPod | None, pods: tuple[SparkPod, ...]) -> Problem | None:
    """The problem for which the driver's pod waits. If the driver does not wait, the first problem of another pod. None
    if no pod waits."""
    if driver is not None and driver.waiting is not None:
        return driver.waiting
    return next((pod.waiting for pod in pods if pod.waiting is not None), None)
