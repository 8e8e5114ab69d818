"""A group, its Kafka group and an operator's memory, for tests of resets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fleet_operator.api.v1alpha1.consumergroup import OffsetReset
from fleet_operator.planning.offsets.records import Committed, ResetPhase, is_outdated, mark_of, read_record
from fleet_operator.planning.offsets.reset import Finding, ResetDecision, ResetFacts, ResetStep, decide_reset
from fleet_operator.planning.offsets.targets import GroupOffsets, Member
from fleet_operator.planning.problem import Problem

NOW = 1_800_000_000.0
OURS = Member("shop.orders.0a1b2c3d-0", "orders-0")
DYNAMIC = Member(None, "orders-1")
JAVA = Member(None, "consumer-orders-1")
KEYS = [("orders", 0), ("orders", 1)]


def wanted(id_: str = "a", **fields: Any) -> OffsetReset:
    return OffsetReset.model_validate({"id": id_, "to": "Earliest", **fields})


@dataclass
class World:
    """The status, the fleet and Kafka, which outlive the operator; and its memory, which does not."""

    wanted: OffsetReset | None = field(default_factory=wanted)
    status: dict[str, Any] = field(default_factory=dict)
    replicas: int | None = 2
    members: tuple[Member, ...] = (OURS, DYNAMIC)
    committed: dict[tuple[str, int], int] = field(default_factory=lambda: {("orders", 0): 50, ("orders", 1): 60})
    marks: dict[tuple[str, int], str] = field(default_factory=dict)
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

    def facts(self) -> ResetFacts:
        return ResetFacts(
            wanted=self.wanted,
            last=read_record(self.status.get("lastReset")),
            dry=read_record(self.status.get("dryRun")),
            used=tuple(self.status.get("usedIds") or ()),
            obstacle=self.obstacle,
            sources=("orders",),
            down=not self.replicas,
            begun=self.replicas is not None,
            own_prefix="shop.orders.0a1b2c3d-",
            own_name="orders",
            patience_s=85.0,
            finding=self.finding,
        )

    def decide(self) -> ResetDecision:
        return decide_reset(self.facts(), NOW)

    def store(self, decision: ResetDecision) -> None:
        records = {"lastReset": decision.last, "dryRun": decision.dry}
        self.status = {key: record.document() for key, record in records.items() if record is not None}
        self.status["usedIds"] = list(decision.used)
        if decision.advanced:
            self.finding = None
            self.unsent = decision.last is not None and decision.last.phase is ResetPhase.COMMITTING

    def kill(self) -> None:
        """The operator dies; the next one knows what stands in the status."""
        self.finding, self.unsent = None, False

    def scale(self, decision: ResetDecision) -> None:
        """The fleet follows; workers that stop leave the group."""
        if decision.stop:
            self.replicas = None if self.replicas is None else 0
            self.members = tuple(member for member in self.members if member is JAVA)
        else:
            self.replicas = 2
            if not self.members:
                self.members = (OURS, DYNAMIC)

    def act(self, decision: ResetDecision) -> None:
        record = decision.step_for
        if record is None:
            return
        found = Finding(id=record.id, digest=record.digest, phase=record.phase)
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
            return
        if self.broken is not None:
            self.finding = replace(found, problem=self.broken)
            return
        assert self.status["lastReset"]["phase"] == "Committing", "what was before stands in the status first"
        commits = {key: Committed(at, self.marks.get(key, "")) for key, at in self.committed.items()}
        mark = mark_of(record, "u")
        if is_outdated(commits, wanted=record.offsets, previous=record.previous, mark=mark):
            self.finding = replace(found, outdated=True, unsent=self.unsent)
            return
        refusals = dict.fromkeys(KEYS, "UnknownMemberId") if self.members else self.refusals
        for topic, offsets in record.offsets.items():
            for number, offset in offsets.items():
                if (topic, number) not in refusals:
                    self.committed[topic, number] = offset
                    self.marks[topic, number] = mark
                    self.commits += 1
        self.unsent = self.unsent and set(refusals) == set(KEYS)
        wanted = {(topic, n): offset for topic, of in record.offsets.items() for n, offset in of.items()}
        after = {key: self.committed[key] for key in wanted}
        before = {(topic, n): offset for topic, of in record.previous.items() for n, offset in of.items()}
        self.finding = replace(
            found, committed=after == wanted and not refusals, untouched=after == before, refusals=refusals
        )

    def java_commits(self, *offsets: int) -> None:
        """Another program commits all partitions. Its commits have no metadata."""
        self.committed, self.marks = dict(zip(KEYS, offsets, strict=True)), {}

    def visit(self) -> ResetDecision:
        decision = self.decide()
        self.scale(decision)
        self.act(decision)
        self.store(self.decide())
        return decision

    def run(self, visits: int = 12) -> World:
        for _ in range(visits):
            self.visit()
        return self

    def run_to(self, phase: str) -> World:
        while self.phase != phase:
            self.visit()
        return self

    @property
    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status.get("lastReset", {})
        return found

    @property
    def phase(self) -> str:
        return str(self.last.get("phase"))
