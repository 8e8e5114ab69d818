"""Requests from the driver to tasks and from tasks to handlers' processes, with their settings, filter and pace."""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import Task, TaskReport
from fleet_consumer.clock import Clock
from fleet_consumer.contract.backfill_config import BackfillConfig, BackfillFilter, parse_config
from fleet_consumer.contract.backfill_ledger import SuspectedRecord
from fleet_consumer.contract.policies import Policies, parse_policies
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import Headers
from fleet_consumer.worker.config.settings import CredentialsUnreadable, connection_settings, with_environment
from fleet_consumer.worker.logs import JsonFormatter, TextFormatter, in_hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The part of the request that is the same for all tasks of a slice. It has no secrets; tasks read secrets from
    files.

    `config` and `policies` are the contents of backfill.json and policies.json. A task starts no further records after
    `seconds`. `rate` is each task's limit in records per second (None: unlimited). `limits` are the known
    `max.message.bytes` of the topics to which a task may write. `suspected` records are handled alone.
    """

    config: str
    policies: str | None
    seconds: float
    rate: float | None
    limits: Mapping[str, int]
    suspected: tuple[SuspectedRecord, ...] = ()


class PlayRequest(NamedTuple):
    """A request to a handler's process. A `bounded` request ends after `work.seconds`; requests of comparisons are not
    bounded."""

    work: Work
    ranges: Task
    bounded: bool = True


class Part(NamedTuple):
    """A finished part of a request: its report, and its rows column by column. `last` is True for the final part."""

    report: TaskReport
    rows: list[list[Any]]
    last: bool


@lru_cache(maxsize=1)
def config_of(text: str) -> BackfillConfig:
    """Parse the settings of a request, and apply this process's environment to them. Raises BackfillFailed."""
    config = parse_config(json.loads(text))
    try:
        return replace(config, worker=with_environment(config.worker, os.environ))
    except SettingsInvalid as error:
        raise BackfillFailed(error.reason, str(error), final=True) from error


def connection_of(config: BackfillConfig) -> ConnectionSettings:
    """Return the connection settings for the group's brokers, with current credentials. Raises BackfillFailed."""
    try:
        return connection_settings(config.worker.brokers, f"fleet-backfill-{config.name}")
    except CredentialsUnreadable as error:
        raise BackfillFailed(error.reason, str(error), final=False) from error


def log_as(config: BackfillConfig) -> None:
    """Log to standard error in the worker's format, with the coordinates of the record being handled."""
    log = config.worker.log
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((JsonFormatter if log.format == "Json" else TextFormatter)(in_hand(lambda: None, None)))
    logging.basicConfig(level=log.level.upper(), handlers=[handler], force=True)


@lru_cache(maxsize=1)
def policies_of(text: str | None) -> Policies | None:
    return None if text is None else parse_policies(json.loads(text))


def policies_text(path: str | None) -> str | None:
    """Return the checked text of the mounted policies.json. Raises PolicyInvalid, OSError and ValueError."""
    if path is None:
        return None
    text = Path(path).read_text(encoding="utf-8")
    policies_of(text)
    return text


GROUP_S: Final = 0.25
"""Target duration of one `Caller.handle` in seconds."""


class Pacer:
    """Limits a request to `seconds` of work, at `rate` records per second (None: unlimited). The first record is always
    allowed, so that each task makes progress."""

    def __init__(
        self, seconds: float, rate: float | None, clock: Clock, wait: Callable[[float], object] | None = None
    ) -> None:
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._began = clock.monotonic()
        self.deadline = self._began + seconds
        self._interval = 0.0 if rate is None else 1.0 / rate
        self._next_at = self._began
        self._taken = 0
        self.waited = 0.0

    def may_take(self, records: int = 1) -> bool:
        """Wait until the rate allows more records. Returns True if `records` records may be handled now, False after
        the deadline."""
        now = self._clock.monotonic()
        if self._taken and max(now, self._next_at) >= self.deadline:
            return False
        if self._next_at > now:
            self._wait(self._next_at - now)
            self.waited += self._next_at - now
        # Unused time is not saved, because a burst would follow.
        self._next_at = max(self._next_at, now) + records * self._interval
        self._taken += records
        return True

    def group(self, most: int, lasts: float = GROUP_S) -> int:
        """Return the number of records, at most `most`, that can be handled in about `lasts` seconds."""
        elapsed = self._clock.monotonic() - self._began
        if not self._taken:
            return 1
        left = max(0.0, self.deadline - self._began - elapsed)
        fit = int(min(lasts, left) * self._taken / elapsed) if elapsed > 0 else most
        if self._interval:
            fit = min(fit, max(1, int(GROUP_S / self._interval)))
        return max(1, min(most, fit, 2 * self._taken))


class Selection:
    def __init__(self, chosen: BackfillFilter) -> None:
        self._key = chosen.key
        self._headers = [(name, value.encode()) for name, value in chosen.headers.items()]
        self._from_ms, self._to_ms = chosen.from_ms, chosen.to_ms
        self.takes_all = not (self._key or self._headers) and self._from_ms is None and self._to_ms is None

    def takes(self, timestamp: int, key: bytes | None, headers: Headers) -> bool:
        """True if the filter selects the record. Key bytes that are not UTF-8 match no literal character of the
        regex."""
        if self._from_ms is not None and timestamp < self._from_ms:
            return False
        if self._to_ms is not None and timestamp >= self._to_ms:
            return False
        if self._key is not None and (key is None or not self._key.found_in(key.decode("utf-8", "replace"))):
            return False
        return all(header in headers for header in self._headers)
