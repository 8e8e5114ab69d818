"""Objects that `redrive` and `reset` create, and the same filters for `fleet-consumer failed`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fleet_consumer.worker.commands.options import parser as worker_parser
from fleet_kubectl.errors import OptionInvalid
from fleet_kubectl.options import parser
from fleet_kubectl.selection import class_regex, failed_arguments, failed_command, redrive_body, reset_body
from fleet_operator.planning.times import to_text
from tests.unit.plugin.fleets import NOW


def redrive(*words: str, dry_run: bool = False) -> dict[str, Any]:
    return redrive_body(parser().parse_args(["redrive", "orders", *words]), NOW, dry_run=dry_run)


def reset(*words: str, dry_run: bool = False) -> dict[str, Any]:
    return reset_body(parser().parse_args(["reset", "orders", *words]), NOW, dry_run=dry_run)


def test_redrive_has_the_filters_of_the_options() -> None:
    body = redrive(
        *("--reason", "exhausted", "--reason", "Fatal", "--from", "2h", "--to", "2027-01-15T08:00:00Z"),
        *("--error-class", "ValueError", "--key-regex", "^a", "--rate", "50", "--max-records", "10", "--name", "fixed"),
    )
    assert body["metadata"] == {"name": "fixed"}
    assert body["spec"] == {
        "groupRef": {"name": "orders"},
        "filter": {
            "reasons": ["Exhausted", "Fatal"],
            "errorRegex": r"^(?:[^:]*\.)?(?:ValueError): ",
            "keyRegex": "^a",
            "fromTime": to_text(NOW - 7200),
            "toTime": "2027-01-15T08:00:00Z",
        },
        "rate": {"recordsPerSecond": 50},
        "maxRecords": 10,
    }


def test_without_options_every_failed_record_is_selected() -> None:
    assert redrive()["spec"] == {"groupRef": {"name": "orders"}}


def test_single_records_are_selected_by_their_places() -> None:
    records = redrive("--record", "3:1841", "--record", "0:0", "--record", "3:1841")["spec"]["records"]
    assert records == [{"partition": 3, "offset": 1841}, {"partition": 0, "offset": 0}]


@pytest.mark.parametrize(
    ("error", "matches"),
    [
        ("ValueError: bad", True),
        ("shop.errors.ValueError: bad", True),
        ("OtherValueError: bad", False),
        ("KeyError: shop.ValueError: bad", False),
        ("ValueErrors: bad", False),
    ],
)
def test_error_class_matches_the_class_and_not_the_message(error: str, matches: bool) -> None:
    assert bool(re.search(class_regex(["ValueError"]), error)) is matches


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--reason", "Tired"), "Exhausted"),
        (("--from", "yesterday"), "2026-11-21T08:00:00Z"),
        (("--record", "orders-3"), "PARTITION:OFFSET"),
        (("--error-class", "a b"), "--error-regex"),
        (("--error-class", "A", "--error-regex", "B"), "exclude"),
    ],
)
def test_wrong_option_says_what_to_write(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(OptionInvalid, match=re.escape(said)):
        redrive(*words)


def test_names_are_valid_and_new_each_time() -> None:
    options = parser().parse_args(["redrive", "9." + "long-name" * 10])
    for dry_run in (False, True):
        name = redrive_body(options, NOW, dry_run=dry_run)["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 40
    assert redrive()["metadata"] != redrive_body(parser().parse_args(["redrive", "orders"]), NOW + 0.01, dry_run=False)


def test_dry_run_moves_nothing_and_cleans_up() -> None:
    body = redrive("--rate", "5", "--name", "fixed", dry_run=True)
    assert body["spec"]["dryRun"] is True
    assert body["spec"]["ttlSecondsAfterFinished"] > 0
    assert "rate" not in body["spec"]
    assert body["metadata"]["name"] != "fixed"  # a name runs once: a preview must not use it up


def test_worker_command_accepts_the_same_filters() -> None:
    words = ["--reason", "Exhausted", "--error-class", "ValueError", "--from", "2h", "--to", "1h"]
    options = parser().parse_args(["redrive", "orders", *words])
    program, *arguments = failed_command("count", *failed_arguments(options, NOW), "--json")
    assert program == "fleet-consumer"
    parsed = worker_parser().parse_args(arguments)
    assert (parsed.reason, parsed.error_class) == (["Exhausted"], ["ValueError"])
    assert (parsed.start, parsed.end) == (to_text(NOW - 7200), to_text(NOW - 3600))
    assert parsed.config == "/etc/consumer-fleet/worker.json"


def test_resets_by_word_time_and_offset() -> None:
    assert reset("--to", "earliest")["spec"]["to"] == "Earliest"
    timed = reset("--to", "2h", "--topic", "orders")["spec"]
    assert (timed["to"], timed["time"], timed["topics"]) == ("Time", to_text(NOW - 7200), ["orders"])
    assert timed["notAfter"] == to_text(NOW + 3600)
    placed = reset("--to", "offsets", "--offset", "shop-orders-3:1734")["spec"]
    assert placed["offsets"] == [{"topic": "shop-orders", "partition": 3, "offset": 1734}]
    preview = reset("--to", "latest", dry_run=True)["spec"]
    assert (preview["dryRun"], "notAfter" in preview) == (True, False)


@pytest.mark.parametrize("words", [("--to", "offsets"), ("--to", "latest", "--offset", "a-1:2"), ("--to", "soon")])
def test_reset_to_nowhere_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(OptionInvalid):
        reset(*words)
