"""JSON documents of mounted files, read again when they change, so that a change helps without a rollout or a restart.

The kubelet updates a mounted ConfigMap by replacing a symbolic link, so a change is never seen half written. A file
written in place can be; it is then no JSON, and read again until it is. While a file is invalid, its last valid content
applies.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any, Final, Protocol

from fleet_consumer.clock import Clock
from fleet_consumer.contract.joins import parse_join
from fleet_consumer.contract.pod import JOIN_FILE
from fleet_consumer.contract.policies import Policies, PolicyInvalid, parse_policies
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.skips import Place, SkipsInvalid, parse_skips
from fleet_consumer.worker.config.role import Role, retry_topics
from fleet_consumer.worker.logs import fields

LOOK_INTERVAL_S: Final = 1.0
"""Interval of checks for a change; a check without a change costs one system call."""

BYTES_MAX: Final = 4_000_000
"""A ConfigMap holds one million bytes; a larger file is not from one."""


class FileUnreadable(Exception):
    """The file is missing, not readable, too large, or not JSON. `missing`: there is no such file."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class MountedFile:
    """One file of a mounted ConfigMap, for one thread. The constructor reads nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp: tuple[int, ...] | None = None
        self._read: tuple[int, ...] | None = None

    def read(self) -> Any | None:
        """The document; None if the file is still the one that was accepted. Raises FileUnreadable."""
        try:
            if _stamp(os.stat(self.path)) == self._stamp:
                return None
            with open(self.path, "rb") as file:
                # Of the opened file: the path may lead elsewhere by now.
                self._read = _stamp(os.fstat(file.fileno()))
                content = file.read(BYTES_MAX + 1)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            message = f"cannot read {self.path}: {error.strerror}; the operator mounts it from the group's ConfigMap"
            raise FileUnreadable(message, missing=missing) from error
        if len(content) > BYTES_MAX:
            raise FileUnreadable(f"{self.path} has more than {BYTES_MAX} bytes, so it is none of the operator's files")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise FileUnreadable(f"{self.path} is not JSON: {error}") from error

    def accept(self) -> None:
        """Take the document that was read last as read: it is not returned again."""
        self._stamp = self._read

    def reject(self) -> None:
        """Have the file read again, whether it changes or not."""
        self._stamp = None


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


LOG = logging.getLogger("fleet_consumer.worker")


def join_hold_s(skip_file: str | None, uid: str, pod: str, now: float) -> float:
    """Seconds for which this pod's worker holds its first join; `now` in epoch seconds.

    `skip_file` is the path beside which the file is mounted, None outside of a pod. Without a file, or with one that
    cannot be read, nothing is held: the group then has one rebalance more.
    """
    ordinal = re.fullmatch(r".+-([0-9]+)", pod)
    if skip_file is None or ordinal is None:
        return 0.0
    try:
        step = parse_join(MountedFile(str(Path(skip_file).with_name(JOIN_FILE))).read(), uid)
    except (FileUnreadable, SettingsInvalid) as error:
        if not getattr(error, "missing", False):
            LOG.warning("the file of the fleet's last step cannot be used", extra=fields(error=str(error)))
        return 0.0
    return 0.0 if step is None else step.hold_s(int(ordinal[1]), now)


class SkipFile:
    """The places of one file, for one thread; `uid` is that of the ConsumerGroup. The constructor reads nothing.

    `places` are those of the last valid file, none before the first and while there is no file: the operator's
    ConfigMap exists only where the spec names records. A change helps also where every worker dies at the record.
    """

    def __init__(self, path: str, uid: str, clock: Clock) -> None:
        self._file = MountedFile(path)
        self._uid = uid
        self._clock = clock
        self._look_at = float("-inf")
        self._last_error = ""
        self.places: frozenset[Place] = frozenset()

    def look(self) -> None:
        """Read the file if it has changed, at most once a second. `places` is replaced only by others."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL_S
        try:
            places = self._read()
        except (FileUnreadable, SkipsInvalid) as error:
            if str(error) != self._last_error:
                LOG.warning("the list of records to skip cannot be used", extra=fields(error=str(error)))
            self._last_error = str(error)
            self._file.reject()
            return
        self._last_error = ""
        if places is not None and places != self.places:
            self.places = places
            LOG.info("records to skip read", extra=fields(count=len(places)))

    def _read(self) -> frozenset[Place] | None:
        try:
            document = self._file.read()
        except FileUnreadable as error:
            if not error.missing:
                raise
            self._file.reject()
            return frozenset()
        if document is None:
            return None
        places = parse_skips(document, self._uid)
        self._file.accept()
        return places


class PolicyFileUnreadable(Exception):
    """The file is missing, not readable, too large, or not JSON."""

    reason = "PolicyFileUnreadable"


class PolicyFile:
    """The policies of one file, for one thread. The constructor reads nothing.

    `policies` are the last valid ones, None before the first. `last_error` (with a `reason`) is the error of the
    current file; None while it is valid.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._file = MountedFile(path)
        self._clock = clock
        self._look_at = float("-inf")
        self.policies: Policies | None = None
        self.last_error: PolicyFileUnreadable | PolicyInvalid | None = None

    def look(self) -> bool:
        """Read the file if it has changed, at most once a second; True if `policies` changed."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_INTERVAL_S
        try:
            policies = self._read()
        except (PolicyFileUnreadable, PolicyInvalid) as error:
            if str(error) != str(self.last_error):
                LOG.warning("the retry policies cannot be used", extra=fields(reason=error.reason, error=str(error)))
            self.last_error = error
            self._file.reject()
            return False
        self.last_error = None
        if policies is None or policies == self.policies:
            return False
        self.policies = policies
        LOG.info("retry policies read", extra=fields(policy=policies.name, current=policies.current))
        return True

    def _read(self) -> Policies | None:
        """Policies of the file; None if it has not changed."""
        try:
            document = self._file.read()
        except FileUnreadable as error:
            raise PolicyFileUnreadable(str(error)) from error
        if document is None:
            return None
        policies = parse_policies(document)
        self._file.accept()
        return policies


class Subscriber(Protocol):
    """Current topics of the consume loop, and their replacement."""

    @property
    def topics(self) -> object: ...

    def subscribe(self, topics: tuple[str, ...]) -> None: ...


class Follower:
    """Keeps a session on the current policies of a file. The constructor reads them.

    Raises PolicyFileUnreadable or PolicyInvalid if the file never held usable policies.
    """

    def __init__(self, policy_file: PolicyFile, role: Role, group_id: str) -> None:
        self._file = policy_file
        self._role = role
        self._group_id = group_id
        policy_file.look()
        if policy_file.policies is None:
            assert policy_file.last_error is not None, "a file without policies has an error"
            raise policy_file.last_error
        self._opened_with = policy_file.policies

    @property
    def policies(self) -> Policies:
        """The current policies."""
        return self._file.policies or self._opened_with

    def topics(self) -> tuple[str, ...]:
        """Current topics of a retry worker."""
        return retry_topics(self._group_id, self.policies.delays)

    def follow(self, loop: Subscriber) -> bool:
        """Apply a change of the file to a running session; False if it needs a new session."""
        if not self._file.look():
            return True
        if self.policies.max_message_bytes != self._opened_with.max_message_bytes:
            LOG.info("the size limit of the managed topics has changed; starting a new session")
            return False
        if self._role is Role.RETRY and self.topics() != loop.topics:
            LOG.info("the retry topics have changed", extra=fields(topics=list(self.topics())))
            loop.subscribe(self.topics())
        return True
