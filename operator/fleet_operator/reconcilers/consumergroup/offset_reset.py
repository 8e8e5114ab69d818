"""The reset of a group's offsets in a reconcile: its facts, and the steps in Kafka, which run beside the reconciles.

What a step found is kept in memory only: a process that begins takes the step again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract import naming
from fleet_consumer.net import KafkaError
from fleet_operator.api.v1alpha1 import ConsumerGroup, conditions
from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.observe.aggregation import reason_of
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.planning.fleet.blocking import changed_id_message
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.pod_template import CLOSING_S
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord, mark_of, read_record
from fleet_operator.planning.offsets.reset import Finding, ResetDecision, ResetFacts, ResetStep
from fleet_operator.planning.offsets.targets import time_ms, topics_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.topic_pattern import usable_pattern
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.kafka_side import ATTEMPT_SECONDS
from fleet_operator.reconcilers.consumergroup.session import GroupSession
from fleet_operator.reconcilers.context import FAILURES
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store

log = logging.getLogger(__name__)

RESET: Final = "offset-reset-"
READ_SECONDS: Final = 60.0
"""Time for which offsets that were read may be decided upon: enough for a status whose write was put off."""


def reset_facts(gathered: Gathered, sources: tuple[str, ...] | None, finding: Finding | None) -> ResetFacts:
    """Everything that the group's reset depends on. `sources` are its source topics, None while unknown."""
    before = (gathered.body.get("status") or {}).get("offsets") or {}
    metadata, fleet = gathered.group.metadata, gathered.parts[MAIN].fleet
    return ResetFacts(
        wanted=gathered.group.spec.offsets.reset,
        last=read_record(before.get("lastReset")),
        dry=read_record(before.get("dryRun")),
        used=tuple(str(each) for each in before.get("usedIds") or ()),
        obstacle=_obstacle(gathered),
        sources=sources,
        pattern=usable_pattern(gathered.group),
        down=fleet is None or fleet.replicas == 0,
        begun=_has_run(gathered),
        own_prefix=naming.instance_id_prefix(metadata.namespace, metadata.name, metadata.uid),
        own_name=metadata.name,
        patience_s=_patience_s(gathered.group),
        finding=finding,
    )


def _patience_s(group: ConsumerGroup) -> float:
    """Seconds after which workers that were stopped have left: those that were killed are members for a session."""
    return float(group.spec.drain_seconds + CLOSING_S + group.spec.consumer.classic.session_timeout_seconds)


def _has_run(gathered: Gathered) -> bool:
    """True if the group's workers run, or ran once: without its StatefulSet, which somebody may have deleted, a fleet
    of months is no new one. A revision becomes good only when all of its workers were available."""
    main = gathered.parts[MAIN]
    return main.body is not None or bool(main.workers) or gathered.state.fleet.was_good


def _obstacle(gathered: Gathered) -> Problem | None:
    """The reason why nothing may be asked or changed in Kafka for this group now."""
    group, observation = gathered.group, gathered.observation
    if group.paused:
        message = "annotation consumerfleet.io/paused is set: the operator changes nothing"
        return Problem(conditions.PAUSED_BY_ANNOTATION, message)
    if isinstance(gathered.cluster, Problem):
        return gathered.cluster
    if gathered.older is not None:
        return Problem(conditions.GROUP_ID_TAKEN, "another ConsumerGroup owns the Kafka group")
    if gathered.cluster_changed:
        return Problem(conditions.CLUSTER_ID_CHANGED, changed_id_message(gathered.cluster, observation))
    if observation is None:
        return Problem(conditions.NOT_YET_OBSERVED, "the Kafka cluster has not been observed yet")
    if not observation.reachable:
        return Problem(observation.reason or conditions.BROKER_UNREACHABLE, observation.message)
    return None


def _none_of(record: ResetRecord) -> Finding:
    """A finding of this record's step that says nothing yet."""
    return Finding(id=record.id, digest=record.digest, phase=record.phase)


@dataclass(slots=True)
class OffsetResets:
    """The steps of all groups' resets. Used on the event loop only."""

    store: Store
    observers: ObserverPool
    metrics: Metrics
    clock: Clock
    findings: dict[Key, tuple[Finding, float]] = field(default_factory=dict)
    """With the time at which the step began, monotonic."""
    since: dict[Key, tuple[Finding, float]] = field(default_factory=dict)
    """Times of the first read in a phase, monotonic; a process that begins counts anew."""
    unsent: dict[Key, Finding] = field(default_factory=dict)
    """Resets that this process has brought to `Committing`, and of which no commit can have been made yet."""

    def finding(self, group: Key) -> Finding | None:
        """The outcome of the group's last step. What was read is forgotten after a while: Kafka goes on when something
        keeps the reset from going on."""
        found, began = self.findings.get(group, (None, 0.0))
        if found is None or found.read is None or self.clock.monotonic() - began <= READ_SECONDS:
            return found
        del self.findings[group]
        return None

    def forget(self, group: Key) -> None:
        self.findings.pop(group, None)
        self.since.pop(group, None)
        self.unsent.pop(group, None)

    def advanced(self, group: Key, last: ResetRecord | None) -> None:
        """Note that this process has written a new phase: what was found in the one before is over."""
        self.forget(group)
        if last is not None and last.phase is ResetPhase.COMMITTING:
            self.unsent[group] = _none_of(last)

    def take_step(
        self, session: GroupSession, gathered: Gathered, sources: tuple[str, ...] | None, decision: ResetDecision
    ) -> None:
        """Begin the decided step, if any. Each phase has its own pauses, so that none waits for another's."""
        record, wanted = decision.step_for, gathered.group.spec.offsets.reset
        if decision.step is None or record is None:
            return
        if decision.step is ResetStep.READ:
            if wanted is None or sources is None:
                return
            topics = tuple(topic for topic in topics_of(wanted, sources) if topic in sources)
            group, at = gathered.group, time_ms(wanted)
            committed_only = group.spec.consumer.isolation_level == "ReadCommitted"

            waited_s = self._waited_s(gathered.key, record)

            def ask(admin: KafkaAdmin) -> Finding:
                read = admin.read_offsets(group.group_id, topics, at, read_committed=committed_only)
                return replace(_none_of(record), read=read, waited_s=waited_s)

            session.background.start(
                RESET + record.phase, lambda: self._take(gathered, record, ask), seconds=ATTEMPT_SECONDS
            )
        else:
            session.background.start(
                RESET + record.phase, lambda: self._commit(gathered, record), seconds=ATTEMPT_SECONDS
            )

    def _waited_s(self, group: Key, record: ResetRecord) -> float:
        """Seconds since offsets were first read for this reset in this phase."""
        now, step = self.clock.monotonic(), _none_of(record)
        if self.since.get(group, (None, now))[0] != step:
            self.since[group] = (step, now)
        return now - self.since[group][1]

    async def _commit(self, gathered: Gathered, record: ResetRecord) -> None:
        group_id, mark = gathered.group.group_id, mark_of(record, gathered.group.metadata.uid)
        wanted = {(topic, number): offset for topic, of in record.offsets.items() for number, offset in of.items()}
        previous = {(topic, number): offset for topic, of in record.previous.items() for number, offset in of.items()}

        unsent = False

        async def allowed() -> bool:
            nonlocal unsent
            committing = await self._is_committing(gathered, record)
            # From here on a commit may be made, even if its answer is lost.
            unsent = committing and self.unsent.pop(gathered.key, None) == _none_of(record)
            return committing

        def run(admin: KafkaAdmin) -> Finding:
            done = admin.set_offsets(group_id, record.offsets, record.previous, mark=mark)
            after = {key: done.after[key] for key in wanted if key in done.after}
            return replace(
                _none_of(record),
                committed=not done.refusals and after == wanted,
                untouched=after == previous,
                outdated=done.outdated,
                unsent=unsent and (done.outdated or done.refusals.keys() == wanted.keys()),
                refusals=done.refusals,
            )

        await self._take(gathered, record, run, allowed=allowed)
        found = self.finding(gathered.key)
        if found is not None and found.unsent:
            self.unsent[gathered.key] = _none_of(record)
        if found is not None and found.committed:
            self.metrics.offset_resets.inc()
            fields = {"key": "/".join(gathered.key), "id": record.id, "before": record.previous, "now": record.offsets}
            log.info("offsets were reset", extra=fields)
            self.observers.look(gathered.cluster_key)

    async def _is_committing(self, gathered: Gathered, record: ResetRecord) -> bool:
        """True if the object says so, read live. Raises KubeError.

        The cache of an operator that was suspended may say it of a reset that another one has finished since, or of a
        group that was deleted and made anew. What it has is corrected.
        """
        live = await self.store.refresh(CONSUMER_GROUP, gathered.key)
        if live is None or live["metadata"]["uid"] != gathered.group.metadata.uid:
            return False
        stands = read_record(((live.get("status") or {}).get("offsets") or {}).get("lastReset"))
        return stands is not None and _none_of(stands) == _none_of(record) and stands.phase is ResetPhase.COMMITTING

    async def _take(
        self,
        gathered: Gathered,
        record: ResetRecord,
        run: Callable[[KafkaAdmin], Finding],
        *,
        allowed: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Take a step and keep its finding; with `allowed`, only if that answers yes."""
        began = self.clock.monotonic()
        try:
            if allowed is not None and not await allowed():
                self.forget(gathered.key)
                return
            found = await self.observers.change(gathered.cluster_key, gathered.cluster_id, run)
        except FAILURES as error:
            found_reason = getattr(error, "reason", conditions.BROKER_UNREACHABLE)
            reason = reason_of(error.code) if isinstance(error, KafkaError) else str(found_reason)
            problem = Problem(reason, str(error) or "the brokers did not answer in time")
            self.findings[gathered.key] = replace(_none_of(record), problem=problem), began
            raise
        except asyncio.CancelledError:  # the attempt's time is over
            problem = Problem(conditions.BROKER_UNREACHABLE, "the brokers did not answer in time")
            self.findings[gathered.key] = replace(_none_of(record), problem=problem), began
            raise
        self.findings[gathered.key] = found, began
