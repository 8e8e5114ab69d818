"""The stored ledger, fenced by the attempt's number, and the control beside it."""

from __future__ import annotations

from typing import Final

from fleet_consumer.backfill.api_server import ApiConflict, ApiFailed, ConfigMaps, Document
from fleet_consumer.backfill.errors import Superseded
from fleet_consumer.contract.backfill_ledger import (
    ALIVE_KEY,
    CONTROL_KEY,
    LEDGER_KEY,
    Control,
    Ledger,
    ledger_text,
    parse_control,
    parse_ledger,
)
from fleet_consumer.contract.section import SettingsInvalid

CONFLICTS_MAX: Final = 20
"""Somebody who changes the ledger more often than this in a row works against the driver."""


class LedgerStore:
    """Reads and writes the ledger of one attempt. A ledger of a newer attempt raises Superseded, from every call."""

    def __init__(self, objects: ConfigMaps, name: str, attempt: int) -> None:
        self._objects = objects
        self._name = name
        self._attempt = attempt
        self._document: Document = {}

    def read(self) -> Ledger | None:
        """The stored ledger, None before the first was written. Raises SettingsInvalid for one that is unreadable."""
        self._document = self._objects.read(self._name)
        text = (self._document.get("data") or {}).get(LEDGER_KEY)
        if text is None:
            return None
        ledger = parse_ledger(text)
        if ledger.attempt > self._attempt:
            raise Superseded(
                f"ledger {self._name} belongs to attempt {ledger.attempt}, and this is attempt {self._attempt}"
            )
        return ledger

    def alive(self, sign: int) -> None:
        """Store a sign of progress beside the ledger. It is tried once: the next one comes soon."""
        data = {**(self._document.get("data") or {}), ALIVE_KEY: str(sign)}
        try:
            self._document = self._objects.replace({**self._document, "data": data})
        except ApiConflict:
            self.read()

    def write(self, ledger: Ledger) -> None:
        """Store a ledger. What this attempt wrote before is replaced, also if its answer was lost on the way."""
        text = ledger_text(ledger)
        for _ in range(CONFLICTS_MAX):
            data = {**(self._document.get("data") or {}), LEDGER_KEY: text}
            try:
                self._document = self._objects.replace({**self._document, "data": data})
                return
            except ApiConflict:
                self.read()
                if (self._document.get("data") or {}).get(LEDGER_KEY) == text:
                    return
        raise ApiFailed(f"ConfigMap {self._name} is changed by others all the time; only the driver may write it")


class ControlReader:
    """Reads the operator's orders."""

    def __init__(self, objects: ConfigMaps, name: str) -> None:
        self._objects = objects
        self._name = name

    def read(self) -> Control:
        """The present control. Raises SettingsInvalid for one that is missing or unreadable."""
        text = (self._objects.read(self._name).get("data") or {}).get(CONTROL_KEY)
        if text is None:
            raise SettingsInvalid(f"ConfigMap {self._name}", f"has no {CONTROL_KEY}; the operator writes it")
        return parse_control(text)
