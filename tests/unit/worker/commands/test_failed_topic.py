"""The failed topic of the commands by hand: that of the group, or the one that `--topic` names."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from fleet_consumer.contract.pod import EXIT_OK, EXIT_SETTINGS, EXIT_SURROUNDINGS
from fleet_consumer.contract.redrive_config import COUNTS, RedriveConfig
from fleet_consumer.worker import cli
from fleet_consumer.worker.commands import failed, redrive
from fleet_consumer.worker.commands.options import parser
from tests.unit.worker.commands.brokers import PARTITION, Brokers

BOOTSTRAP = ("--bootstrap", "127.0.0.1:9")
WHERE = ("--group", "orders", *BOOTSTRAP)
COMMANDS = (
    ("failed", "count"),
    ("failed", "list"),
    ("failed", "show", "0:1"),
    ("redrive",),
    ("redrive", "--dry-run"),
    ("skip", "orders-3:17"),
)
SOURCES: Mapping[str, int] = {"orders": 4, "_fleet.orders.redrive": 2}

every_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch, topics={**SOURCES, "orders-broken": 4})


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """All that a command says which ends with 21."""
    assert cli.main(words) == EXIT_SURROUNDINGS
    out, err = capsys.readouterr()
    if words[0] == "redrive":
        assert json.loads(out.splitlines()[-1])["ok"] is False
    return out + err


@every_command
def test_missing_default_topic_is_no_answer_of_nothing(
    words: tuple[str, ...], brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *words, *WHERE)
    assert "TopicMissing" in said
    assert "topic _fleet.orders.failed does not exist" in said
    assert (
        "a group without failed records may have no failed topic; if the group uses another topic, name it with --topic"
        in said
    )
    assert "in all" not in said, "no count of what was not examined"
    assert brokers.coordinator.commits == 0


@every_command
def test_wrong_group_is_told_with_the_names_that_are_like_it(
    words: tuple[str, ...], brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *words, "--group", "oders", *BOOTSTRAP)
    assert "topic _fleet.oders.failed does not exist" in said
    assert "Kafka has no group 'oders'" in said
    assert "such as 'orders'" in said


@every_command
def test_missing_topic_that_was_named_is_told_alone(
    words: tuple[str, ...], brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *words, *WHERE, "--topic", "orders-brokn")
    assert "topic orders-brokn does not exist" in said
    assert "--topic" not in said


def test_named_topic_is_inspected() -> None:
    for words in (WHERE, BOOTSTRAP):
        options = parser().parse_args(["failed", "count", "--topic", "orders-broken", *words])
        assert failed._where(options)[1] == "orders-broken"


def test_records_of_the_named_topic_are_put_back(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def run(config: RedriveConfig, topic: str, _stop: threading.Event) -> Mapping[str, Any]:
        read.append(topic)
        return {**dict.fromkeys((*COUNTS, "refused"), 0), "selected": 1, "moved": config.partitions}

    monkeypatch.setattr(redrive, "_run", run)
    monkeypatch.setattr(redrive, "_stop_on_signals", lambda _: None)
    assert cli.main(["redrive", *WHERE, "--topic", "orders-broken"]) == EXIT_OK
    assert read == ["orders-broken"]


def test_skipped_record_is_written_to_the_named_topic(brokers: Brokers) -> None:
    assert cli.main(["skip", "orders-3:17", *WHERE, "--topic", "orders-broken"]) == EXIT_OK
    assert brokers.written == [("orders-broken", b"17")]
    assert brokers.coordinator.offsets[PARTITION].offset == 18


def test_skipped_record_is_not_written_to_its_own_topic(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["skip", "orders-3:17", *WHERE, "--topic", "orders"]) == EXIT_SETTINGS
    assert "--topic: is the record's own topic" in capsys.readouterr().err
    assert (brokers.written, brokers.coordinator.commits) == ([], 0)
