"""Reasons for joining and leaving, for the broker's log (KIP-800)."""

LENGTH_MAX = 255
"""Maximum length of a reason in characters. Brokers truncate longer reasons. This client truncates them before sending,
like Java's `JoinGroupRequest.maybeTruncateReason`."""

SUBSCRIBED = "first subscription"
SUBSCRIPTION_CHANGED = "the subscription has changed"
MATCH_CHANGED = "the topics that match the subscribed pattern have changed"
GROUP_REBALANCING = "group is already rebalancing"
COMMIT_MET_REBALANCE = "offset commit failed since group is already rebalancing"
MEMBER_ID_REQUIRED = "rejoining with the member id that the coordinator assigned"
POLL_TIMEOUT = "consumer poll timeout has expired"
UNSUBSCRIBED = "the consumer unsubscribed from all topics"
ENFORCED = "rebalance enforced by user"
CLOSING = "the consumer is being closed"
TO_REVOKE = "need to revoke partitions and re-join"
METADATA_CHANGED = "cached metadata has changed"
ASSIGNMENT_MISMATCH = "received assignment does not match the current subscription"

FOLLOWING = frozenset({GROUP_REBALANCING, COMMIT_MET_REBALANCE})
"""Reasons given by a member that joins because another member has started a rebalance."""


def rebalance_failed(cause: object) -> str:
    return f"rebalance failed due to {cause}"


def answered(api: str, error: str) -> str:
    """Return the reason for joining again after a response that invalidated the member's identity."""
    return f"encountered {error} from {api} response"
