"""The command `python -m bench.simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.simulate.__main__ import EXIT_INPUT, EXIT_OK, main
from bench.simulate.cases import SEED, all_cases

STEPS = ["--steps", "300:50,300:300", "--partitions", "6", "--capacity", "60"]


def test_table_has_all_rules_and_the_oracle_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STEPS, "--lag-threshold", "500"]) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert f"seed {SEED}" in lines[1]
    assert [line.split()[0] for line in lines[2:]] == ["rule", "fleet", "keda/500", "keda/10", "flink", "oracle"]
    assert lines[2].endswith("lag is")


def test_steps_are_printed_with_their_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STEPS, "--steps-taken"]) == EXIT_OK
    assert "1 -> 6    arrival" in capsys.readouterr().out


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*STEPS, "--json", "--poll-seconds", "10", "--commit-seconds", "4", "--assignor", "range"]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)
    case = found["cases"][0]
    assert (found["seed"], case["pollSeconds"], case["commitSeconds"], case["assignor"]) == (SEED, 10, 4, "range")
    assert case["rules"]["fleet"]["steps"][0]["to"] == 6
    assert case["rules"]["keda/600"]["rebalances"] >= 1
    assert case["rules"]["oracle"]["verdict"] == "bounded"


def test_plot_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        assert main(["--steps", "60:50", "--capacity", "60", "--plot", str(tmp_path / name)]) == EXIT_OK
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_list_says_what_each_case_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == EXIT_OK
    out = capsys.readouterr().out
    assert all(case.name in out and case.shows in out for case in all_cases(SEED))


def test_case_is_replayed_with_other_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "benchmark-steps", "--start", "2", "--max-replicas", "4", "--json"]) == EXIT_OK
    case = json.loads(capsys.readouterr().out)["cases"][0]
    assert (case["name"], case["start"], case["scaling"]) == ("benchmark-steps", 2, {"maxReplicas": 4})
    assert max(rule["mostPods"] for rule in case["rules"].values()) <= 4


def test_file_with_columns_of_workers_and_partitions_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "warm.csv"
    shares = ("0.5", "0.25", "0.25")
    lines = [f"{at},100,{capacity},1000,{','.join(shares)}" for at, capacity in ((0, 60), (300, 120), (600, 120))]
    file.write_text("\n".join(("time,rate,capacity,downstream,partition_0,partition_1,partition_2", *lines)))
    assert main(["--curves", str(file), "--json"]) == EXIT_OK
    case = json.loads(capsys.readouterr().out)["cases"][0]
    assert (case["name"], case["partitions"], case["seconds"]) == ("warm.csv", 3, 600)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--curves", "/does/not/exist.csv", "--capacity", "5"], "cannot be read"),
        (["--steps", "600", "--capacity", "5"], "is no step"),
        (["--steps", "600:5"], "either --capacity or --record-seconds"),
        (["--steps", "600:5", "--capacity", "5", "--record-seconds", "1"], "either --capacity or --record-seconds"),
        ([*STEPS, "--min-replicas", "-1"], "--min-replicas: "),
        ([*STEPS, "--min-replicas", "7"], "--min-replicas: 7 is more than the 6 workers"),
        ([*STEPS, "--catch-up-seconds", "0"], "--catch-up-seconds: "),
        ([*STEPS, "--stuck", "12@3"], "--stuck: there is no partition 12"),
        ([*STEPS, "--outage", "90000-90100"], "--outage: 90000-90100 begins after"),
        ([*STEPS, "--assignor", "fair"], "fair"),
        (["--case", "nothing"], "--case: there is no case 'nothing'; --list prints all of them"),
        (["--case", "step", "--partitions", "3"], "--partitions: a case has its own"),
        (["--case", "step", "--case", "ramp", "--plot", "x.svg"], "--plot draws one curve, and 2 are given"),
    ],
)
def test_wrong_input_ends_with_a_message(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == EXIT_INPUT
    error = capsys.readouterr().err
    assert error.startswith("python -m bench.simulate: ")
    assert says in error


def test_option_that_the_file_has_a_column_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "curve.csv"
    file.write_text("time,rate,capacity\n0,1,2\n60,1,2\n")
    assert main(["--curves", str(file), "--capacity", "5"]) == EXIT_INPUT
    assert "--capacity: the file has a column for it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [*STEPS, "--hot", "2"],
        [*STEPS, "--stuck", "3"],
        [*STEPS, "--outage", "9-3"],
        [*STEPS, "--start", "-1"],
        [*STEPS, "--start-seconds", "nan"],
        [*STEPS, "--case", "step"],
        ["--capacity", "5"],
        ["--steps", "1:1", "--capacity", "0"],
    ],
)
def test_wrong_options_end_as_argparse_does(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == EXIT_INPUT
