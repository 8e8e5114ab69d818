"""The memory of runs: how far one is, in its own state, and those that were done, in the state of their ConsumerGroup.

A run's own state is deleted with its object. The group's list outlives it: what a GitOps tool makes again, or a backup
restores, is the same run if its kind, its name and what it asks for are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fleet_operator.api.v1alpha1.model import FINAL_PHASES, RunResource
from fleet_operator.planning import times

ENTRIES_MAX: Final = 50
"""Most runs of one kind that a group's state names; the oldest whose object is gone are forgotten first."""
MESSAGE_CHARACTERS_MAX: Final = 256
CHANGEABLE: Final = frozenset({"suspend", "rate", "guard", "ttl_seconds_after_finished", "not_after", "retry"})
"""Fields of specs that may be changed: they say nothing about what a run does."""
RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]")
"""The beginning of a time. Dates alone, and digits, may be names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run's own state: a digest of what it does, the facts that decide what is done next, and why it came to its
    end."""

    digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    message: str = ""

    @property
    def is_final(self) -> bool:
        return self.facts.get("phase") in FINAL_PHASES

    @property
    def retries(self) -> int:
        """The number of times that the run was begun again after a failure."""
        found = self.facts.get("retries")
        return found if isinstance(found, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run that was done, or that can no longer be taken back. `at` is a time in RFC 3339, `retries` the number of
    times that it was begun again after a failure."""

    kind: str
    name: str
    digest: str
    phase: str
    reason: str = ""
    message: str = ""
    at: str = ""
    retries: int = 0

    def is_of(self, other: RunEntry) -> bool:
        return (self.kind, self.name, self.digest) == (other.kind, other.name, other.digest)

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL_PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsState:
    """The part of a group's state that the reconcilers of its runs write; the oldest entry comes first."""

    runs: tuple[RunEntry, ...] = ()

    def find(self, run: RunResource) -> RunEntry | None:
        wanted = entry_of(run)
        return next((each for each in self.runs if each.is_of(wanted)), None)

    def is_full(self, run: RunResource, lives: Callable[[RunEntry], bool]) -> bool:
        """True if this run would have another forgotten whose object lives; see `with_entry`."""
        wanted = entry_of(run)
        others = [each for each in self.runs if each.kind == wanted.kind and not each.is_of(wanted)]
        return len(others) >= ENTRIES_MAX and all(map(lives, others))

    def with_entry(self, entry: RunEntry, lives: Callable[[RunEntry], bool]) -> RunsState:
        """The state with one more entry. `lives` tells of which entries the objects exist, whose own states remember
        them as well."""
        others = [each for each in self.runs if not each.is_of(entry)]
        same = [each for each in others if each.kind == entry.kind]
        forgotten = sorted(same, key=lives)[: max(len(same) + 1 - ENTRIES_MAX, 0)]
        return replace(self, runs=(*(each for each in others if each not in forgotten), entry))


def entry_of(
    run: RunResource, *, phase: str = "", reason: str = "", message: str = "", at: str = "", retries: int = 0
) -> RunEntry:
    cut = message[:MESSAGE_CHARACTERS_MAX]
    return RunEntry(
        kind=type(run).__name__,
        name=run.metadata.name,
        digest=digest_of(run),
        phase=phase,
        reason=reason,
        message=cut,
        at=at,
        retries=retries,
    )


def digest_of(run: RunResource) -> str:
    """A digest of what a run does. Specs that the CRD's rule of immutability holds to be equal have the same one."""
    content = _canonical(run.spec.model_dump(mode="json", exclude=set(CHANGEABLE), exclude_defaults=True))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """A value in one form. In CEL lists of the types `set` and `map` are equal in any order, and times are instants; an
    edit of neither makes another run of one that was done. The order of no list says anything about what a run does.
    """
    if isinstance(value, Mapping):
        return {name: _canonical(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted(map(_canonical, value), key=lambda each: json.dumps(each, sort_keys=True))
    instant = times.from_text(value) if isinstance(value, str) and RFC_3339.match(value) else None
    return value if instant is None else instant
