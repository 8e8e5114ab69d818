"""Decides about main workers: revisions, the rollout for the decided number of workers, and the StatefulSet. Pure."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.pod import WORKER_FILE
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.fleet import blocking, deadlines, manifests, parsing, pod_template, rollout
from fleet_operator.planning.fleet.parts import MAIN, FleetPart, PartPlan
from fleet_operator.planning.fleet.revision import (
    Inputs,
    Revision,
    inputs_of,
    is_known,
    request_digest,
    with_known,
)
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord, RolloutFacts, Watched
from fleet_operator.planning.foreign_json import read_object
from fleet_operator.planning.labels import REVISION_ANNOTATION, annotation_of
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.fleet import retry_stateful_set
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.group import FleetState, RevisionVerdict
from fleet_operator.reconcilers.consumergroup.gather import Gathered

REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Revisions:
    """A group's revisions, and the facts for deciding the rollout.

    - `wanted`: the wanted revision; None if no revision can be made from the spec.
    - `untrusted`: revisions whose records cannot be trusted.
    - `facts`: the facts about the rollout, for the number of workers that applied before this plan.
    """

    wanted: Revision | None
    records: dict[str, RevisionRecord]
    untrusted: frozenset[str]
    facts: RolloutFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    wanted: Revision | None
    records: dict[str, RevisionRecord]
    decision: rollout.RolloutDecision
    part: PartPlan
    state: FleetState

    @property
    def templates(self) -> dict[str, Mapping[str, Any]]:
        """The pod templates of all known revisions, keyed by the revision's hash."""
        known = {record.hash: record.pod_template for record in self.records.values()}
        return known | ({self.wanted.hash: self.wanted.pod_template} if self.wanted else {})

    def stateful_set(self, gathered: Gathered, wanted: PartPlan) -> JsonObject:
        assert wanted.target is not None, "a StatefulSet is rendered only for a known revision"
        group, templates = gathered.group, self.templates
        revision, replicas = wanted.target, wanted.replicas
        template = templates[revision]
        if wanted.part is not MAIN:
            return retry_stateful_set(group, revision=revision, pod_template=template, replicas=replicas)
        body = manifests.stateful_set(group, revision=revision, pod_template=template, replicas=replicas)
        return with_known(body, templates, self._inputs_of(gathered.parts[MAIN], revision))

    def _inputs_of(self, main: FleetPart, revision: str) -> Inputs | None:
        """Digests of a revision's inputs; None unless the revision is wanted or running."""
        if self.wanted is not None and self.wanted.hash == revision:
            return self.wanted.inputs
        return inputs_of(main.body) if main.fleet is not None and main.fleet.revision == revision else None


def read_revisions(
    gathered: Gathered, wanted: Revision | None, blocked: Problem | None, count: int, watched: Watched, tick: float
) -> Revisions:
    """Read a group's revisions. `count`: number of workers before this plan; `watched`: the rollout's timers, as the
    last reconcile left them; `tick`: the current time in monotonic seconds."""
    records, untrusted = _records(gathered, wanted)
    spec, main, observation = gathered.group.spec, gathered.parts[MAIN], gathered.observation
    facts = RolloutFacts(
        wanted=wanted.hash if wanted else None,
        wanted_before=gathered.state.fleet.wanted,
        wanted_replicas=count,
        request=request_digest(gathered.group),
        blocked=blocked,
        unproven=_unproven(gathered, wanted),
        records=records,
        checks=tuple(parsing.read_check(pod) for pod in gathered.checks),
        fleet=main.fleet,
        pods=main.workers,
        outside_ok=observation is not None and observation.reachable,
        progress_deadline_s=float(spec.rollout.progress_deadline_seconds),
        check_deadline_s=float(spec.rollout.check_deadline_seconds),
        patience_s=_patience(gathered),
        grace_s=float(spec.drain_seconds + pod_template.CLOSING_S),
    )
    counts = facts.outside_ok and not gathered.group.paused
    facts = replace(facts, watched=deadlines.watch(watched, facts, counts=counts, tick=tick))
    return Revisions(wanted=wanted, records=records, untrusted=frozenset(untrusted), facts=facts)


def decide_fleet(
    gathered: Gathered, revisions: Revisions, scale: ScaleDecision, used: frozenset[str], now: float
) -> FleetPlan:
    """Decide the rollout for the decided number of workers; `used`: the revisions that retry workers need."""
    facts = replace(revisions.facts, wanted_replicas=scale.replicas, used=used)
    decision = rollout.decide(facts, now)
    # An untrusted revision was never applied. Its record is removed, unless workers run the revision.
    unused = revisions.untrusted - used - revisions_of(gathered.parts[MAIN])
    decision = replace(decision, prune=(*decision.prune, *sorted(unused)))
    return FleetPlan(
        wanted=revisions.wanted,
        records=revisions.records,
        decision=decision,
        part=_main_part(gathered.parts[MAIN], decision, scale),
        state=_state_after(gathered, revisions.wanted, decision),
    )


def revisions_of(part: FleetPart) -> frozenset[str]:
    """The revisions that a part runs. Retry workers may run an older revision than main workers. They may also run
    while no main worker runs."""
    running = {pod.revision for pod in part.workers}
    return frozenset(running | {part.fleet.revision} if part.fleet else running)


def _main_part(found: FleetPart, decision: rollout.RolloutDecision, scale: ScaleDecision) -> PartPlan:
    target, replicas, fleet = decision.target, scale.replicas, found.fleet
    event = None
    if target is None:
        return PartPlan(part=MAIN, delete_pods=decision.delete_pods)
    if fleet is None:
        event = ("FleetCreated", f"{replicas} workers at revision {target}")
    elif fleet.revision != target:
        event = ("RevisionApplied", f"from revision {fleet.revision} to {target}")
    elif fleet.replicas != replicas:
        why = f": {scale.reason}" if scale.reason else ""
        event = ("Scaled", f"from {fleet.replicas} to {replicas} workers{why}")
    return PartPlan(part=MAIN, target=target, replicas=replicas, delete_pods=decision.delete_pods, event=event)


def _state_after(gathered: Gathered, wanted: Revision | None, decision: rollout.RolloutDecision) -> FleetState:
    before, new_record = gathered.state.fleet, decision.new_record
    # While a revision's record is unread or missing, the revision keeps its verdict.
    seen = {annotation_of(body, REVISION_ANNOTATION) for body in gathered.config_maps}
    kept = seen.union(*(revisions_of(part) for part in gathered.parts.values())) | {wanted.hash if wanted else None}
    verdicts = {name: known for name, known in before.verdicts.items() if name in kept - set(decision.prune)}
    if new_record is not None:
        verdicts[new_record.hash] = new_record.verdict
    return FleetState(wanted=wanted.hash if wanted is not None else before.wanted, verdicts=verdicts)


def _unproven(gathered: Gathered, wanted: Revision | None) -> Problem | None:
    """The reason why workers must not start yet with the wanted revision's connection; None if they may start."""
    if wanted is None or isinstance(gathered.cluster, Problem):
        return None
    main = gathered.parts[MAIN].fleet
    moved = main is not None and _connection_of(gathered, main.revision) != wanted.worker_config["connection"]
    return blocking.find_unproven_connection(gathered.cluster, gathered.observation, moved=moved)


def _connection_of(gathered: Gathered, revision: str) -> object:
    """The connection in a revision's record; None if the record is missing or unreadable."""
    name = naming.revision_config(gathered.key[1], revision)
    for body in gathered.config_maps:
        if body["metadata"]["name"] == name:
            return (read_object((body.get("data") or {}).get(WORKER_FILE)) or {}).get("connection")
    return None


def _records(gathered: Gathered, wanted: Revision | None) -> tuple[dict[str, RevisionRecord], Set[str]]:
    """The records of revisions, and the revisions whose records cannot be trusted (see `planning.fleet.revision`).

    The wanted revision is rendered in each reconcile, so its verdict counts even if its record is missing. If the state
    was lost, the revision in the StatefulSet counts as already checked.
    """
    verdicts, main = gathered.state.fleet.verdicts, gathered.parts[MAIN].fleet
    if main is not None and main.revision not in verdicts:
        verdicts = {**verdicts, main.revision: RevisionVerdict(checked=True)}
    names = [body["metadata"]["name"] for body in gathered.config_maps]
    records, untrusted = dict[str, RevisionRecord](), set[str]()
    for body in gathered.config_maps:
        record = parsing.read_revision(body, verdicts, config_map_names=names)
        if record is None or body["metadata"]["name"] != naming.revision_config(gathered.key[1], record.hash):
            continue
        if (wanted is not None and record.hash == wanted.hash) or is_known(gathered.parts[MAIN].body, record):
            records[record.hash] = record
        else:
            untrusted.add(record.hash)
    if wanted is not None and wanted.hash not in records and wanted.hash in gathered.state.fleet.verdicts:
        template = wanted.pod_template
        records[wanted.hash] = parsing.with_verdict(
            wanted.hash, verdicts[wanted.hash], complete=False, pod_template=template
        )
    return records, untrusted


def _patience(gathered: Gathered) -> float:
    """Seconds for which a new worker may wait for a rebalance. A rebalance ends only after all present members have
    rejoined."""
    seen = gathered.observed_group
    if seen is None or seen.state not in REBALANCING:
        return 0.0
    return float(gathered.group.spec.consumer.max_poll_interval_seconds)
