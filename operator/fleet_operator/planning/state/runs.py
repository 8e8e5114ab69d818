"""The operator's memory of runs. Each run has its progress in a state of its own. The ConsumerGroup's state lists the
runs that were done.

A run's own state is deleted with its object, but the group's list outlives it. If a GitOps tool creates the object
again, or a backup restores it, it is the same run if its kind, its name and its request are the same. If a run takes
over the state of an earlier object of the same name, it counts as started at the time of the takeover.

Decision: docs/decisions/0054-run-memory.md.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1.model import FINAL_PHASES, RunResource
from fleet_operator.planning import times

ENTRIES_MAX: Final = 50
"""Maximum number of runs of one kind in a group's state; the oldest one without an object is forgotten first."""
MESSAGE_CHARACTERS_MAX: Final = 256
CHANGEABLE: Final = frozenset({"suspend", "rate", "guard", "ttl_seconds_after_finished", "not_after", "retry"})
"""Mutable fields in the specs of runs. They do not define what a run does."""
RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]")
"""Pattern of the beginning of a time. It does not match a date alone, or digits, because these may be a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run's own state. `digest`: of what the run does (`digest_of`). `facts`: those that decide its next step.
    `reason`, `message`: why the run ended."""

    digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    message: str = ""

    @property
    def is_final(self) -> bool:
        return self.facts.get("phase") in FINAL_PHASES

    @property
    def retries(self) -> int:
        """The number of times that the run was started again after a failure."""
        found = self.facts.get("retries")
        return found if isinstance(found, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run that was carried out, or whose effect can no longer be undone. `at`: when it ended, or when it was recorded
    (RFC 3339). `retries`: as in RunState."""

    kind: str
    name: str
    digest: str
    phase: str
    reason: str = ""
    message: str = ""
    at: str = ""
    retries: int = 0

    def is_of(self, other: "RunEntry") -> bool:
        return (self.kind, self.name, self.digest) == (other.kind, other.name, other.digest)

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL_PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsState:
    """The section of a group's state that the reconcilers of its runs write; the oldest entry is first."""

    runs: tuple[RunEntry, ...] = ()

    def find(self, run: RunResource) -> RunEntry | None:
        wanted = entry_of(run)
        return next((each for each in self.runs if each.is_of(wanted)), None)

    def is_full(self, run: RunResource, lives: Callable[[RunEntry], bool]) -> bool:
        """True if an entry for this run would replace that of a run whose object still exists (see `with_entry`)."""
        wanted = entry_of(run)
        others = [each for each in self.runs if each.kind == wanted.kind and not each.is_of(wanted)]
        return len(others) >= ENTRIES_MAX and all(map(lives, others))

    def with_entry(self, entry: RunEntry, lives: Callable[[RunEntry], bool]) -> "RunsState":
        """Add an entry. Of more than `ENTRIES_MAX`, those without an object (not `lives`) are dropped first, because an
        existing run has its own state."""
        others = [each for each in self.runs if not each.is_of(entry)]
        same = [each for each in others if each.kind == entry.kind]
        forgotten = sorted(same, key=lives)[: max(len(same) + 1 - ENTRIES_MAX, 0)]
        return replace(self, runs=(*(each for each in others if each not in forgotten), entry))


def entry_of(run: RunResource, *, phase: str = "") -> RunEntry:
    return RunEntry(kind=type(run).__name__, name=run.metadata.name, digest=digest_of(run), phase=phase)


def digest_of(run: RunResource) -> str:
    """A digest of what a run does. It is the same for specs that the CRD's immutability rule considers equal."""
    content = _canonical(run.spec.model_dump(mode="json", exclude=set(CHANGEABLE), exclude_defaults=True))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Normalize a value as CEL compares it: lists of the types `set` and `map` are equal in any order, and times are
    instants. The order of a list has no meaning in any spec."""
    if isinstance(value, Mapping):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted(map(_canonical, value), key=lambda each: json.dumps(each, sort_keys=True))
    instant = times.from_text(value) if isinstance(value, str) and RFC_3339.match(value) else None
    return value if instant is None else instant
