"""JSON documents of mounted files. Changed files are read again, so a change needs no rollout or restart.

The kubelet updates a mounted ConfigMap by replacing a symbolic link, so readers never see half a change. A file that is
edited in place may be half written. The worker reads such a file again until it is valid JSON, and uses the last valid
content until then.
"""

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

CHECK_INTERVAL_S: Final = 1.0
"""Minimum interval in seconds between checks for a change. A check of an unchanged file costs one system call."""

BYTES_MAX: Final = 4_000_000
"""Maximum size of a file in bytes. ConfigMaps are smaller: at most about one million bytes."""


T = TypeVar("T")
Stamp = tuple[int, ...]
"""Device, inode, size and modification time of a file. Equal stamps mean equal content."""


class FileUnreadable(Exception):
    """The file is missing (`missing` is true), cannot be read, is too large, or is not JSON."""

    def __init__(self, message: str, reason: str = "FileUnreadable", *, missing: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.missing = missing


class MountedFile(Generic[T]):
    """One file of a mounted ConfigMap. The constructor does not read the file. Not thread-safe.

    `content` is the last valid content. `content` is `absent` before the first read, and while the file is missing.
    If `absent` is None, a missing file is an error. `refusal` is the log message for an error; each error is logged
    once. `last_error` (with a `reason`) is the error of the current file, None while the file is valid.
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
        self._check_at = float("-inf")
        self._stamp: Stamp | None = None
        self.content: T | None = absent
        self.last_error: FileUnreadable | PolicyInvalid | SkipsInvalid | None = None

    def reload(self) -> bool:
        """Read the file if it has changed, at most once a second. Returns True if `content` is new."""
        now = self._clock.monotonic()
        if now < self._check_at:
            return False
        self._check_at = now + CHECK_INTERVAL_S
        try:
            content = self._read_changed()
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

    def _read_changed(self) -> T | None:
        """Return the content; None if the file has not changed since it was last parsed."""
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
    """Return the JSON document and stamp of a file; None if its stamp is still `known`. Raises FileUnreadable."""
    try:
        if _stamp(os.stat(path)) == known:
            return None
        with open(path, "rb") as file:
            # Take the stamp from the opened file, because the path may point to another file since `stat`.
            stamp = _stamp(os.fstat(file.fileno()))
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}; the operator mounts it from the group's ConfigMap"
        raise FileUnreadable(message, missing=isinstance(error, FileNotFoundError)) from error
    if len(content) > BYTES_MAX:
        raise FileUnreadable(f"{path} has more than {BYTES_MAX} bytes, so the operator did not write it")
    try:
        return json.loads(content), stamp
    except (ValueError, RecursionError) as error:
        raise FileUnreadable(f"{path} is not JSON: {error}") from error


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def policy_file(path: str, clock: Clock) -> MountedFile[Policies]:
    refusal = "the retry policies cannot be used"
    return MountedFile(path, parse_policies, clock, refusal=refusal, unreadable="PolicyFileUnreadable")


def skip_file(path: str, uid: str, clock: Clock) -> MountedFile[frozenset[Place]]:
    """Return the mounted file that lists the records to skip. If no records are to be skipped, the file does not exist.
    `uid` is the uid of the ConsumerGroup."""
    refusal = "the list of records to skip cannot be used"
    return MountedFile(path, lambda document: parse_skips(document, uid), clock, refusal=refusal, absent=frozenset())


def join_hold_s(skip_file: str | None, uid: str, pod: str, now: float) -> float:
    """Return the seconds by which this worker delays its first join, so that new workers join the group together.

    `now` is in epoch seconds. The file about the fleet's last scaling step is in the folder of `skip_file`. Outside a
    pod, `skip_file` is None. If the file cannot be read, the worker joins immediately, which may cause one more
    rebalance.
    """
    ordinal = re.fullmatch(r".+-([0-9]+)", pod)
    if skip_file is None or ordinal is None:
        return 0.0
    try:
        read = read_json(str(Path(skip_file).with_name(JOIN_FILE)))
        step = None if read is None else parse_join(read[0], uid)
    except (FileUnreadable, SettingsInvalid) as error:
        if not getattr(error, "missing", False):
            LOG.warning("the file about the fleet's last scaling step cannot be used", extra=fields(error=str(error)))
        return 0.0
    return 0.0 if step is None else step.hold_s(int(ordinal[1]), now)


class Follower:
    """Applies the current policies of a file to a session.

    The constructor reads the file. It raises FileUnreadable or PolicyInvalid if the file never held usable policies.
    """

    def __init__(self, policy_file: MountedFile[Policies], role: Role, group_id: str) -> None:
        self._file = policy_file
        self._role = role
        self._group_id = group_id
        self._reload()
        if policy_file.content is None:
            assert policy_file.last_error is not None, "without policies, the file has an error"
            raise policy_file.last_error
        self._opened_with = policy_file.content

    @property
    def policies(self) -> Policies:
        return self._file.content or self._opened_with

    def topics(self) -> tuple[str, ...]:
        return retry_topics(self._group_id, self.policies.delays)

    def follow(self, subscribed: object, subscribe: Callable[[tuple[str, ...]], None]) -> bool:
        """Apply changed policies to the session. Returns False if the change requires a new session.

        `subscribed` are the session's topics. `subscribe` is called if the retry topics have changed.
        """
        if not self._reload():
            return True
        if self.policies.max_message_bytes != self._opened_with.max_message_bytes:
            LOG.info("the size limit of the managed topics has changed; starting a new session")
            return False
        if self._role is Role.RETRY and self.topics() != subscribed:
            LOG.info("the retry topics have changed", extra=fields(topics=list(self.topics())))
            subscribe(self.topics())
        return True

    def _reload(self) -> bool:
        changed, policies = self._file.reload(), self._file.content
        if changed and policies is not None:
            LOG.info("retry policies read", extra=fields(policy=policies.name, current=policies.current))
        return changed
