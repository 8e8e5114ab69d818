"""Samples of a metrics page in Prometheus' text format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families


def sample(page: str, name: str, **labels: str) -> float | None:
    """The one sample of this name whose labels include these; None without one."""
    found = samples(page, name, **labels)
    assert len(found) <= 1, f"{name} {labels}: {found}"
    return next((value for _, value in found), None)


def samples(page: str, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    """All samples of this name whose labels include these."""
    return [
        (each.labels, each.value)
        for family in text_string_to_metric_families(page)
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    ]


class Family(NamedTuple):
    """A metric: its type, and the names of its labels."""

    kind: str
    labels: frozenset[str]


def documented(page: str, prefix: str, common: Iterable[str] = ()) -> dict[str, Family]:
    """The metrics in the tables of docs/metrics.md whose names begin with `prefix`; all have the `common` labels."""
    rows = re.findall(rf"^\| `({prefix}\w+)` \| (gauge|counter|histogram) \| (.*?)\| .* \|$", page, re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows}), "a metric is in two rows"
    return {name: Family(kind, frozenset(re.findall(r"`(\w+)`", labels)) | {*common}) for name, kind, labels in rows}


def exported(page: str, prefix: str) -> dict[str, Family]:
    """The metrics of a page that have samples, as Prometheus stores them; `le` is not counted as a label."""
    found: dict[str, Family] = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {frozenset(each.labels) - {"le"} for each in family.samples}
        if name.startswith(prefix) and labels:
            (only,) = labels
            found[name] = Family(family.type, only)
    return found
