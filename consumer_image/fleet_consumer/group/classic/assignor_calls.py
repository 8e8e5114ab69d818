"""Calls into assignors, which may be user code: the shell carries these actions out, never `handle`."""

from __future__ import annotations

from fleet_consumer.group import messages
from fleet_consumer.group.classic.planning import plan
from fleet_consumer.group.errors import AssignorFailed


def run_assignor(action: messages.RunAssignor) -> messages.Planned | messages.PlanFailed:
    """Make the group's plan. An error that the assignor raised is the `__cause__` of the reported one."""
    try:
        assignments = plan(action.assignor, action.cluster, action.subscriptions, cooperative=action.cooperative)
    except AssignorFailed as failure:
        return messages.PlanFailed(action.attempt, failure)
    except Exception as cause:
        return messages.PlanFailed(action.attempt, _failed(action.assignor.name, "", cause))
    return messages.Planned(action.attempt, assignments)


def collect_user_data(action: messages.CollectUserData) -> messages.UserDataCollected | messages.UserDataFailed:
    """Ask each assignor for the user data of this member's subscription."""
    user_data: dict[str, bytes | None] = {}
    for assignor in action.assignors:
        try:
            found: object = assignor.subscription_user_data(action.attempt.topics)
        except Exception as cause:
            return messages.UserDataFailed(
                action.attempt, _failed(assignor.name, "subscription_user_data raised ", cause)
            )
        if not isinstance(found, bytes | bytearray | memoryview | None):
            seen = f"assignor {assignor.name!r}: subscription_user_data returned {type(found).__name__}"
            return messages.UserDataFailed(action.attempt, AssignorFailed(f"{seen}; return bytes or None"))
        user_data[assignor.name] = None if found is None else bytes(found)
    return messages.UserDataCollected(action.attempt, user_data)


def notify_assignor(action: messages.NotifyAssignor) -> AssignorFailed | None:
    """Report this member's assignment to its assignor; the error if the assignor raised one."""
    try:
        action.assignor.on_assignment(action.assignment, action.generation)
    except Exception as cause:
        return _failed(action.assignor.name, "on_assignment raised ", cause)
    return None


def _failed(name: str, what: str, cause: Exception) -> AssignorFailed:
    failure = AssignorFailed(f"assignor {name!r}: {what}{type(cause).__name__}: {cause}")
    failure.__cause__ = cause
    return failure
