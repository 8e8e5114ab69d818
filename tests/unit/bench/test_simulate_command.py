"""The command `python -m bench.simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.simulate.__main__ import EXIT_INPUT, EXIT_OK, main
from bench.simulate.curves import CurveInvalid, parse_steps, read_csv

STEPS = ["--steps", "300:50,300:300", "--partitions", "6", "--capacity", "60"]


def test_steps_and_figures_of_both_rules_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STEPS, "--lag-threshold", "500"]) == EXIT_OK
    out = capsys.readouterr().out
    assert "fleet: 1 steps" in out
    assert "1 -> 6" in out
    assert "lag/500" in out
    assert "pod-seconds" in out


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STEPS, "--json"]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)
    assert found["fleet"]["steps"][0]["to"] == 6
    assert found["lag/600"]["rebalances"] >= 1


def test_plot_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        assert main([*STEPS, "--plot", str(tmp_path / name)]) == EXIT_OK
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_recorded_curve_begins_at_any_time(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    file.write_text("\ufeffseconds,topic,records_per_second\n1800000000,a,50\n1800000300,a,300.5\n1800000600,a,0\n")
    curve = read_csv(file)
    assert (curve(0), curve(299), curve(300), curve(599), curve.seconds) == (50, 50, 300.5, 300.5, 600)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "must name the columns seconds and records_per_second; it has none"),
        ("seconds,rate\n1,2\n", "it has seconds, rate"),
        ("seconds,records_per_second\n1,2\n", "needs two lines at least"),
        ("seconds,records_per_second\n1,2\n1,3\n", "line 3: times must rise"),
        ("seconds,records_per_second\n1,2\n2,-3\n", "line 3: -3 records a second is no rate"),
        ("seconds,records_per_second\n1,2\n2,many\n", "line 3, records_per_second: 'many' is no number"),
        ("seconds,records_per_second\n1,2\n2,nan\n", "'nan' is no number"),
        ("seconds,records_per_second\n1,2\n2\n", "records_per_second: None is no number"),
    ],
)
def test_file_that_is_no_curve_is_refused_with_the_place(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(content)
    with pytest.raises(CurveInvalid, match=says.replace("(", r"\(")):
        read_csv(file)


@pytest.mark.parametrize("text", ["600", "0:5", "-3:5", "5:-1", "5:x", ""])
def test_steps_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CurveInvalid):
        parse_steps(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--curve", "/does/not/exist.csv", "--capacity", "5"],
        ["--steps", "600", "--capacity", "5"],
        [*STEPS, "--min-replicas", "-1"],
        [*STEPS, "--catch-up-seconds", "0"],
        [*STEPS, "--stuck", "12@3"],
        [*STEPS, "--outage", "90000-90100"],
    ],
)
def test_wrong_input_ends_with_a_message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == EXIT_INPUT
    assert capsys.readouterr().err.startswith("python -m bench.simulate: ")


@pytest.mark.parametrize(
    "arguments",
    [
        [*STEPS, "--hot", "2"],
        [*STEPS, "--stuck", "3"],
        [*STEPS, "--outage", "9-3"],
        [*STEPS, "--start", "-1"],
        ["--capacity", "5"],
        ["--steps", "1:1", "--capacity", "0"],
    ],
)
def test_wrong_options_end_as_argparse_does(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == EXIT_INPUT
