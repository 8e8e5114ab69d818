"""`failed` and `redrive` select the same records with the same options."""

from __future__ import annotations

import argparse

import pytest

from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.record import Record
from fleet_consumer.redrive.selection import matches
from fleet_consumer.worker.commands.options import filter_of, parser
from tests.unit.redrive.documents import FAILED, NOW, failed

WHERE = ("--group", "orders", "--bootstrap", "127.0.0.1:9")
COMMANDS = (("failed", "list"), ("failed", "count"), ("redrive",))


def parsed(command: tuple[str, ...], *words: str) -> argparse.Namespace:
    return parser().parse_args([*command, *WHERE, *words])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ((), True),
        (("--reason", "exhausted", "--reason", "timeout"), True),
        (("--reason", "Exhausted"), True),
        (("--reason", "timeout"), False),
        (("--error-class", "ValueError"), True),
        (("--error-class", "builtins.ValueError"), False),
        (("--error-class", "Error"), False),
        (("--error-class", "KeyError", "--error-class", "ValueError"), True),
        (("--reason", "timeout", "--error-class", "ValueError"), False),
        (("--from", "2023-11-14T22:13:20Z"), True),
        (("--from", "2023-11-14T22:13:21"), False),
        (("--to", "2023-11-14T22:13:20Z"), False),
        (("--from", "1h"), True),
    ],
)
def test_record_is_taken_by_every_command_or_by_none(
    command: tuple[str, ...], words: tuple[str, ...], taken: bool
) -> None:
    assert matches(filter_of(parsed(command, *words), NOW), failed(3, reason=FailureReason.EXHAUSTED)) is taken


def test_class_is_named_in_full_or_by_what_follows_the_last_dot() -> None:
    record = Record(
        FAILED,
        0,
        1,
        NOW,
        b"k",
        b"v",
        [("kr-error-class", b"shop.errors.Throttled"), ("kr-error-message", b"a.KeyError: b")],
    )
    for name, taken in (("Throttled", True), ("shop.errors.Throttled", True), ("rottled", False), ("KeyError", False)):
        assert matches(filter_of(parsed(("redrive",), "--error-class", name), NOW), record) is taken, name


def test_record_without_a_reason_or_a_class_is_named_as_it_is_shown() -> None:
    bare = Record(FAILED, 0, 1, NOW, b"k", b"v")
    for option in ("--reason", "--error-class"):
        chosen = filter_of(parsed(("redrive",), option, "-"), NOW)
        assert matches(chosen, bare)
        assert not matches(chosen, failed(1))


def test_single_records_are_selected_by_their_place() -> None:
    chosen = filter_of(parsed(("redrive",)), NOW, ["0:3", "1:9"])
    assert [matches(chosen, failed(offset)) for offset in (2, 3, 9)] == [False, True, False]
    with pytest.raises(SettingsInvalid, match="write two numbers"):
        filter_of(parsed(("redrive",)), NOW, ["first"])
