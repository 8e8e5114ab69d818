"""A ConsumerGroup as one row of `status` and `top`. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet_kubectl.tables import ABSENT, compact, printable, table
from fleet_operator.api.v1alpha1 import conditions as c

NOTABLE: Final[Mapping[str, str]] = {
    c.PROGRESSING: "True",
    c.SCALING_LIMITED: "True",
    c.UPGRADE_AVAILABLE: "True",
    c.SCALING_ACTIVE: "Unknown",
}
"""Conditions that are not problems, each with the status in which they are shown."""
NOT_SEEN: Final = "NotSeenYet"
"""Reason that is shown for a ConsumerGroup without a status. The operator never writes this reason."""

COLUMNS: Final = ("NAMESPACE", "NAME", "READY", "REASON", "STATE", "WORKERS", "LAG", "BEHIND", "WAITING", "FAILED")
RIGHT: Final = {"WORKERS", "LAG", "BEHIND", "WAITING", "FAILED"}
FLEXIBLE: Final = {"STATE": 8, "REASON": 12, "NAME": 12, "NAMESPACE": 9}


@dataclass(frozen=True, slots=True)
class Fleet:
    """One row. `rank` orders rows: 0 is not Ready with an urgent problem, 1 is not Ready, 2 is Ready with a problem, 3
    is Ready."""

    namespace: str
    name: str
    ready: str
    reason: str
    state: str
    workers: int
    target: int | None
    lag: int | None
    lag_known: bool
    behind: str
    waiting: int | None
    failed: int | None
    rank: int

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def cells(self) -> tuple[str, ...]:
        """The row's cells, in the order of COLUMNS. A lag that is not up to date ends with a question mark."""
        wanted = ABSENT if self.target is None else str(self.target)
        lag = compact(self.lag) + ("?" if self.lag is not None and not self.lag_known else "")
        texts = (self.namespace, self.name, self.ready, self.reason, self.state)
        numbers = (f"{self.workers}/{wanted}", lag, self.behind, compact(self.waiting), compact(self.failed))
        return tuple(printable(text) for text in (*texts, *numbers))

    def summary(self) -> dict[str, Any]:
        """The row as JSON for `status -o json`. Unknown numbers are null, not zero."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "ready": self.ready,
            "reason": self.reason,
            "state": self.state,
            "workers": {"ready": self.workers, "target": self.target},
            "lagApproximate": self.lag,
            "lagKnown": self.lag_known,
            "behind": self.behind,
            "retriesWaiting": self.waiting,
            "failed": self.failed,
        }


def conditions_of(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The conditions of an object, keyed by type."""
    found = (body.get("status") or {}).get("conditions") or ()
    return {each["type"]: each for each in found}


def is_bad(condition: Mapping[str, Any]) -> bool:
    """True if a condition needs attention: its status is Unknown, or not the good status."""
    good = c.GOOD.get(condition["type"])
    return good is not None and condition["status"] != good


def fleet_of(body: Mapping[str, Any]) -> Fleet:
    status, found = body.get("status") or {}, conditions_of(body)
    ready = found.get(c.READY) or {"status": "Unknown", "reason": NOT_SEEN}
    retry = status.get("retry") or {}
    failed = retry.get("failed")
    return Fleet(
        namespace=body["metadata"]["namespace"],
        name=body["metadata"]["name"],
        ready=ready["status"],
        reason=ready["reason"],
        state=status.get("state") or ABSENT,
        workers=status.get("readyReplicas") or 0,
        target=status.get("targetReplicas"),
        lag=status.get("lagApproximate"),
        lag_known=(found.get(c.LAG_KNOWN) or {}).get("status") == "True",
        behind=status.get("behindText") or ABSENT,
        waiting=retry.get("waiting"),
        failed=failed,
        rank=_rank(found, failed or 0),
    )


def _rank(found: Mapping[str, Mapping[str, Any]], failed: int) -> int:
    ready = (found.get(c.READY) or {}).get("status") == "True"
    urgent = any((found.get(kind) or {}).get("status") == "True" for kind in (c.STALLED, c.DEGRADED, c.STUCK))
    if not ready:
        return 0 if urgent else 1
    return 2 if failed or any(map(is_bad, found.values())) else 3


def problems_first(fleets: Iterable[Fleet]) -> list[Fleet]:
    return sorted(fleets, key=lambda fleet: (fleet.rank, *fleet.key))


def status_lines(fleets: Sequence[Fleet], *, width: int, namespaces: bool) -> list[str]:
    """The lines of the table that `status` prints, problems first."""
    skipped = 0 if namespaces else 1
    rows = [fleet.cells()[skipped:] for fleet in problems_first(fleets)]
    return table(COLUMNS[skipped:], rows, width=width, flexible=FLEXIBLE, right=RIGHT)
