"""Recorded results: there, and made of what was measured; and the check of their age before a release."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from bench import java_side, report, sides, throughput
from bench.__main__ import USUAL
from bench.release_check import stale_results
from fleet_consumer.librdkafka import fetched
from fleet_consumer.record import Record, TopicPartition


def recorded(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((report.RESULTS / f"{name}.json").read_text())
    return result


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"versions": {"consumer-fleet": "0.0.1"}}, ["throughput: recorded with version 0.0.1, this is 1.0"]),
        ({"code": "of-before"}, ["throughput: the code that it measured has changed since"]),
        (None, ["throughput: no result is recorded"]),
    ],
)
def test_release_check_names_results_that_are_not_of_this_version_and_code(
    tmp_path: Path, change: dict[str, Any] | None, said: list[str]
) -> None:
    for name in (each.replace("-", "_") for each in USUAL):
        result: dict[str, Any] = {"versions": {"consumer-fleet": "1.0"}, "code": "of-now"}
        if name == "throughput":
            if change is None:
                continue
            result |= change
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
        (tmp_path / f"{name}.md").touch()
    assert stale_results(tmp_path, "1.0", "of-now") == said


def test_m17_share_of_time_that_waits_for_the_network_is_recorded() -> None:
    result = recorded("poll_wait")
    assert 0 <= result["wait_share"] <= result["poll_share"] <= 1
    assert f"{result['wait_share']:.1%}" in (report.RESULTS / "poll_wait.md").read_text()


def test_lateness_and_retry_publish_cost_are_recorded_with_their_conditions() -> None:
    lateness = recorded("lateness")
    assert lateness["waiting"] == 1_000
    ours, mixed = (lateness["sides"][side] for side in ("one-delay", "mixed"))
    assert ours["records"] == lateness["waiting"] * lateness["partitions"]
    assert min(ours["earliest_ms"], mixed["earliest_ms"]) >= 0, "never early"
    assert ours["p50_ms"] <= ours["p99_ms"] < mixed["p99_ms"], "the reason for a topic for each delay"
    assert f"{ours['p99_ms']:,.1f}" in (report.RESULTS / "lateness.md").read_text()
    cost = recorded("retry_publish_cost")
    assert list(cost["shares"]) == ["0", "1", "10"]
    assert (report.RESULTS / "retry_publish_cost.md").exists()


def test_words_about_the_code_make_no_result_stale_but_code_does(tmp_path: Path) -> None:
    for name in report.HOT_PATH:
        copy = tmp_path / "consumer_image/fleet_consumer" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(report.ROOT / "consumer_image/fleet_consumer" / name, copy)
    assert report.code_digest(tmp_path) == report.code_digest()
    record = tmp_path / "consumer_image/fleet_consumer/record.py"
    record.write_text('"""Other words."""\n# And more.\n' + record.read_text().partition('"""\n')[2])
    assert report.code_digest(tmp_path) == report.code_digest()
    record.write_text(record.read_text() + "\nLATER = 1\n")
    assert report.code_digest(tmp_path) != report.code_digest()


def test_ratios_compare_runs_of_the_same_round() -> None:
    """A slow spell of the machine that meets both sides of a round moves no ratio."""

    def run(speed: float) -> dict[str, float]:
        return {"per_second": speed, "cpu_per_million": 1.0, "peak_mib": 50.0}

    runs = {side: [run(100.0), run(10.0), run(100.0)] for side in throughput.NAMES}
    runs["java"] = [run(50.0) | {"told_per_second": 40.0}]
    runs["fleet"] = [run(90.0), run(9.0), run(50.0)]
    size = throughput.summary(runs, 1_000)
    assert size["ratio"] == pytest.approx(0.9)
    assert size["times_java"] == pytest.approx(1.8)
    assert set(throughput.promises(size).values()) == {True, False}
    assert size["sides"]["fleet"] == {
        "per_second": 50.0,
        "cpu_per_million": 1.0,
        "peak_mib": 50.0,
        "lowest": 9.0,
        "highest": 90.0,
        "runs": 3,
    }


def sides_at(speeds: dict[str, list[float]]) -> throughput.Runs:
    """Runs of all sides, at these speeds or at 100; twice the speed takes half the CPU time."""
    runs: throughput.Runs = {}
    for side in throughput.NAMES:
        runs[side] = [
            {"per_second": speed, "cpu_per_million": 100 / speed, "peak_mib": 50.0, "told_per_second": speed}
            for speed in speeds.get(side, [100.0] * 3)
        ]
    return runs


def test_page_has_the_ratio_of_columns_to_records() -> None:
    runs = sides_at({"batch-columns": [150.0, 16.0, 300.0], "batch-records": [100.0, 10.0, 100.0]})
    size = throughput.summary(runs, 1_000)
    assert size["ratio_columns"] == pytest.approx(1.6)
    assert size["cpu_ratio_columns"] == pytest.approx(0.625)
    text = "\n".join(throughput.page({"sizes": {"100": size}, "partitions": 6}))
    assert "Batches by columns: **1.60** of the records per second" in text
    assert "for 0.62 of its CPU time per record" in text
    for side in throughput.NAMES:
        assert f"| {throughput.NAMES[side]} |" in text


def test_every_row_of_the_page_has_a_side_that_runs() -> None:
    assert {*sides.SIDES, "java"} == set(throughput.NAMES)


def test_columns_are_read_without_a_record_and_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = fetched.fetched_records

    def note(part: TopicPartition, messages: list[Message]) -> list[Record]:
        made.append(len(messages))
        return make(part, messages)

    monkeypatch.setattr(fetched, "fetched_records", note)
    messages = [Message(topic="t", partition=0, offset=offset, value=b"v%d" % offset) for offset in (3, 4, 6)]
    run = fetched.FetchedRun(TopicPartition("t", 0), messages)
    assert sides.columns(run) == ([b"v3", b"v4", b"v6"], [3, 4, 6])
    assert made == []
    assert sides.columns_of_records(run) == sides.columns(run)
    assert made == [3]


def test_java_figures_are_read_by_name() -> None:
    printed = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
        "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "2026-11-21 18:00:00:000, 2026-11-21 18:00:03:000, 976, 300.1, 1000000, 333333.3, 500, 2500, 390.6, 400000.0\n"
    )
    assert java_side.figures(printed)["fetch.time.ms"] == 2500
    with pytest.raises(SystemExit):
        java_side.figures("Error: no broker\n")
