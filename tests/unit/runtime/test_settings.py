"""Flags win over the environment, the environment over defaults; nonsense is refused with a message."""

from __future__ import annotations

import re

import pytest

from fleet_operator.runtime.settings import parse


def test_defaults_serve_all_namespaces_without_a_lease() -> None:
    settings = parse(["run"], {})
    assert (settings.namespaces, settings.leader_elect, settings.log_format) == ((), False, "json")


def test_flag_wins_over_environment() -> None:
    environ = {"FLEET_METRICS_PORT": "1111", "FLEET_NAMESPACE": "a, b", "FLEET_LEADER_ELECT": "true"}
    assert parse(["run"], environ).metrics_port == 1111
    assert parse(["run"], environ).namespaces == ("a", "b")
    assert parse(["run"], environ).leader_elect
    settings = parse(["run", "--metrics-port", "2222", "--namespace", "c", "--leader-elect=false"], environ)
    assert (settings.metrics_port, settings.namespaces, settings.leader_elect) == (2222, ("c",), False)


def test_upgrades_come_in_waves_only_where_asked_for() -> None:
    assert parse(["run"], {}).max_concurrent_rollouts == 0
    assert parse(["run", "--max-concurrent-rollouts", "5"], {}).max_concurrent_rollouts == 5
    assert parse(["run"], {"FLEET_MAX_CONCURRENT_ROLLOUTS": "7"}).max_concurrent_rollouts == 7


def test_bare_leader_elect_means_yes() -> None:
    assert parse(["run", "--leader-elect"], {}).leader_elect


@pytest.mark.parametrize(
    "arguments",
    [
        ["--metrics-port", "70000"],
        ["--workers", "0"],
        ["--max-concurrent-rollouts", "-1"],
        ["--resync-seconds", "-1"],
        ["--leader-elect=perhaps"],
        ["--x"],
    ],
)
def test_invalid_flags_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["run", *arguments], {})
    assert caught.value.code == 2
    assert arguments[0].split("=")[0] in capsys.readouterr().err


def test_invalid_environment_is_refused_too() -> None:
    with pytest.raises(SystemExit):
        parse(["run"], {"FLEET_WORKERS": "many"})


def test_every_flag_tells_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", "--help"], {})
    options = capsys.readouterr().out.split("options:")[1]
    flags = re.split(r"^  (?=--)", options, flags=re.MULTILINE)[1:]
    assert len(flags) >= 17
    assert [flag.split()[0] for flag in flags if "default:" not in flag] == []
