"""The operator's memory of runs. Each run's own state has its progress. The ConsumerGroup's state lists the runs that
were carried out.

A run's own state is deleted with the run's object, but the entry in the group's list stays. A GitOps tool may create
the object again, or somebody may restore it from a backup. The new object counts as the same run if its kind, name and
request are unchanged. A run that takes over the state of an earlier object with the same name counts as started at the
time of the takeover.

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
"""Maximum number of runs of one kind in a group's state. The oldest run without an object is forgotten first."""
MESSAGE_CHARACTERS_MAX: Final = 256
CHANGEABLE: Final = frozenset({"suspend", "rate", "guard", "ttl_seconds_after_finished", "not_after", "retry"})
"""Mutable fields in the specs of runs. They do not change what a run does, so `digest_of` ignores them."""
RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]")
"""Pattern of the start of an RFC 3339 time. A date alone or digits alone do not match, because such a string may be a
name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run's own state. `digest`: identifies what the run does (`digest_of`). `facts`: the facts that decide the run's
    next step. `reason`, `message`: why the run ended."""

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
    """A run that was carried out, or that has already had an effect that cannot be undone. `at`: the time (RFC 3339) at
    which the run ended or was recorded. `retries`: as in RunState."""

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
    """The runs section of a group's state, written by the reconcilers of the group's runs. The oldest entry is
    first."""

    runs: tuple[RunEntry, ...] = ()

    def find(self, run: RunResource) -> RunEntry | None:
        wanted = entry_of(run)
        return next((each for each in self.runs if each.is_of(wanted)), None)

    def is_full(self, run: RunResource, lives: Callable[[RunEntry], bool]) -> bool:
        """True if an entry for this run would replace the entry of a run whose object still exists (see `with_entry`).
        `lives`: True for an entry whose object exists."""
        wanted = entry_of(run)
        others = [each for each in self.runs if each.kind == wanted.kind and not each.is_of(wanted)]
        return len(others) >= ENTRIES_MAX and all(map(lives, others))

    def with_entry(self, entry: RunEntry, lives: Callable[[RunEntry], bool]) -> "RunsState":
        """Add an entry. If there are more than `ENTRIES_MAX` entries, entries whose object no longer exists (not
        `lives`) are dropped first, because a run that exists has its own state."""
        others = [each for each in self.runs if not each.is_of(entry)]
        same = [each for each in others if each.kind == entry.kind]
        forgotten = sorted(same, key=lives)[: max(len(same) + 1 - ENTRIES_MAX, 0)]
        return replace(self, runs=(*(each for each in others if each not in forgotten), entry))


def entry_of(run: RunResource, *, phase: str = "") -> RunEntry:
    return RunEntry(kind=type(run).__name__, name=run.metadata.name, digest=digest_of(run), phase=phase)


def digest_of(run: RunResource) -> str:
    """Return a digest of what a run does. Specs that the CRD's immutability rule considers equal have the same
    digest."""
    content = _canonical(run.spec.model_dump(mode="json", exclude=set(CHANGEABLE), exclude_defaults=True))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Normalize a value, so that values that are equal in CEL become identical. In CEL, lists of the types `set` and
    `map` are equal in any order, and times are compared as instants. All lists are sorted, because their order has no
    meaning in the spec of any run."""
    if isinstance(value, Mapping):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted(map(_canonical, value), key=lambda each: json.dumps(each, sort_keys=True))
    instant = times.from_text(value) if isinstance(value, str) and RFC_3339.match(value) else None
    return value if instant is None else instant
