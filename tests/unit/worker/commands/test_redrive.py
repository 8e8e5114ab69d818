"""`fleet-consumer redrive` by hand: its settings, its words, and the file of a Job next to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_consumer.contract.pod import EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_consumer.contract.redrive_config import COUNTS, RedriveConfig
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.worker import cli
from fleet_consumer.worker.commands.options import parser
from fleet_consumer.worker.commands.redrive import by_hand, config_of, summary
from tests.unit.redrive.documents import NOW, document

WHERE = ("--group", "orders", "--bootstrap", "127.0.0.1:9")


def config(*words: str) -> RedriveConfig:
    return config_of(parser().parse_args(["redrive", *WHERE, *words]), NOW)


def said(*words: str, **counts: int) -> str:
    return summary(config(*words), {**dict.fromkeys((*COUNTS, "refused"), 0), **counts})


def test_options_are_the_settings_of_a_run_of_its_own() -> None:
    made = config("--rate", "50", "--dry-run", "--reason", "fatal", "--record", "3:17")
    assert (made.group_id, made.records_per_second, made.dry_run) == ("orders", 50, True)
    assert made.filter.reasons == {"fatal"}
    assert made.filter.places == {3: frozenset({17})}
    assert made.id != config().id
    assert (config().records_per_second, config().dry_run, config().filter.places) == (None, False, None)


def test_secured_brokers_are_named_as_for_the_other_commands(tmp_path: Path) -> None:
    made = config("--tls-ca", "ca.pem", "--sasl", "SCRAM-SHA-512", "--credentials", str(tmp_path))
    assert made.brokers.tls is not None
    assert made.brokers.sasl is not None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--bootstrap", "127.0.0.1:9"], "--group: is missing"),
        (["--group", "orders"], "--bootstrap: is missing"),
        (["--dry-run"], "--group: is missing"),
        ([*WHERE, "--from", "noon"], "--from: 'noon' is not a time"),
        ([*WHERE, "--record", "3"], "PARTITION:OFFSET: is '3'"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["redrive", *words]) == EXIT_SETTINGS
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["ok"] is False
    assert result["message"].startswith(problem)


@pytest.mark.parametrize("words", [("--dry-run",), ("--rate", "1"), ("--record", "0:1"), ("--tls-ca", "x"), WHERE])
def test_options_next_to_a_file_are_refused_and_not_ignored(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "redrive.json"
    file.write_text(json.dumps(document()))
    with pytest.raises(SettingsInvalid, match="cannot be combined with other options"):
        by_hand(parser().parse_args(["redrive", "--config", str(file), *words]))
    assert not by_hand(parser().parse_args(["redrive", "--config", str(file)]))
    assert not by_hand(parser().parse_args(["redrive"])), "as a Job"


@pytest.mark.parametrize(
    ("properties", "code", "reason"),
    [
        ({"acks": "0"}, EXIT_SETTINGS, "PropertyNotAllowed"),
        ({"batch.size": "huge"}, EXIT_SURROUNDINGS, "SettingsRefused"),
    ],
)
def test_properties_of_the_producer_that_cannot_be_used_are_named(
    properties: dict[str, str], code: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "redrive.json"
    file.write_text(json.dumps(document(producer={"properties": properties})))
    assert cli.main(["redrive", "--config", str(file)]) == code
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["reason"] == reason
    assert next(iter(properties)) in result["message"]


def test_summary_says_what_was_done_and_what_was_left() -> None:
    assert said(selected=3, moved=3) == "3 records put back; the retry workers of group 'orders' handle them"
    assert said("--dry-run", selected=3) == "3 records would be put back"
    assert said(movedBefore=2, guarded=1) == (
        "0 records put back; 2 put back before; 1 already put back 3 times, and left in the failed topic"
    )
    assert "`fleet-consumer failed count` with the same options" in said()
    assert "1 too large for the redrive topic" in said(selected=2, moved=1, refused=1)
