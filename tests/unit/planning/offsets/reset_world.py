"""An OffsetReset, its group, its Kafka group and an operator's memory, for tests of resets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fleet_operator.api.v1alpha1 import OffsetReset
from fleet_operator.api.v1alpha1.model import FINAL_PHASES
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.offsets.hold import hold_of
from fleet_operator.planning.offsets.records import Committed, ResetPhase, is_outdated, marker_of, read_record
from fleet_operator.planning.offsets.reset import Finding, ResetFacts, ResetStep
from fleet_operator.planning.offsets.run import OffsetResetDecision, OffsetResetFacts, decide
from fleet_operator.planning.offsets.targets import GroupOffsets, Member
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.runs import RunState, digest_of

NOW = 1_800_000_000.0
FLEET = MAIN.child("orders")
OURS = Member("shop.orders.0a1b2c3d-0", f"{FLEET}-0")
DYNAMIC = Member(None, f"{FLEET}-1")
JAVA = Member(None, "consumer-orders-1")
KEYS = [("orders", 0), ("orders", 1)]


def offset_reset(name: str = "a", **spec: Any) -> OffsetReset:
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-of-{name}"}
    given = {"groupRef": {"name": "orders"}, "to": "Earliest", **spec}
    return OffsetReset.model_validate({"metadata": metadata, "spec": given})


def places(*offsets: int) -> list[dict[str, Any]]:
    """`spec.offsets`, of the first partitions."""
    return [{"topic": "orders", "partition": number, "offset": offset} for number, offset in enumerate(offsets)]


@dataclass
class World:
    """The object, its stored state, the fleet and Kafka, which outlive the operator; and the operator's memory."""

    reset: OffsetReset = field(default_factory=offset_reset)
    deleted: bool = False
    memory_gap: Problem | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    replicas: int | None = 2
    members: tuple[Member, ...] = (OURS, DYNAMIC)
    committed: dict[tuple[str, int], int] = field(default_factory=lambda: dict(zip(KEYS, (50, 60), strict=True)))
    markers: dict[tuple[str, int], str] = field(default_factory=dict)
    obstacle: Problem | None = None
    broken: Problem | None = None
    """The error that ends every commit."""
    refusals: dict[tuple[str, int], str] = field(default_factory=dict)
    finding: Finding | None = None
    unsent: bool = False
    group_type: str = ""
    waited_s: float = 0.0
    commits: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"orders": 2})

    def decide(self) -> OffsetResetDecision:
        of = ResetFacts(
            obstacle=self.obstacle,
            sources=("orders",),
            down=not self.replicas,
            own_prefix="shop.orders.0a1b2c3d-",
            own_name=FLEET,
            patience_s=85.0,
            finding=self.finding,
        )
        record = read_record(RunState(digest=digest_of(self.reset), facts=self.facts), self.reset)
        facts = OffsetResetFacts(
            reset=self.reset, of=of, record=record, memory_gap=self.memory_gap, deleted=self.deleted
        )
        return decide(facts, NOW)

    @property
    def stopped(self) -> bool:
        """True if no main worker may run."""
        dry = self.reset.spec.dry_run
        return not dry and hold_of("a", self.facts, begun=self.replicas is not None) is not None

    def store(self, decision: OffsetResetDecision) -> None:
        record = decision.record
        self.facts = {**record.shown(), "reason": record.reason, "message": record.message}
        if decision.advanced:
            self.finding = None
            self.unsent = record.phase is ResetPhase.COMMITTING

    def kill(self) -> None:
        """The operator dies; the next one knows what is remembered."""
        self.finding, self.unsent = None, False

    def scale(self) -> None:
        """The fleet follows; workers that stop leave the group."""
        if self.stopped:
            self.replicas = None if self.replicas is None else 0
            self.members = tuple(member for member in self.members if member is JAVA)
        else:
            self.replicas = 2
            if not self.members:
                self.members = (OURS, DYNAMIC)

    def act(self, decision: OffsetResetDecision) -> None:
        record = decision.record
        found = Finding(phase=record.phase)
        if decision.step is ResetStep.READ:
            read = GroupOffsets(
                state="Stable" if self.members or self.group_type else "Empty",
                group_type=self.group_type,
                members=self.members,
                counts=self.counts,
                committed=dict(self.committed),
                starts=dict.fromkeys(KEYS, 10),
                ends=dict.fromkeys(KEYS, 90),
            )
            self.finding = replace(found, read=read, waited_s=self.waited_s)
        elif decision.step is ResetStep.COMMIT:
            self._commit(decision, found)

    def _commit(self, decision: OffsetResetDecision, found: Finding) -> None:
        record, marker = decision.record, marker_of(self.reset)
        if self.broken is not None:
            self.finding = replace(found, problem=self.broken)
            return
        assert self.phase == "Committing", "what was before is remembered first"
        commits = {key: Committed(at, self.markers.get(key, "")) for key, at in self.committed.items()}
        if is_outdated(commits, wanted=record.offsets, previous=record.previous, marker=marker):
            self.finding = replace(found, outdated=True, unsent=self.unsent)
            return
        refusals = dict.fromkeys(KEYS, "UnknownMemberId") if self.members else self.refusals
        for key, offset in record.offsets.items():
            if key not in refusals:
                self.committed[key], self.markers[key] = offset, marker
                self.commits += 1
        self.unsent = self.unsent and set(refusals) == set(KEYS)
        after = {key: self.committed[key] for key in record.offsets}
        done = after == record.offsets and not refusals
        self.finding = replace(found, committed=done, untouched=after == record.previous, refusals=refusals)

    def java_commits(self, *offsets: int) -> None:
        """Another program commits all partitions. Its commits have no metadata."""
        self.committed, self.markers = dict(zip(KEYS, offsets, strict=True)), {}

    def visit(self) -> None:
        self.scale()
        if self.phase not in FINAL_PHASES:
            self.act(self.decide())
            self.store(self.decide())

    def run(self, visits: int = 12) -> World:
        for _ in range(visits):
            self.visit()
        return self

    def run_to(self, phase: str) -> World:
        while self.phase != phase:
            self.visit()
        return self

    def runs_on(self, visits: int = 6) -> bool:
        """True if these visits do not stop the fleet."""
        for _ in range(visits):
            self.visit()
            if self.stopped:
                return False
        return True

    @property
    def phase(self) -> str:
        return str(self.facts.get("phase"))

    @property
    def shown(self) -> tuple[str, str]:
        """Phase and reason."""
        return self.phase, self.facts["reason"]
