"""docs/sizing.md: its tables are those of the recorded results, and its figures in sentences equal them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from bench.broker_cost import for_each
from bench.broker_cost import page as broker_page
from bench.report import RESULTS, ROOT
from bench.sizing import FETCH_WAIT_MS, Group, defaults, example_table, lines, result, tables
from fleet_consumer.contract import policies
from fleet_operator.observe import batches, observer_pool

PAGE = (ROOT / "docs" / "sizing.md").read_text()


def section(title: str) -> str:
    (text,) = [part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if part.startswith(f"{title}\n")]
    return text


@pytest.mark.parametrize("name", tables())
def test_table_of_the_page_is_that_of_the_results(name: str) -> None:
    assert f"\n\n{tables()[name]}\n\n" in PAGE, f"python -m bench.sizing prints the table {name!r} for docs/sizing.md"


def test_page_of_broker_costs_is_made_of_the_recorded_figures() -> None:
    recorded = result("broker_cost")
    assert recorded["for_each"] == for_each(recorded["rows"])
    assert (RESULTS / "broker_cost.md").read_text().startswith("\n".join(broker_page(recorded)))


def test_partitions_of_a_group_are_its_delays_and_two_more_topics() -> None:
    assert Group(partitions=6, managed_partitions=6, delays=3).added == 30
    assert Group(managed_partitions=1).added == 5
    text = section("Topics and partitions")
    assert "three distinct delays, a group adds 30 partitions" in text
    assert "`managedTopics: {partitions: 1}`, it adds 5" in text


def test_costs_of_the_example_grow_with_groups_and_with_workers() -> None:
    """The calculation, on numbers that can be checked by hand."""
    two, four = ({row[0]: row[1:] for row in example_table(Group(workers=workers))} for workers in (2, 4))
    assert two["Partitions that the groups add"] == ["1,500", "15,000", "150,000"]
    assert two["Workers"] == ["100", "1,000", "10,000"]
    assert four["Workers"] == ["200", "2,000", "20,000"]
    assert four["Open files of each broker"] == two["Open files of each broker"]
    assert list(lines([["a", "b"], ["c", "1"]])) == ["| a | b |", "|---|---:|", "| c | 1 |"]


def test_rates_are_those_of_the_defaults() -> None:
    every, text = defaults(), section("Requests")
    assert f"one in {every['heartbeat']} s (`spec.consumer.classic.heartbeatIntervalSeconds`)" in text
    assert f"one in {every['commit']} s (`spec.consumer.commitIntervalSeconds`)" in text
    assert f"every {every['poll']} s (`observeIntervalSeconds`)" in text
    assert f"up to {batches.GROUPS_PER_REQUEST_MAX} groups or {batches.PARTITIONS_PER_REQUEST_MAX:,} partitions" in text
    assert 1_000 / FETCH_WAIT_MS == 2
    assert "two a second while no records arrive" in text


def test_figures_in_sentences_are_the_recorded_ones() -> None:
    slow, waiting = result("operator_slow"), result("waiting_memory")
    partitions = slow["partitions of the operator's topics"]
    text = section("Requests")
    assert f"{slow['groups']:,} groups and {partitions:,} partitions" in text
    assert f"99 % of its polls took at most {slow['polls: seconds at p99, at most']} s" in text
    workers = section("Workers")
    held = f"{waiting['partitions']} partitions and {waiting['waiting_mib']:.0f} MiB of waiting records"
    assert f"{held} reached {waiting['figures']['32']['peak_mib']:.0f} MiB" in workers
    every_field = result("throughput")["sizes"]["1024"]["sides"]["fleet-reads"]["per_second"]
    assert f"{every_field:,.0f} records of 1 KiB a second" in workers
    pods = (ROOT / "docs" / "pods.md").read_text()
    assert "A worker requests 50m of CPU and 128Mi of memory" in workers
    assert "requests 50m of `cpu` and 128Mi of `memory`" in pods
    assert "An idle worker needs 43 MiB and 7m of CPU" in workers
    assert "| no records (idle) | 43 MiB | |" in pods
    assert "An idle worker uses about 7m of `cpu`" in pods


def test_limit_of_the_operators_memory_is_enough_for_what_the_page_says() -> None:
    limit = yaml.safe_load((ROOT / "charts/consumer-fleet/values.yaml").read_text())["operator"]["resources"]["limits"]
    assert limit["memory"] == "512Mi"
    peaks: dict[int, float] = {}
    for size in result("operator")["sizes"]:
        rss = max(size["peak_mib"], size["moving"]["rss_mib"], size["idle"]["rss_mib"])
        peaks[size["groups"]] = max(rss, peaks.get(size["groups"], 0.0))
    assert peaks[1_000] < 512 < peaks[5_000] < 1_024
    (largest,) = [size for size in result("operator")["sizes"] if size["groups"] == 5_000]
    spent = f"{largest['children_cpu_s']:.0f} s of CPU time in {largest['children_s']:.0f} s"
    assert spent in section("The operator")


def test_operator_writes_nothing_while_nothing_moves() -> None:
    idle: list[Any] = [size["idle"]["writes"] for size in result("operator")["sizes"]]
    assert len(idle) >= 3
    assert set(idle) == {0.0}


def test_limits_are_those_of_the_code() -> None:
    text = section("Limits")
    assert f"| {observer_pool.OBSERVERS_MAX} for one operator" in text
    assert f"{observer_pool.OBSERVERS_PER_NAMESPACE_MAX} for one namespace |" in text
    assert f"| distinct delays of a RetryPolicy | {policies.DELAYS_MAX} |" in text
    assert f"| partitions of one commit request | {batches.COMMIT_PARTITIONS_MAX:,};" in text
    assert max(size["groups"] for size in result("operator")["sizes"]) == 5_000
