"""A small cluster in memory for rollouts: a StatefulSet controller, a kubelet, and an operator that may be killed.

Modelled: one-by-one rolling updates from the highest ordinal, which wait for an unready updated pod; pods that become
ready, that never do, or that wait for the cluster; check pods that pass, fail, fail for a while, or hang; the actions
of the operator in their order, cut short anywhere, after which it remembers nothing; its clocks, which may jump. Not
modelled: eviction, a controller that is slow to see a new template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from fleet_operator.planning.fleet.deadlines import watch
from fleet_operator.planning.fleet.parsing import with_verdict
from fleet_operator.planning.fleet.rollout import RolloutDecision, decide
from fleet_operator.planning.fleet.rollout_facts import (
    CheckFacts,
    FleetFacts,
    PodFacts,
    RevisionRecord,
    RolloutFacts,
    Watched,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import RevisionVerdict


class Kind(Enum):
    """Behaviour of a revision."""

    WORKS = "works"
    FAILS_CHECK = "fails its check"
    HANGS = "its check never ends"
    NEVER_READY = "passes its check, but its pods never become ready"


START = 1_000_000.0
SECONDS_TO_READY = 10.0
DEADLINE_S = 120.0
SLOW = Problem("ImagePullBackOff", "the registry is slow")


@dataclass
class Pod:
    revision: str
    uid: str
    ran_s: float = 0.0
    ready: bool = False


@dataclass
class World:
    """State as the API server would hold it; nothing of it belongs to the operator's memory."""

    kinds: dict[str, Kind]
    wanted: str
    replicas: int
    now: float = START
    tick: float = 0.0
    outside_broken: bool = False
    slow: bool = False
    request: str = "r1"
    verdicts: dict[str, RevisionVerdict] = field(default_factory=dict)
    config_maps: set[str] = field(default_factory=set)
    check: CheckFacts | None = None
    template: str | None = None
    applied_replicas: int = 0
    pods: dict[int, Pod] = field(default_factory=dict)
    watched: Watched = field(default_factory=Watched)
    uids: int = 0
    checks_run: int = 0
    writes: int = 0

    @property
    def records(self) -> dict[str, RevisionRecord]:
        """The revisions that have their ConfigMap, and the wanted one once it has a verdict."""
        known = self.config_maps | ({self.wanted} & self.verdicts.keys())
        return {each: with_verdict(each, self.verdicts.get(each), complete=each in self.config_maps) for each in known}

    def facts(self) -> RolloutFacts:
        ready = [pod for pod in self.pods.values() if pod.ready]
        updated = [pod for pod in self.pods.values() if pod.revision == self.template]
        fleet = None
        if self.template is not None:
            fleet = FleetFacts(
                revision=self.template,
                replicas=self.applied_replicas,
                observed=True,
                current_replicas=len(self.pods),
                updated_replicas=len(updated),
                ready_replicas=len(ready),
                available_replicas=len(ready),
            )
        return RolloutFacts(
            wanted=self.wanted,
            wanted_replicas=self.replicas,
            request=self.request,
            progress_deadline_s=DEADLINE_S,
            check_deadline_s=DEADLINE_S,
            records=self.records,
            checks=(replace(self.check, waits=SLOW if self.slow else None),) if self.check else (),
            fleet=fleet,
            pods=tuple(
                PodFacts(
                    name=f"orders-{ordinal}",
                    revision=pod.revision,
                    ordinal=ordinal,
                    uid=pod.uid,
                    ready=pod.ready,
                    waits=SLOW if self.slow and not pod.ready else None,
                )
                for ordinal, pod in self.pods.items()
            ),
        )

    def visit(self, *, cut_after: int | None = None) -> RolloutDecision:
        """One reconcile, killed after so many of its writes (None: not killed)."""
        facts = self.facts()
        self.watched = watch(self.watched, facts, counts=True, tick=self.tick)
        decision = decide(replace(facts, watched=self.watched), self.now)
        actions = [*self._notes(decision), *self._checks(decision), *self._fleet(decision), *self._cleaning(decision)]
        for action in actions[:cut_after]:
            action()
            self.writes += 1
        if cut_after is not None:
            self.watched = Watched()
        return decision

    def controllers(self, seconds: float) -> None:
        """One turn of the StatefulSet controller and of the kubelets, which lasts so long."""
        if self.check is not None and self.check.ok is None and not self.slow:
            self._run_check(self.check)
        for pod in self.pods.values():
            pod.ran_s += 0.0 if self.slow else seconds
            pod.ready |= pod.ran_s >= SECONDS_TO_READY and self.kinds[pod.revision] is not Kind.NEVER_READY
        if self.template is None:
            return
        for ordinal in [ordinal for ordinal in self.pods if ordinal >= self.applied_replicas]:
            del self.pods[ordinal]
        for ordinal in range(self.applied_replicas):
            self.pods.setdefault(ordinal, self._pod(self.template))
        for ordinal in sorted(self.pods, reverse=True):
            pod = self.pods[ordinal]
            if pod.revision != self.template:
                self.pods[ordinal] = self._pod(self.template)
                return
            if not pod.ready:
                return

    def _pod(self, revision: str) -> Pod:
        self.uids += 1
        return Pod(revision, f"u{self.uids}")

    def _run_check(self, check: CheckFacts) -> None:
        if self.kinds[check.revision] is Kind.HANGS and not self.outside_broken:
            self.check = replace(check, started=True)
            return
        self.checks_run += 1
        if self.outside_broken:
            self.check = replace(check, ok=False, outside=True, reason="BrokerUnreachable", message="no broker")
        elif self.kinds[check.revision] is Kind.FAILS_CHECK:
            self.check = replace(check, ok=False, reason="HandlerImportFailed", message="no such module")
        else:
            self.check = replace(check, ok=True)

    def _notes(self, decision: RolloutDecision) -> Iterator[Callable[[], object]]:
        """The state is one write, and comes before all others."""
        recorded = {} if decision.new_record is None else {decision.new_record.hash: decision.new_record.verdict}
        verdicts = {name: verdict for name, verdict in (self.verdicts | recorded).items() if name not in decision.prune}
        if verdicts != self.verdicts:
            yield partial(setattr, self, "verdicts", verdicts)
        if decision.write_revision:
            yield partial(self.config_maps.add, self.wanted)

    def _checks(self, decision: RolloutDecision) -> Iterator[Callable[[], object]]:
        for _ in decision.delete_checks:
            yield partial(setattr, self, "check", None)
        if decision.run_check:
            self.uids += 1
            new = CheckFacts(pod="check", revision=self.wanted, uid=f"u{self.uids}")
            yield partial(setattr, self, "check", new)

    def _fleet(self, decision: RolloutDecision) -> Iterator[Callable[[], object]]:
        changed = (decision.target, self.replicas) != (self.template, self.applied_replicas)
        if decision.target is not None and changed:
            yield partial(self._apply, decision.target)

    def _cleaning(self, decision: RolloutDecision) -> Iterator[Callable[[], object]]:
        for name in decision.delete_pods:
            ordinal = int(name.rpartition("-")[2])
            yield partial(self.pods.pop, ordinal, None)
        for revision in decision.prune:
            yield partial(self.config_maps.discard, revision)

    def _apply(self, template: str) -> None:
        self.template, self.applied_replicas = template, self.replicas
