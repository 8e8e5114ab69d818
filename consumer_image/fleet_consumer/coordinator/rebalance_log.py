"""The long form of what brokers are told in a few words (KIP-800): why a member joins, and what a rebalance moves."""

from __future__ import annotations

import logging

from fleet_consumer.group.messages import Action, CallBack, Send
from fleet_consumer.wire.join_group import JoinGroupRequest

logger = logging.getLogger(__name__)

NAMED_MAX = 20
"""How many partitions a line names."""


def log_rebalance(group_id: str, action: Action) -> None:
    """Log an action of the machine, if it is part of a rebalance."""
    if isinstance(action, Send) and isinstance(action.request, JoinGroupRequest):
        request = action.request
        logger.info("group %s: joining as %s: %s", group_id, request.member_id or "a new member", request.reason)
    elif isinstance(action, CallBack) and action.partitions:
        named = ", ".join(f"{topic}-{number}" for topic, number in action.partitions[:NAMED_MAX])
        more = len(action.partitions) - NAMED_MAX
        suffix = f" and {more} more" if more > 0 else ""
        logger.info("group %s, generation %d: %s %s%s", group_id, action.generation, action.kind.value, named, suffix)
