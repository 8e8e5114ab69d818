"""Reconciles OffsetResets: gathers facts, carries out steps in Kafka, and determines for which fleets a reset keeps the
workers stopped.

The reconcile loop that all kinds of runs share is in `reconcilers.run`. Steps run in the background. Their results are
kept only in memory, so a new operator process repeats a step.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster, OffsetReset, conditions
from fleet_operator.api.v1alpha1.model import FINAL_PHASES
from fleet_operator.clients.kinds import CONSUMER_GROUP, OFFSET_RESET, STATEFUL_SET, JsonObject
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.pod_template import CLOSING_S
from fleet_operator.planning.labels import RESET_FINALIZER
from fleet_operator.planning.offsets.hold import Hold, hold_of
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord, list_offsets, marker_of, read_record
from fleet_operator.planning.offsets.reset import Finding, ResetFacts, ResetStep
from fleet_operator.planning.offsets.run import (
    OffsetResetDecision,
    OffsetResetFacts,
    decide,
    project_offset_reset_status,
)
from fleet_operator.planning.offsets.targets import time_ms, topics_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.topics import view_group
from fleet_operator.planning.run import Ahead, ReferencedGroup, find_group_obstacle, find_memory_gap, no_group
from fleet_operator.planning.state.runs import RunState
from fleet_operator.planning.topic_pattern import usable_pattern
from fleet_operator.reconcilers.context import Context, has_finalizer, is_owned_by, problem_of, set_finalizer
from fleet_operator.reconcilers.references import read_group
from fleet_operator.reconcilers.run import RunChildren, RunKind
from fleet_operator.reconcilers.run_memory import RunSummary, find_entry, runs_of
from fleet_operator.reconcilers.run_session import RunSession
from fleet_operator.runtime.cache import Key, key_of
from fleet_operator.runtime.events import NOTE_CHARACTERS_MAX, Event

log = logging.getLogger(__name__)

READ_SECONDS: Final = 60.0
"""Offsets that were read from Kafka more than this many seconds ago are not used in a decision."""
ANSWER_SECONDS: Final = 60.0
MOVES_MAX: Final = 20
"""Largest number of partitions that an Event lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResetStep:
    body: JsonObject
    facts: OffsetResetFacts
    decision: OffsetResetDecision
    referenced: ReferencedGroup
    child: JsonObject | None = None

    def children(self) -> RunChildren:
        raise AssertionError("an OffsetReset has no children")

    def refused(self, problem: Problem) -> Self:
        waits = replace(self.decision, reason=problem.reason, message=problem.message, step=None)
        return replace(self, decision=waits)


@dataclass(slots=True)
class ResetMemory:
    """In-memory data about one OffsetReset.

    - `finding`: the result of the last step, which started at `began` (monotonic seconds).
    - `since`: the time of this process's first read in the present phase (monotonic seconds).
    - `unsent`: True after this process has moved the reset to the phase `Committing`, until it may have sent a commit.
    """

    finding: Finding | None = None
    began: float = 0.0
    since: float | None = None
    unsent: bool = False


@dataclass(slots=True)
class OffsetResets(RunKind[OffsetReset, OffsetResetStep, ResetMemory]):
    context: Context

    kind = OFFSET_RESET
    model = OffsetReset
    finalizer = RESET_FINALIZER
    memory = ResetMemory
    remembered = ("phase", "partitions", "previous", "resolved", "note", "startedAt", "finishedAt")

    async def decided(
        self, session: RunSession[ResetMemory], body: JsonObject, run: OffsetReset, *, live: bool
    ) -> OffsetResetStep:
        context, referenced = self.context, read_group(self.context, run.group_key)
        record, entry = read_record(context.states.read(body, RunState), run), find_entry(context, run)
        remedy = "set spec.notAfter to a time in the future to run the OffsetReset, or delete it"
        facts = OffsetResetFacts(
            reset=run,
            of=self._reset_facts(run, referenced, session.memory),
            record=record,
            memory_gap=find_memory_gap(run, referenced, remedy, begun=False),
            begun_before=entry is not None and record is None,
            ahead=self._ahead(body),
            group_gone=referenced.gone,
            deleted="deletionTimestamp" in body["metadata"],
        )
        decision = decide(facts, context.clock.wall())
        return OffsetResetStep(body=body, facts=facts, decision=decision, referenced=referenced)

    def _reset_facts(self, run: OffsetReset, referenced: ReferencedGroup, memory: ResetMemory) -> ResetFacts:
        group = referenced.group
        if group is None:
            return ResetFacts(obstacle=no_group(run, referenced))
        context, metadata = self.context, group.metadata
        fleet = context.store.get(STATEFUL_SET, (metadata.namespace, MAIN.child(metadata.name)))
        body = context.store.get(CONSUMER_GROUP, run.group_key)
        mine = fleet if fleet is not None and body is not None and is_owned_by(fleet, body) else None
        view = view_group(group, referenced.seen, None, own_cluster=True)
        patience = group.spec.drain_seconds + CLOSING_S + group.spec.consumer.classic.session_timeout_seconds
        return ResetFacts(
            obstacle=find_obstacle(group, referenced),
            sources=view.source_topics,
            pattern=usable_pattern(group),
            cluster_id=referenced.seen.cluster_id or "" if referenced.seen is not None else "",
            down=mine is None or not mine["spec"].get("replicas"),
            own_prefix=naming.instance_id_prefix(metadata.namespace, metadata.name, metadata.uid),
            own_name=MAIN.child(metadata.name),
            patience_s=float(patience),
            finding=self._finding(memory),
        )

    def _finding(self, memory: ResetMemory) -> Finding | None:
        """The result of the last step. None without a result, or if its offsets were read more than READ_SECONDS ago,
        because log end offsets keep changing."""
        found = memory.finding
        if found is None or found.read is None or self.context.clock.monotonic() - memory.began <= READ_SECONDS:
            return found
        memory.finding = None
        return None

    def _ahead(self, body: JsonObject) -> Ahead | None:
        """The group's OffsetResets that run before this OffsetReset: first those that have already stopped the workers,
        then older OffsetResets."""
        runs = runs_of(self.context, OFFSET_RESET, (key_of(body)[0], body["spec"]["groupRef"]["name"]))
        undone = [(run.name, known) for run, known in runs if _wants_to_run(run, known)]
        begun = [name for name, known in undone if hold_of(name, known, begun=True)]
        order, own = list(dict.fromkeys((*begun, *(name for name, _ in undone)))), key_of(body)[1]
        return Ahead.from_names(order[: order.index(own)] if own in order else order)

    async def follow_up(self, session: RunSession[ResetMemory], step: OffsetResetStep) -> None:
        record = step.decision.record
        if step.decision.advanced:
            # Discard the previous phase's result, and queue the group, whose reconcile depends on the new phase.
            session.start_over()
            session.memory.unsent = record.phase is ResetPhase.COMMITTING
            self.context.queues[CONSUMER_GROUP].add(step.facts.reset.group_key)
        wanted, group = step.decision.step, step.referenced.group
        if wanted is None or group is None:
            return
        take = self._read if wanted is ResetStep.READ else self._commit
        take(session, step, group, record)

    def _read(
        self, session: RunSession[ResetMemory], step: OffsetResetStep, group: ConsumerGroup, record: ResetRecord
    ) -> None:
        memory, spec, sources = session.memory, step.facts.reset.spec, step.facts.of.sources or ()
        topics = tuple(topic for topic in topics_of(spec, sources) if topic in sources)
        at, committed_only = time_ms(spec), group.spec.consumer.isolation_level == "ReadCommitted"
        now = self.context.clock.monotonic()
        memory.since = now if memory.since is None else memory.since
        waited_s = now - memory.since

        def ask(admin: KafkaAdmin) -> Finding:
            read = admin.read_offsets(group.group_id, topics, at, read_committed=committed_only)
            return Finding(phase=record.phase, read=read, waited_s=waited_s)

        self._ask(session, step, record, lambda: self._change(step, ask))

    def _commit(
        self, session: RunSession[ResetMemory], step: OffsetResetStep, group: ConsumerGroup, record: ResetRecord
    ) -> None:
        memory, marker, wanted = session.memory, marker_of(step.facts.reset), record.offsets

        async def commit() -> Finding | None:
            if not await self._is_committing(step, record):
                return None
            # From here on a commit may have been sent, even if its response is lost.
            unsent, memory.unsent = memory.unsent, False

            def run(admin: KafkaAdmin) -> Finding:
                ids = record.topic_ids
                done = admin.set_offsets(group.group_id, wanted, record.previous, marker=marker, topic_ids=ids)
                after = {place: done.after[place] for place in wanted if place in done.after}
                return Finding(
                    phase=record.phase,
                    committed=not done.refusals and after == wanted,
                    untouched=after == record.previous,
                    outdated=done.outdated,
                    unsent=unsent and (done.outdated or done.refusals.keys() == wanted.keys()),
                    refusals=done.refusals,
                )

            return await self._change(step, run)

        self._ask(session, step, record, commit)

    async def _change(self, step: OffsetResetStep, run: Any) -> Finding:
        cluster, seen = step.referenced.cluster, step.referenced.seen
        assert isinstance(cluster, KafkaCluster), "no step runs without the KafkaCluster"
        assert seen is not None, "no step runs before the Kafka cluster was observed"
        key = (cluster.metadata.namespace, cluster.metadata.name)
        found: Finding = await self.context.observers.change(key, seen.cluster_id, run)
        return found

    def _ask(self, session: RunSession[ResetMemory], step: OffsetResetStep, record: ResetRecord, read: Any) -> None:
        memory, began = session.memory, self.context.clock.monotonic()

        def keep(found: Finding | None) -> None:
            memory.finding, memory.began = found, began
            if found is None:
                return
            memory.unsent = found.unsent
            if found.committed:
                self.context.metrics.offset_resets.inc()
                fields = {
                    "key": "/".join(session.key),
                    "before": list_offsets(record.previous),
                    "now": list_offsets(record.offsets),
                }
                log.info("offsets were reset", extra=fields)
                self.context.events.record(Event(step.body, "Normal", "OffsetsReset", describe_moves(record)))
                cluster = step.referenced.cluster
                assert isinstance(cluster, KafkaCluster), "the step has run on this KafkaCluster"
                self.context.observers.poll_soon((cluster.metadata.namespace, cluster.metadata.name))

        def fail(error: Exception) -> None:
            memory.finding, memory.began = Finding(phase=record.phase, problem=problem_of(error)), began

        session.ask(read, keep, fail, seconds=ANSWER_SECONDS)

    async def _is_committing(self, step: OffsetResetStep, record: ResetRecord) -> bool:
        """Read the stored states of the reset and its group live, and return True if both show that the reset is still
        committing. Raises KubeError.

        The cache may be outdated if this operator process was suspended: another operator may have finished the reset,
        or the object may have been recreated. The live reads update the cache.
        """
        context = self.context
        live = await context.store.read_again(step.body)
        group = context.store.get(CONSUMER_GROUP, step.facts.reset.group_key)
        if live is None or group is None:
            return False
        await context.states.refresh(live)
        await context.states.refresh(group)
        entry = find_entry(context, step.facts.reset)
        stored = read_record(context.states.read(live, RunState), step.facts.reset)
        remembered = entry is not None and not entry.is_final
        return remembered and stored is not None and stored.phase is record.phase

    async def remember(self, step: OffsetResetStep, status: JsonObject) -> JsonObject:
        """Before a commit, set a finalizer, because only this object's state has the previous offsets. Returns further
        facts to store in the state."""
        record = step.decision.record
        if record.phase is ResetPhase.COMMITTING and not has_finalizer(step.body, RESET_FINALIZER):
            await set_finalizer(self.context.store, step.body, RESET_FINALIZER, wanted=True)
        whose = {"clusterId": record.cluster_id, "topicIds": dict(record.topic_ids)} if record.cluster_id else {}
        return {**whose, "reason": record.reason, "message": record.message}

    def project(self, session: RunSession[ResetMemory], step: OffsetResetStep, now: float) -> JsonObject:
        return project_offset_reset_status(step.facts.reset, step.decision, step.facts.of.obstacle, now)

    async def settle(self, session: RunSession[ResetMemory], body: JsonObject, run: OffsetReset) -> float:
        if has_finalizer(body, RESET_FINALIZER):
            await set_finalizer(self.context.store, body, RESET_FINALIZER, wanted=False)
        return 0.0


def find_obstacle(group: ConsumerGroup, referenced: ReferencedGroup) -> Problem | None:
    """The reason why the group's offsets must not be read or changed in Kafka now; None without an obstacle."""
    cluster, seen = find_group_obstacle("OffsetReset", group, referenced), referenced.seen
    if isinstance(cluster, Problem):
        return cluster
    if seen is None or referenced.offsets.inherited is None:
        return Problem(conditions.NOT_YET_OBSERVED, "the group or its Kafka cluster has not been observed yet")
    if not seen.reachable:
        return Problem(seen.reason or conditions.BROKER_UNREACHABLE, seen.message)
    return None


def find_hold(context: Context, group: Key, *, begun: bool) -> Hold | None:
    """The OffsetReset that keeps a group's main workers stopped, or None. `begun`: the group has had workers."""
    runs = runs_of(context, OFFSET_RESET, group)
    holds = (hold_of(run.name, known, begun=begun) for run, known in runs if not run.dry_run)
    return next((hold for hold in holds if hold is not None), None)


def describe_moves(record: ResetRecord) -> str:
    """List the offsets before and after a reset, for as many partitions as fit into the note of an Event."""
    moves = [
        f"{topic}-{number}: {record.previous.get((topic, number), 'none')} -> {offset}"
        for (topic, number), offset in sorted(record.offsets.items())
    ]

    def note(shown: int) -> str:
        more = [f"and {len(moves) - shown} more"] if len(moves) > shown else []
        return f"partitions whose offset was set: {len(moves)} ({', '.join(moves[:shown] + more)})"

    # A note that lists only one partition always fits.
    return next(text for text in map(note, range(MOVES_MAX, 0, -1)) if len(text) <= NOTE_CHARACTERS_MAX)


def _wants_to_run(run: RunSummary, known: Mapping[str, Any]) -> bool:
    over = known.get("phase") in FINAL_PHASES or known.get("reason") == conditions.MEMORY_LOST
    deleted = run.deleting and known.get("phase") != "Committing"
    return not (over or deleted or run.dry_run)
