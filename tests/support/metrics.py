"""Samples of a page of metrics in Prometheus' text form."""

from __future__ import annotations

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
