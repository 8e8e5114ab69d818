"""A small cluster in memory for rollouts: a StatefulSet controller, a kubelet, and an operator that may be killed.

Modelled: one-by-one rolling updates from the highest ordinal, which wait for an unready updated pod; pods that become
ready or never do; check pods that pass, fail, or fail for a while; the operator's actions in their order, cut short
anywhere. Not modelled: nodes, eviction, a controller that is slow to see a new template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from fleet_operator.planning.fleet.rollout import RolloutDecision, decide
from fleet_operator.planning.fleet.rollout_facts import CheckFacts, FleetFacts, PodFacts, RevisionRecord, RolloutFacts


class Kind(Enum):
    """Behaviour of a revision."""

    WORKS = "works"
    FAILS_CHECK = "fails its check"
    NEVER_READY = "passes its check, but its pods never become ready"


START = 1_000_000.0
SECONDS_TO_READY = 10.0


@dataclass
class Pod:
    revision: str
    created: float
    ready: bool = False


@dataclass
class World:
    """State as the API server would hold it; nothing of it belongs to the operator's memory."""

    kinds: dict[str, Kind]
    wanted: str
    replicas: int
    now: float = START
    outside_broken: bool = False
    records: dict[str, RevisionRecord] = field(default_factory=dict)
    check: CheckFacts | None = None
    template: str | None = None
    applied_replicas: int = 0
    pods: dict[int, Pod] = field(default_factory=dict)
    checks_run: int = 0
    writes: int = 0

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
            records=dict(self.records),
            checks=(self.check,) if self.check else (),
            fleet=fleet,
            pods=tuple(
                PodFacts(
                    name=f"orders-{ordinal}",
                    revision=pod.revision,
                    ordinal=ordinal,
                    unready_since=None if pod.ready else pod.created,
                )
                for ordinal, pod in self.pods.items()
            ),
        )

    def visit(self, *, cut_after: int | None = None) -> RolloutDecision:
        """One reconcile, killed after so many of its writes (None: not killed)."""
        decision = decide(self.facts(), self.now)
        actions = [*self._records(decision), *self._checks(decision), *self._fleet(decision), *self._cleaning(decision)]
        for action in actions[:cut_after]:
            action()
            self.writes += 1
        return decision

    def controllers(self) -> None:
        """One turn of the StatefulSet controller and of the kubelets."""
        if self.check is not None and self.check.ok is None:
            self._end_check(self.check)
        for pod in self.pods.values():
            old_enough = self.now - pod.created >= SECONDS_TO_READY
            pod.ready = old_enough and self.kinds[pod.revision] is not Kind.NEVER_READY
        if self.template is None:
            return
        for ordinal in [ordinal for ordinal in self.pods if ordinal >= self.applied_replicas]:
            del self.pods[ordinal]
        for ordinal in range(self.applied_replicas):
            self.pods.setdefault(ordinal, Pod(self.template, self.now))
        for ordinal in sorted(self.pods, reverse=True):
            pod = self.pods[ordinal]
            if pod.revision != self.template:
                self.pods[ordinal] = Pod(self.template, self.now)
                return
            if not pod.ready:
                return

    def _end_check(self, check: CheckFacts) -> None:
        self.checks_run += 1
        if self.outside_broken:
            ended = replace(check, ok=False, outside=True, reason="BrokerUnreachable", message="no broker")
        elif self.kinds[check.revision] is Kind.FAILS_CHECK:
            ended = replace(check, ok=False, reason="HandlerImportFailed", message="no such module")
        else:
            ended = replace(check, ok=True)
        self.check = replace(ended, finished_at=self.now)

    def _records(self, decision: RolloutDecision) -> Iterator[Callable[[], object]]:
        mark = decision.mark
        if mark is None:
            return
        shown = RevisionRecord(
            hash=mark.hash,
            state=mark.state,
            since=mark.since,
            reason=mark.reason,
            message=mark.message,
            checked=mark.checked,
        )
        yield partial(self.records.__setitem__, mark.hash, shown)

    def _checks(self, decision: RolloutDecision) -> Iterator[Callable[[], object]]:
        for _ in decision.delete_checks:
            yield partial(setattr, self, "check", None)
        if decision.run_check:
            new = CheckFacts(pod="check", revision=self.wanted, created_at=self.now)
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
            yield partial(self.records.pop, revision, None)

    def _apply(self, template: str) -> None:
        self.template, self.applied_replicas = template, self.replicas
