"""What a group machine needs to know of a consumer's settings; seconds, as all of its arithmetic is."""

from __future__ import annotations

from dataclasses import dataclass

JOIN_GRACE_S = 5.0
"""A JoinGroup may be answered as late as the rebalance timeout; Java waits this much longer before it gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Times and names of one membership.

    `retry_authentication`: whether a refused login may succeed later, because somebody renews the credentials.
    `metadata_max_age_s` is how often partition counts are looked at again; `rack` is where the member runs (KIP-881).
    """

    group_id: str
    instance_id: str | None = None
    session_timeout_s: float = 45.0
    heartbeat_interval_s: float = 3.0
    max_poll_interval_s: float = 300.0
    rebalance_timeout_s: float = 300.0
    request_timeout_s: float = 30.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 1.0
    metadata_max_age_s: float = 300.0
    rack: str | None = None
    retry_authentication: bool = False

    @property
    def join_timeout_s(self) -> float:
        """How long an unanswered JoinGroup is waited for."""
        return max(self.request_timeout_s, self.rebalance_timeout_s + JOIN_GRACE_S)
