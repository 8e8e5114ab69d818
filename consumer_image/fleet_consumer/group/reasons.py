"""Reasons for joining and leaving, for the broker's log (KIP-800)."""

from __future__ import annotations

LENGTH_MAX = 255
"""Brokers cut longer reasons; Java cuts them itself (`JoinGroupRequest.maybeTruncateReason`)."""

SUBSCRIBED = "first subscription"
SUBSCRIPTION_CHANGED = "the subscription has changed"
MATCH_CHANGED = "the topics that match the subscribed pattern have changed"
GROUP_REBALANCING = "group is already rebalancing"
COMMIT_MET_REBALANCE = "offset commit failed since group is already rebalancing"
MEMBER_ID_REQUIRED = "rejoining with the member id that the coordinator gave"
POLL_TIMEOUT = "consumer poll timeout has expired"
UNSUBSCRIBED = "the consumer unsubscribed from all topics"
ENFORCED = "rebalance enforced by user"
CLOSING = "the consumer is being closed"
TO_REVOKE = "need to revoke partitions and re-join"
METADATA_CHANGED = "cached metadata has changed"
ASSIGNMENT_MISMATCH = "received assignment does not match the current subscription"

FOLLOWING = frozenset({GROUP_REBALANCING, COMMIT_MET_REBALANCE})
"""Reasons of a member that joins because others have begun a rebalance."""


def rebalance_failed(cause: object) -> str:
    """The reason after an attempt that failed."""
    return f"rebalance failed due to {cause}"


def answered(api: str, error: str) -> str:
    """The reason after a response that took the identity away."""
    return f"encountered {error} from {api} response"
