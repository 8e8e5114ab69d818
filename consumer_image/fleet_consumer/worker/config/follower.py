"""What a running session does about the retry policies, which may be edited at any time without a restart."""

from __future__ import annotations

import logging
from typing import Protocol

from fleet_consumer.contract.policies import Policies
from fleet_consumer.worker.config.policy_file import PolicyFile
from fleet_consumer.worker.config.role import Role, retry_topics
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")


class Subscriber(Protocol):
    """The part of the consume loop that chooses topics."""

    @property
    def topics(self) -> object:
        """What it consumes now."""
        ...

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Consume these from now on."""
        ...


class Follower:
    """Keeps a session to the policies in their file, which may change at any time. Making one reads them.

    Raises why they cannot be used, as long as there have never been any that could.
    """

    def __init__(self, policy_file: PolicyFile, role: Role, group_id: str) -> None:
        self._file = policy_file
        self._role = role
        self._group_id = group_id
        policy_file.look()
        if policy_file.policies is None:
            assert policy_file.last_error is not None, "a file without policies has trouble"
            raise policy_file.last_error
        self._opened_with = policy_file.policies

    @property
    def policies(self) -> Policies:
        """As of now."""
        return self._file.policies or self._opened_with

    def topics(self) -> tuple[str, ...]:
        """What a retry worker consumes now."""
        return retry_topics(self._group_id, self.policies.delays)

    def follow(self, loop: Subscriber) -> bool:
        """See to what a change of the file asks of a running session; False when only another one can do it."""
        if not self._file.look():
            return True
        if self.policies.max_message_bytes != self._opened_with.max_message_bytes:
            LOG.info("the size limit of the managed topics has changed; a new session begins")
            return False
        if self._role is Role.RETRY and self.topics() != loop.topics:
            LOG.info("the retry topics have changed", extra=fields(topics=list(self.topics())))
            loop.subscribe(self.topics())
        return True
