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
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from fleet_consumer.clock import Clock
from fleet_consumer.contract.joins import parse_join
from fleet_consumer.contract.pod import JOIN_FILE
from fleet_consumer.contract.policies import Policies, PolicyInvalid, parse_policies
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.skips import Place, SkipsInvalid, parse_skips
from fleet_consumer.worker.config.role import Role, retry_topics
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

LOOK_INTERVAL_S: Final = 1.0
"""Interval of checks for a change; a check without a change costs one system call."""

BYTES_MAX: Final = 4_000_000
"""A ConfigMap holds one million bytes; a larger file is not from one."""


T = TypeVar("T")
Stamp = tuple[int, ...]
"""Identity of a file's content without reading it."""


class FileUnreadable(Exception):
    """The file is missing, not readable, too large, or not JSON. `missing`: there is no such file."""

    def __init__(self, message: str, reason: str = "FileUnreadable", *, missing: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.missing = missing


class MountedFile(Generic[T]):
    """One file of a mounted ConfigMap, for one thread. The constructor reads nothing.

    `content` is that of the last valid file, and `absent` before the first and while there is no file; where `absent`
    is None, a missing file is an error. `refusal` is logged once for each error. `last_error` (with a `reason`) is the
    error of the current file; None while it is valid.
    """

    def __init__(
        self,
        path: str,
        parse: Callable[[Any], T],
        clock: Clock,
        *,
        refusal: str,
        unreadable: str = "FileUnreadable",
        absent: T | None = None,
    ) -> None:
        self._path = path
        self._parse = parse
        self._clock = clock
        self._refusal = refusal
        self._unreadable = unreadable
        self._absent = absent
        self._look_at = float("-inf")
        self._stamp: Stamp | None = None
        self.content: T | None = absent
        self.last_error: FileUnreadable | PolicyInvalid | SkipsInvalid | None = None

    def look(self) -> bool:
        """Read the file if it has changed, at most once a second; True if `content` changed, which is replaced then."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_INTERVAL_S
        try:
            content = self._read()
        except (FileUnreadable, PolicyInvalid, SkipsInvalid) as error:
            if str(error) != str(self.last_error):
                LOG.warning(self._refusal, extra=fields(reason=error.reason, error=str(error)))
            self.last_error = error
            self._stamp = None
            return False
        self.last_error = None
        if content is None or content == self.content:
            return False
        self.content = content
        return True

    def _read(self) -> T | None:
        """The content; None if the file is still the one that was parsed last."""
        try:
            read = read_json(self._path, self._stamp)
        except FileUnreadable as error:
            if not error.missing or self._absent is None:
                raise FileUnreadable(str(error), self._unreadable) from error
            self._stamp = None
            return self._absent
        if read is None:
            return None
        document, stamp = read
        content = self._parse(document)
        self._stamp = stamp
        return content


def read_json(path: str, known: Stamp | None = None) -> tuple[Any, Stamp] | None:
    """A file's document and its stamp; None if the file still has the stamp `known`. Raises FileUnreadable."""
    try:
        if _stamp(os.stat(path)) == known:
            return None
        with open(path, "rb") as file:
            # Of the opened file: the path may lead elsewhere by now.
            stamp = _stamp(os.fstat(file.fileno()))
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}; the operator mounts it from the group's ConfigMap"
        raise FileUnreadable(message, missing=isinstance(error, FileNotFoundError)) from error
    if len(content) > BYTES_MAX:
        raise FileUnreadable(f"{path} has more than {BYTES_MAX} bytes, so it is none of the operator's files")
    try:
        return json.loads(content), stamp
    except (ValueError, RecursionError) as error:
        raise FileUnreadable(f"{path} is not JSON: {error}") from error


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def policy_file(path: str, clock: Clock) -> MountedFile[Policies]:
    """The retry policies of a group."""
    refusal = "the retry policies cannot be used"
    return MountedFile(path, parse_policies, clock, refusal=refusal, unreadable="PolicyFileUnreadable")


def skip_file(path: str, uid: str, clock: Clock) -> MountedFile[frozenset[Place]]:
    """The places of records to skip; `uid` is that of the ConsumerGroup.

    The operator's ConfigMap exists only where the spec names records, so a missing file names none.
    """
    refusal = "the list of records to skip cannot be used"
    return MountedFile(path, lambda document: parse_skips(document, uid), clock, refusal=refusal, absent=frozenset())


def join_hold_s(skip_file: str | None, uid: str, pod: str, now: float) -> float:
    """Seconds for which this pod's worker holds its first join; `now` in epoch seconds.

    `skip_file` is the path beside which the file is mounted, None outside of a pod. Without a file, or with one that
    cannot be read, nothing is held: the group then has one rebalance more.
    """
    ordinal = re.fullmatch(r".+-([0-9]+)", pod)
    if skip_file is None or ordinal is None:
        return 0.0
    try:
        read = read_json(str(Path(skip_file).with_name(JOIN_FILE)))
        step = None if read is None else parse_join(read[0], uid)
    except (FileUnreadable, SettingsInvalid) as error:
        if not getattr(error, "missing", False):
            LOG.warning("the file of the fleet's last step cannot be used", extra=fields(error=str(error)))
        return 0.0
    return 0.0 if step is None else step.hold_s(int(ordinal[1]), now)


class Follower:
    """Keeps a session on the current policies of a file. The constructor reads them.

    Raises FileUnreadable or PolicyInvalid if the file never held usable policies.
    """

    def __init__(self, policy_file: MountedFile[Policies], role: Role, group_id: str) -> None:
        self._file = policy_file
        self._role = role
        self._group_id = group_id
        self._look()
        if policy_file.content is None:
            assert policy_file.last_error is not None, "a file without policies has an error"
            raise policy_file.last_error
        self._opened_with = policy_file.content

    @property
    def policies(self) -> Policies:
        return self._file.content or self._opened_with

    def topics(self) -> tuple[str, ...]:
        return retry_topics(self._group_id, self.policies.delays)

    def follow(self, subscribed: object, subscribe: Callable[[tuple[str, ...]], None]) -> bool:
        """Apply a change of the file to a session `subscribed` to these topics; False if it needs a new one."""
        if not self._look():
            return True
        if self.policies.max_message_bytes != self._opened_with.max_message_bytes:
            LOG.info("the size limit of the managed topics has changed; starting a new session")
            return False
        if self._role is Role.RETRY and self.topics() != subscribed:
            LOG.info("the retry topics have changed", extra=fields(topics=list(self.topics())))
            subscribe(self.topics())
        return True

    def _look(self) -> bool:
        changed, policies = self._file.look(), self._file.content
        if changed and policies is not None:
            LOG.info("retry policies read", extra=fields(policy=policies.name, current=policies.current))
        return changed
