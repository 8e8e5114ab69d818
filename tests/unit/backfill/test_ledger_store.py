"""The stored ledger: fenced by the attempt, and written once although answers get lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.backfill.api_server import CONFLICTS_MAX, ApiConflict, ApiFailed, LedgerStore, read_control
from fleet_consumer.backfill.errors import Superseded
from fleet_consumer.contract.backfill_ledger import (
    ALIVE_KEY,
    CONTROL_KEY,
    LEDGER_KEY,
    Control,
    Ledger,
    control_text,
    ledger_text,
)
from fleet_consumer.contract.section import SettingsInvalid

LEDGER = Ledger(attempt=2, remaining={0: ((0, 9),)})


class Objects:
    """ConfigMaps in memory. `before_replace` runs first, and may change the object or raise."""

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.version = 1
        self.found: dict[str, Any] = {"metadata": {"name": "l", "labels": {"a": "b"}}, "data": data}
        self.before_replace: Callable[[], None] = lambda: None
        self.lose_answer = False

    def get(self, name: str) -> dict[str, Any]:
        return {**self.found, "metadata": {**self.found["metadata"], "resourceVersion": str(self.version)}}

    def replace(self, document: dict[str, Any]) -> dict[str, Any]:
        self.before_replace()
        if document["metadata"]["resourceVersion"] != str(self.version):
            raise ApiConflict("changed")
        self.version += 1
        self.found = document
        if self.lose_answer:
            # The client's own repetition of the request meets its first try.
            self.lose_answer = False
            raise ApiConflict("changed")
        return self.get("l")

    def change(self, text: str) -> None:
        self.version += 1
        self.found = {**self.found, "data": {LEDGER_KEY: text}}


def test_ledger_without_its_key_is_a_beginning_and_keeps_the_rest_of_the_object() -> None:
    for data in (None, {}, {"other": "x"}):
        objects = Objects(data)
        store = LedgerStore(objects, "l", 2)
        assert store.load() is None
        store.write(LEDGER)
        assert objects.found["data"] == {**(data or {}), LEDGER_KEY: ledger_text(LEDGER)}
        assert objects.found["metadata"]["labels"] == {"a": "b"}
        assert LedgerStore(objects, "l", 2).load() == LEDGER


@pytest.mark.parametrize("text", ["", "{}", "null", "not json", '{"version": 2}'])
def test_unreadable_ledger_is_no_beginning(text: str) -> None:
    with pytest.raises(SettingsInvalid):
        LedgerStore(Objects({LEDGER_KEY: text}), "l", 2).load()


def test_newer_attempt_supersedes_at_the_start_and_at_a_write() -> None:
    newer = ledger_text(Ledger(attempt=3, remaining={}))
    with pytest.raises(Superseded, match="attempt 3, but this is attempt 2"):
        LedgerStore(Objects({LEDGER_KEY: newer}), "l", 2).load()
    objects = Objects()
    store = LedgerStore(objects, "l", 2)
    store.load()
    objects.change(newer)
    with pytest.raises(Superseded):
        store.write(LEDGER)
    assert objects.found["data"] == {LEDGER_KEY: newer}


def test_answer_lost_after_the_write_was_applied() -> None:
    objects = Objects()
    store = LedgerStore(objects, "l", 2)
    store.load()
    objects.lose_answer = True
    store.write(LEDGER)
    later = Ledger(attempt=2, remaining={0: ((5, 9),)}, slices_done=1)
    store.write(later)
    assert LedgerStore(objects, "l", 2).load() == later


def test_own_older_write_and_foreign_labels_are_written_over() -> None:
    objects = Objects()
    store = LedgerStore(objects, "l", 2)
    store.load()
    objects.change(ledger_text(Ledger(attempt=2, remaining={0: ((1, 9),)})))
    store.write(LEDGER)
    assert LedgerStore(objects, "l", 2).load() == LEDGER


def test_endless_conflicts_end_with_an_error() -> None:
    objects = Objects()
    store = LedgerStore(objects, "l", 2)
    store.load()
    tries = []

    def change() -> None:
        tries.append(1)
        objects.change(ledger_text(Ledger(attempt=1, remaining={})))

    objects.before_replace = change
    with pytest.raises(ApiFailed, match="ConfigMap l keeps changing"):
        store.write(LEDGER)
    assert len(tries) == CONFLICTS_MAX


def test_control_is_read_and_damage_is_an_error() -> None:
    control = Control(suspend=True, records_per_second=5)
    assert read_control(Objects({CONTROL_KEY: control_text(control)}), "l") == control
    for data in ({}, {CONTROL_KEY: "{"}):
        with pytest.raises(SettingsInvalid):
            read_control(Objects(data), "l")


def test_sign_of_progress_leaves_the_ledger_as_it_is() -> None:
    objects = Objects()
    store = LedgerStore(objects, "l", 2)
    store.load()
    store.write(LEDGER)
    store.alive(7)
    assert objects.found["data"] == {LEDGER_KEY: ledger_text(LEDGER), ALIVE_KEY: "7"}
    objects.lose_answer = True
    store.alive(8)
    store.alive(9)
    assert objects.found["data"] == {LEDGER_KEY: ledger_text(LEDGER), ALIVE_KEY: "9"}
    objects.change(ledger_text(Ledger(attempt=3, remaining={})))
    with pytest.raises(Superseded):
        store.alive(10)


@pytest.mark.parametrize("foreign", [ledger_text(Ledger(attempt=3, remaining={})), "{"], ids=["newer", "unreadable"])
def test_driver_that_goes_on_after_a_refused_sign_does_not_replace_the_ledger(foreign: str) -> None:
    objects = Objects()
    store = LedgerStore(objects, "l", 2)
    store.load()
    store.write(LEDGER)
    objects.change(foreign)
    for _ in range(2):
        with pytest.raises((Superseded, SettingsInvalid)):
            store.alive(1)
        with pytest.raises((Superseded, SettingsInvalid)):
            store.write(LEDGER)
    assert objects.found["data"][LEDGER_KEY] == foreign
