"""`status.retry.failedReasons`: the most frequent reasons and error classes of failed records.

Workers count since their process began, and only those that answer are included. The status therefore shows a lower
bound that does not fall when workers restart or do not answer; it ends when the failed topic is known to be empty.
Kinds that running workers report come first, so that old ones never hide new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fleet_operator.planning.lag import lag_bucket
from fleet_operator.planning.observation import WorkerObservation

SHOWN_MAX: Final = 5

Kind = tuple[str, str]


def failed_reasons(
    workers: Iterable[WorkerObservation], failed: int | None, previous: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The entries of `status.retry.failedReasons`. `failed` is what the failed topic holds, None while unknown."""
    if failed == 0:
        return []
    reported: Counter[Kind] = Counter()
    for worker in workers:
        reported.update({kind: count for kind, count in worker.failed.items() if count > 0})
    before = {_kind(entry): _records(entry) for entry in previous}
    shown = {kind: _steady(count, before.get(kind)) for kind, count in reported.items()}
    # Sorted by the shown counts: by exact ones, equally frequent kinds would change places all the time.
    first = sorted(shown, key=lambda kind: (-shown[kind], kind))[:SHOWN_MAX]
    rest = sorted((kind for kind in before if kind not in shown), key=lambda kind: (-before[kind], kind))
    shown |= {kind: before[kind] for kind in rest}
    return [_entry(kind, shown[kind]) for kind in [*first, *rest][:SHOWN_MAX]]


def _steady(count: int, before: int | None) -> int:
    """The step to show, never lower than before: workers count from zero after a restart. It needs no hysteresis, which
    could keep a shown kind a step below one that is not shown."""
    return max(lag_bucket(count), before or 0)


def _entry(kind: Kind, records: int) -> dict[str, Any]:
    reason, error_class = kind
    return {"reason": reason, **({"errorClass": error_class} if error_class else {}), "records": records}


def _kind(entry: Mapping[str, Any]) -> Kind:
    return str(entry.get("reason") or ""), str(entry.get("errorClass") or "")


def _records(entry: Mapping[str, Any]) -> int:
    records = entry.get("records")
    return records if isinstance(records, int) and not isinstance(records, bool) and records > 0 else 0
