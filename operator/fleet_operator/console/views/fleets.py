"""The list of fleets: one row for each ConsumerGroup, filtered, sorted and divided into pages."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, cast, get_args

from fleet_operator.api.v1alpha1 import conditions, refs
from fleet_operator.planning.lag import UNKNOWN_TEXT, lag_text
from fleet_operator.planning.observation import UNKNOWN_STATE

PAGE_ROWS: Final = 100
"""Maximum number of rows on one page. A browser lays out this many rows in milliseconds; thousands of rows would freeze
the browser at each change."""
TEXT_CHARACTERS_MAX: Final = 253
"""Maximum length of a filter text. It is also the maximum length of a Kubernetes object name."""
PAGES_MAX: Final = 100_000

Key = tuple[str, str]
Show = Literal["all", "trouble", "failed"]


class Health(IntEnum):
    """Health of a fleet. The list is sorted by this number first, so fleets with problems come first."""

    BAD = 0
    ATTENTION = 1
    GOOD = 2

    @property
    def word(self) -> str:
        return ("Not ready", "Attention", "Ready")[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """One ConsumerGroup. `lag`, `behind` and `waiting` are rounded, as in the status. `arrival` (records per second)
    and `raw` (workers that the load needs) are None if no scaling decision by load has been made."""

    namespace: str
    name: str
    group_id: str
    health: Health
    reason: str
    state: str
    members: int | None
    ready: int | None
    target: int | None
    lag: str
    lag_records: int | None
    behind: str
    failed: int | None
    waiting: str
    retried: bool
    scaled: bool
    arrival: float | None
    raw: float | None

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def mood(self) -> str:
        return self.health.name.lower()

    @property
    def word(self) -> str:
        return self.health.word

    @property
    def sort_key(self) -> tuple[int, str, str]:
        return int(self.health), self.namespace, self.name

    def has(self, text: str) -> bool:
        return text in f"{self.namespace}/{self.name} {self.group_id}".lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """The filter of the list. An empty `namespace` means all namespaces that the viewer may read."""

    text: str = ""
    namespace: str = ""
    show: Show = "all"
    page: int = 1


def read_query(fields: Mapping[str, str]) -> ListQuery:
    """Read a filter from the query parameters of a URL. Invalid values are replaced by defaults."""
    show = fields.get("show", "all")
    page = fields.get("page", "1")
    return ListQuery(
        text=fields.get("q", "").strip().lower()[:TEXT_CHARACTERS_MAX],
        namespace=fields.get("namespace", "").strip()[:TEXT_CHARACTERS_MAX],
        show=cast("Show", show) if show in get_args(Show) else "all",
        page=min(int(page), PAGES_MAX) if page.isascii() and page.isdigit() and len(page) <= 6 and int(page) else 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetList:
    """One page of the list.

    - `total`: number of fleets that the viewer may read; `matched`: number of those that the filter selects.
    - `failed`: sum of the known numbers of failed records. `failed_complete`: True if every fleet with retries reports
      this number.
    - `states`: number of matched fleets by the state of their Kafka group.
    """

    rows: tuple[FleetRow, ...]
    total: int
    matched: int
    bad: int
    attention: int
    failed: int
    failed_complete: bool
    states: tuple[tuple[str, int], ...]
    page: int
    pages: int

    @property
    def good(self) -> int:
        return self.matched - self.bad - self.attention


def fleet_row(body: Mapping[str, Any]) -> FleetRow:
    """Build the row of a ConsumerGroup from its cached object."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    ready = conditions.find_condition(status.get("conditions") or (), conditions.READY) or {}
    degraded = conditions.find_condition(status.get("conditions") or (), conditions.DEGRADED) or {}
    retry, scaling = status.get("retry") or {}, status.get("scaling") or {}
    lag, waiting = status.get("lagApproximate"), retry.get("waiting")
    return FleetRow(
        namespace=metadata["namespace"],
        name=metadata["name"],
        group_id=refs.group_id_of(dict(body)),
        health=_health(ready, degraded, retry),
        reason=str((degraded if degraded.get("status") == "True" else ready).get("reason") or "NotYetReconciled"),
        state=str(status.get("state") or UNKNOWN_STATE),
        members=status.get("memberCount"),
        ready=status.get("readyReplicas"),
        target=status.get("targetReplicas"),
        lag=UNKNOWN_TEXT if lag is None else lag_text(lag),
        lag_records=lag,
        behind=str(status.get("behindText") or UNKNOWN_TEXT),
        failed=retry.get("failed"),
        waiting="" if waiting is None else lag_text(waiting),
        retried="retry" in spec,
        scaled="scaling" in spec,
        arrival=number(scaling.get("arrivalPerSecond")),
        raw=number(scaling.get("rawReplicas")),
    )


def _health(ready: Mapping[str, Any], degraded: Mapping[str, Any], retry: Mapping[str, Any]) -> Health:
    if ready.get("status") == "False" or degraded.get("status") == "True":
        return Health.BAD
    if ready.get("status") != "True" or retry.get("failed"):
        return Health.ATTENTION
    return Health.GOOD


def number(text: object) -> float | None:
    """Parse a decimal number of a status, which people may have edited. None if the value is absent, invalid, negative
    or not finite."""
    try:
        value = float(cast("str", text)) if text is not None else -1.0
    except (TypeError, ValueError):
        return None
    return value if 0.0 <= value < float("inf") else None


def in_order(rows: Iterable[FleetRow]) -> list[FleetRow]:
    """Sort rows by health, then namespace, then name."""
    return sorted(rows, key=lambda row: row.sort_key)


def fleet_list(rows: Iterable[FleetRow], query: ListQuery, namespaces: Collection[str] | None) -> FleetList:
    """The page of the list that `query` selects. `rows` must be sorted (`in_order`). `namespaces`: those that the
    viewer may read; None for all."""
    readable = [row for row in rows if namespaces is None or row.namespace in namespaces]
    found = [row for row in readable if _selects(query, row)]
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(query.page, pages)
    return FleetList(
        rows=tuple(found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]),
        total=len(readable),
        matched=len(found),
        bad=sum(row.health is Health.BAD for row in found),
        attention=sum(row.health is Health.ATTENTION for row in found),
        failed=sum(row.failed for row in found if row.failed is not None),
        failed_complete=all(row.failed is not None for row in found if row.retried),
        states=tuple(sorted(Counter(row.state for row in found).items())),
        page=page,
        pages=pages,
    )


def _selects(query: ListQuery, row: FleetRow) -> bool:
    if query.namespace and row.namespace != query.namespace:
        return False
    if query.show == "trouble" and row.health is not Health.BAD:
        return False
    if query.show == "failed" and not row.failed:
        return False
    return not query.text or row.has(query.text)
