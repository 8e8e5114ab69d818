"""Retry policies of a running worker, read from a mounted file and again when it changes: edits need no restart.

While the file is invalid, the last valid policies apply.
"""

from __future__ import annotations

import logging
from typing import Protocol

from fleet_consumer.clock import Clock
from fleet_consumer.contract.policies import Policies, PolicyInvalid, parse_policies
from fleet_consumer.worker.config.mounted_file import LOOK_INTERVAL_S, FileUnreadable, MountedFile
from fleet_consumer.worker.config.role import Role, retry_topics
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")


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
