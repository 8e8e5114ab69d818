"""Everything that a Backfill's reconcile depends on, read once: from caches, or live before what cannot be taken back.

Application and ledger are always read live, as no watch covers them: the CRD of applications may come and go, and a
watch of a kind that goes ends all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import ALIVE_KEY, LEDGER_KEY
from fleet_operator.api.v1alpha1 import Backfill, KafkaCluster, conditions
from fleet_operator.clients.kinds import BACKFILL, CONFIG_MAP, POD, JsonObject
from fleet_operator.clients.kube import KubeForbiddenError, KubeNotFoundError
from fleet_operator.clients.spark import SparkBackend
from fleet_operator.planning.backfill import needs
from fleet_operator.planning.backfill.attempts import read_end
from fleet_operator.planning.backfill.config import Handlers
from fleet_operator.planning.backfill.deadlines import NEVER_WATCHED, Watched, subject_of, watch
from fleet_operator.planning.backfill.phase import BackfillFacts
from fleet_operator.planning.backfill.ranges import read_range
from fleet_operator.planning.backfill.readings import (
    Progress,
    SparkPod,
    backfill_of,
    end_by_message,
    passes_of,
    read_ledger,
    read_pods,
)
from fleet_operator.planning.backfill.spark import NO_APPLICATION, SeenApplication, SparkState
from fleet_operator.planning.labels import BACKFILL_LABEL
from fleet_operator.planning.problem import Problem
from fleet_operator.reconcilers.backfill.handlers import read_handlers
from fleet_operator.reconcilers.backfill.watch import RangeWatch
from fleet_operator.reconcilers.context import Context, is_owned_by
from fleet_operator.reconcilers.references import ReferencedGroup, read_group
from fleet_operator.runtime.cache import Key, key_of

GUARD: Final = "Guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A Backfill with its facts and the objects behind them; `handlers` are those of a first attempt."""

    body: JsonObject
    facts: BackfillFacts
    referenced: ReferencedGroup
    application: JsonObject | None = None
    handlers: Handlers | None = None


class Gatherer:
    """Reads, and the times that this process has watched. Used on the event loop only."""

    def __init__(self, context: Context, ranges: RangeWatch, backend: SparkBackend) -> None:
        self._context = context
        self._ranges = ranges
        self._backend = backend
        self._watched: dict[Key, Watched] = {}
        self._ends: dict[Key, tuple[object, float]] = {}

    def forget(self, key: Key) -> None:
        self._watched.pop(key, None)
        self._ends.pop(key, None)

    async def read(self, body: JsonObject, backfill: Backfill, *, live: bool) -> Gathered:
        """The facts; with `live` pods are read from the API server. Raises KubeError."""
        key = key_of(body)
        referenced = read_group(self._context, (key[0], backfill.spec.group_ref.name))
        around = needs.Surroundings(
            group=referenced.group,
            cluster=referenced.cluster,
            seen=referenced.observation,
            older=referenced.older,
        )
        application, ledger, pods = await self._children(body, backfill, live=live)
        resolved = read_range(backfill)
        progress = None
        if resolved is not None:
            passes = passes_of(backfill, self._context.settings.spark_image)
            progress = read_ledger(backfill, resolved, passes, ledger)
        seen = self._backend.observe(application)
        driver = self._driver(backfill, seen, pods)
        written = (ledger or {}).get("data") or {}
        text = "".join(written.get(key, "") for key in (LEDGER_KEY, ALIVE_KEY))
        facts = BackfillFacts(
            backfill=backfill,
            obstacle=needs.find_obstacle(backfill, around),
            refusal=needs.find_refusal(backfill, referenced.group),
            group_gone=referenced.gone,
            resolved=resolved,
            resolution=self._ranges.latest(key, backfill),
            progress=progress,
            application=seen,
            known=bool(backfill.status.get("applicationUid")),
            driver=driver.end if driver is not None and driver.end is not None else end_by_message(seen.message),
            waiting=_waiting(driver, pods),
            pods_left=tuple(pod.name for pod in pods if not pod.ended),
            watched=self._watch(key, backfill, seen, text, progress),
            since_end=self._since_end(key, backfill),
        )
        return await self._with_needs(Gathered(body=body, facts=facts, referenced=referenced, application=application))

    async def _children(
        self, body: JsonObject, backfill: Backfill, *, live: bool
    ) -> tuple[JsonObject | None, JsonObject | None, tuple[SparkPod, ...]]:
        """The newest application, the ledger, and pods of all attempts."""
        (namespace, name), store = key_of(body), self._context.store
        application = ledger = None
        if backfill.attempts:
            number = naming.backfill_application(name, backfill.attempts)
            application = _own(await store.kube.get(self._backend.kind, namespace, number), body)
            ledger = _own(await store.kube.get(CONFIG_MAP, namespace, naming.backfill_ledger(name)), body)
        ended = self._backend.observe(application).state in (SparkState.SUCCEEDED, SparkState.FAILED)
        last = read_end(backfill.status)
        # Of a driver whose end is not on record yet, the cache may not have the last word.
        if live or (ended and (last is None or last.attempt != backfill.attempts)):
            pods = (await store.list(POD, namespace, f"{BACKFILL_LABEL}={name}")).items
        else:
            pods = store.cache(POD).having((namespace, backfill.spec.group_ref.name))
        return application, ledger, read_pods(pod for pod in pods if backfill_of(pod) == name)

    async def _with_needs(self, found: Gathered) -> Gathered:
        """Add what only an attempt that is not under way needs: Spark, and for the first one the handlers."""
        facts, referenced = found.facts, found.referenced
        backfill, group, cluster = facts.backfill, referenced.group, referenced.cluster
        if facts.application.state is not NO_APPLICATION.state:
            return found
        if facts.obstacle is not None or group is None or not isinstance(cluster, KafkaCluster):
            return found
        if not backfill.spec.dry_run:
            missing = await self._missing_spark(found.body)
            facts = replace(facts, obstacle=missing, spark=missing, spark_asked=missing is None)
        if backfill.attempts > 1 or facts.known:
            return replace(found, facts=facts)
        handlers = await read_handlers(self._context, backfill, group, cluster, referenced.image)
        if isinstance(handlers, Problem):
            return replace(found, facts=replace(facts, obstacle=handlers))
        refused = needs.find_handler_refusal(backfill, handlers.worker)
        facts = replace(facts, handler=refused, handler_read=refused is None, refusal=facts.refusal or refused)
        return replace(found, facts=facts, handlers=handlers)

    async def _missing_spark(self, body: JsonObject) -> Problem | None:
        """The reason why no application can be made; asked each time, as a CRD may come and go."""
        namespace, name = key_of(body)
        kind = self._backend.kind
        try:
            await self._context.store.list(kind, namespace, f"{BACKFILL_LABEL}={name}")
        except KubeNotFoundError:
            message = (
                f"the API server has no {kind.plural}.{kind.group}: install the kubeflow Spark operator, "
                "and the Backfill begins"
            )
            return Problem(conditions.SPARK_NOT_INSTALLED, message)
        except KubeForbiddenError as error:
            return Problem(conditions.FORBIDDEN_BY_API_SERVER, str(error))
        return None

    def _driver(self, backfill: Backfill, seen: SeenApplication, pods: tuple[SparkPod, ...]) -> SparkPod | None:
        usual = f"{naming.backfill_application(backfill.metadata.name, backfill.attempts)}-driver"
        return next((pod for pod in pods if pod.name == (seen.driver_pod or usual)), None)

    def _watch(
        self, key: Key, backfill: Backfill, seen: SeenApplication, text: str, progress: Progress | Problem | None
    ) -> Watched:
        ledger = progress.ledger if isinstance(progress, Progress) else None
        paused = ledger is not None and ledger.attempt == backfill.attempts and ledger.throttled_by == GUARD
        before, tick = self._watched.get(key, NEVER_WATCHED), self._context.clock.monotonic()
        subject = subject_of(backfill, seen, text)
        self._watched[key] = watch(before, subject, tick, counts=not paused)
        return self._watched[key]

    def _since_end(self, key: Key, backfill: Backfill) -> float:
        """Seconds since this process saw the end of the last attempt in status; infinity before the first end."""
        end, now = read_end(backfill.status), self._context.clock.monotonic()
        if end is None:
            return math.inf
        subject = (backfill.metadata.uid, end.attempt)
        known = self._ends.get(key)
        if known is None or known[0] != subject:
            known = self._ends[key] = (subject, now)
        return now - known[1]

    async def fresh(self, body: JsonObject) -> JsonObject | None:
        """The Backfill read live; None if it is gone. Raises KubeError."""
        found = await self._context.store.refresh(BACKFILL, key_of(body))
        return found if found is not None and found["metadata"]["uid"] == body["metadata"]["uid"] else None


def _own(found: JsonObject | None, owner: JsonObject) -> JsonObject | None:
    return found if found is not None and is_owned_by(found, owner) else None


def _waiting(driver: SparkPod | None, pods: tuple[SparkPod, ...]) -> Problem | None:
    """The wait of the driver, or else of another pod."""
    if driver is not None and driver.waiting is not None:
        return driver.waiting
    return next((pod.waiting for pod in pods if pod.waiting is not None), None)
