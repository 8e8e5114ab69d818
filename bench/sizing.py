"""The tables of docs/sizing.md, from recorded results and the defaults of the CRDs: `python -m bench.sizing`.

Figures of brokers for other numbers of partitions are calculated from the growth for each partition.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import yaml

from bench.report import RESULTS, ROOT
from fleet_operator.planning.fleet.pod_template import DEFAULT_RESOURCES

BROKERS: Final = 3
FETCH_WAIT_MS: Final = 500
"""librdkafka's default of `fetch.wait.max.ms`: an idle broker answers each fetch after this time."""
EXAMPLES: Final = (50, 500, 5_000)
Table = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the worked example: partitions of its source and of each managed topic, distinct delays, workers."""

    partitions: int = 6
    managed_partitions: int = 6
    delays: int = 3
    workers: int = 2
    replicas: int = 3

    @property
    def added(self) -> int:
        """Partitions that a group adds, without replicas: of retry topics, the redrive topic and the failed topic."""
        return self.managed_partitions * (self.delays + 2)


@cache
def result(name: str) -> Any:
    """A recorded result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


@cache
def defaults() -> Mapping[str, int]:
    """Seconds between heartbeats, commits and polls, from the CRDs."""
    properties = _schema("consumergroups")["spec"]["properties"]["consumer"]["properties"]
    classic = properties["classic"]["properties"]
    polls = _schema("kafkaclusters")["spec"]["properties"]["observeIntervalSeconds"]
    return {
        "heartbeat": classic["heartbeatIntervalSeconds"]["default"],
        "commit": properties["commitIntervalSeconds"]["default"],
        "poll": polls["default"],
    }


def _schema(kind: str) -> Any:
    (version,) = yaml.safe_load((ROOT / "crds" / f"consumerfleet.io_{kind}.yaml").read_text())["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]


def broker_table() -> Table:
    """Cost of partition replicas for a broker, as measured."""
    found = result("broker_cost")
    rows = [[f"{row['partitions']:,}", *_broker(row)] for row in found["rows"]]
    each = found["for_each"]
    per = [f"{each['open_files']:.0f}", f"{each['maps']:.0f}"]
    per += [f"{each[name] * 1024:.0f} KiB" for name in ("heap_mib", "rss_mib", "disk_mib")]
    head = ["Partition replicas", "Open files", "Memory maps", "Used heap", "Resident memory", "Disk"]
    return [head, *rows, ["for each", *per]]


def _broker(row: Mapping[str, float]) -> list[str]:
    sizes = [f"{row[name]:.0f} MiB" for name in ("heap_mib", "rss_mib", "disk_mib")]
    return [f"{row['open_files']:,}", f"{row['maps']:,}", *sizes]


def operator_table() -> Table:
    """CPU, memory and requests of the operator by number of groups, as measured."""
    head = ["Groups", "Cores, at rest", "Cores, commits move", "Memory, peak", "Requests/s", "All pods", "Restart"]
    rows = []
    for each in result("operator")["sizes"]:
        idle, moving = each["idle"], each["moving"]
        rows.append(
            [
                f"{each['groups']:,}{', scaled' if each['scaled'] else ''}",
                f"{idle['cores']:.3f}",
                f"{moving['cores']:.3f}",
                f"{_peak(each):.0f} MiB",
                f"{idle['requests_per_s']:.1f} to {moving['requests_per_s']:.1f}",
                f"{each['children_s']:.0f} s",
                f"{each['restart']['ready_s']:.1f} s",
            ]
        )
    return [head, *rows]


def _peak(size: Mapping[str, Any]) -> float:
    resident = (size["idle"]["rss_mib"], size["moving"]["rss_mib"], size["restart"]["peak_mib"])
    return float(max(size["peak_mib"], *resident))


def writes_table() -> Table:
    """Requests to the API server for each new group, as measured."""
    head = ["Groups", "Requests for each", "Writes for each", "Of these, statuses"]
    rows = []
    for each in result("operator")["sizes"]:
        names = ("children_requests", "children_writes", "children_status_writes")
        counts = [f"{each[name] / each['groups']:.1f}" for name in names]
        rows.append([f"{each['groups']:,}{', scaled' if each['scaled'] else ''}", *counts])
    return [head, *rows]


def example_table(group: Group) -> Table:
    """The cost of fleets of the same shape, by their number."""
    each, every = result("broker_cost")["for_each"], defaults()
    requests = DEFAULT_RESOURCES["requests"]
    worker_mib, worker_m = int(requests["memory"].removesuffix("Mi")), int(requests["cpu"].removesuffix("m"))
    rows: dict[str, list[str]] = {}
    for count in EXAMPLES:
        replicas = math.ceil(count * group.added * group.replicas / BROKERS)
        workers = count * group.workers
        cells = {
            "Partitions that the groups add": f"{count * group.added:,}",
            "Their replicas on each broker": f"{replicas:,}",
            "Open files of each broker": f"{replicas * round(each['open_files']):,}",
            "Memory maps of each broker": f"{replicas * round(each['maps']):,}",
            "Used heap of each broker": f"{replicas * each['heap_mib']:,.0f} MiB",
            "Workers": f"{workers:,}",
            "Heartbeats/s": f"{workers / every['heartbeat']:,.0f}",
            "Commits/s, while records arrive": f"{workers / every['commit']:,.0f}",
            "Fetches/s for each broker, at rest": f"{workers * 1_000 / FETCH_WAIT_MS:,.0f}",
            "Requested memory of the workers": f"{workers * worker_mib / 1024:,.1f} GiB",
            "Requested CPU of the workers": f"{workers * worker_m / 1_000:,.0f} cores",
        }
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    return [["Groups", *(f"{count:,}" for count in EXAMPLES)], *([name, *cells] for name, cells in rows.items())]


def lines(table: Table) -> Iterator[str]:
    """The table in Markdown."""
    head, *rows = table
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def tables() -> dict[str, str]:
    """All tables of the page, by title."""
    made = {
        "brokers": broker_table(),
        "operator": operator_table(),
        "API server": writes_table(),
        "example": example_table(Group()),
        "example with one partition": example_table(Group(managed_partitions=1))[:6],
    }
    return {title: "\n".join(lines(table)) for title, table in made.items()}


if __name__ == "__main__":
    for title, text in tables().items():
        print(f"{title}\n\n{text}\n")
