"""Settings of a group machine; times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

JOIN_GRACE_S = 5.0
"""Wait for a JoinGroup response beyond the rebalance timeout, as in Java."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Times and names of one membership.

    `retry_authentication`: a refused login may succeed later, because the credentials are renewed. Partition counts are
    read again after `metadata_max_age_s`. `rack` is the member's own (KIP-881).
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
        """Timeout of JoinGroup and SyncGroup requests."""
        return max(self.request_timeout_s, self.rebalance_timeout_s + JOIN_GRACE_S)
