"""Following of policies.json by a running session: edits apply without a restart."""

from __future__ import annotations

import logging
from typing import Protocol

from fleet_consumer.contract.policies import Policies
from fleet_consumer.worker.config.policy_file import PolicyFile
from fleet_consumer.worker.config.role import Role, retry_topics
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")


class Subscriber(Protocol):
    """Subscription of the consume loop."""

    @property
    def topics(self) -> object:
        """Its current topics."""
        ...

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Replace the topics."""
        ...


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
