"""Recorded results: there, of this code, and made of what was measured."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from bench import java_side, report, throughput
from bench.__main__ import USUAL


def recorded(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((report.RESULTS / f"{name}.json").read_text())
    return result


@pytest.mark.parametrize("name", [name.replace("-", "_") for name in USUAL])
def test_recorded_results_are_of_this_version_and_this_hot_path(name: str) -> None:
    """Record them again with `python -m bench`: the code that they measured has changed."""
    result = recorded(name)
    assert result["versions"]["consumer-fleet"] == version("consumer-fleet")
    assert result["code"] == report.code_digest()
    assert (report.RESULTS / f"{name}.md").exists()


def test_m17_share_of_time_that_waits_for_the_network_is_recorded() -> None:
    result = recorded("poll_wait")
    assert 0 <= result["wait_share"] <= result["poll_share"] <= 1
    assert f"{result['wait_share']:.1%}" in (report.RESULTS / "poll_wait.md").read_text()


def test_lateness_and_the_cost_of_a_hop_are_recorded_with_what_they_were_measured_at() -> None:
    lateness = recorded("lateness")
    assert lateness["versions"]["consumer-fleet"] == version("consumer-fleet")
    assert lateness["waiting"] == 1_000
    ours, mixed = (lateness["sides"][side] for side in ("one-delay", "mixed"))
    assert ours["records"] == lateness["waiting"] * lateness["partitions"]
    assert min(ours["earliest_ms"], mixed["earliest_ms"]) >= 0, "never early"
    assert ours["p50_ms"] <= ours["p99_ms"] < mixed["p99_ms"], "the reason for a topic for each delay"
    assert f"{ours['p99_ms']:,.1f}" in (report.RESULTS / "lateness.md").read_text()
    cost = recorded("hop_cost")
    assert cost["versions"]["consumer-fleet"] == version("consumer-fleet")
    assert list(cost["shares"]) == ["0", "1", "10"]
    assert (report.RESULTS / "hop_cost.md").exists()


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


def test_java_figures_are_read_by_name() -> None:
    printed = (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
        "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "2026-11-21 18:00:00:000, 2026-11-21 18:00:03:000, 976, 300.1, 1000000, 333333.3, 500, 2500, 390.6, 400000.0\n"
    )
    assert java_side.figures(printed)["fetch.time.ms"] == 2500
    with pytest.raises(SystemExit):
        java_side.figures("Error: no broker\n")
