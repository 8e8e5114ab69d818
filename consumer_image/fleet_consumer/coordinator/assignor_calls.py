"""Execution of calls into assignors, which may be user code, for the machine that asked for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fleet_consumer.group import messages
from fleet_consumer.group.classic.planning import collect_user_data, notify_assignor, run_assignor

logger = logging.getLogger(__name__)


class AssignorCalls:
    """Carries out a member's assignor actions. `post` takes the event that answers one, from any thread."""

    def __init__(
        self, group_id: str, post: Callable[[messages.Event], None], report: Callable[[messages.MembershipReport], None]
    ) -> None:
        self._group_id = group_id
        self._post = post
        self._report = report

    def carry_out(self, action: messages.RunAssignor | messages.CollectUserData | messages.NotifyAssignor) -> None:
        """Call the assignor: for plans on a thread of their own, else on this one, the coordinator thread."""
        if isinstance(action, messages.RunAssignor):
            name = f"assignor-{self._group_id}"
            threading.Thread(target=self._run, args=(action,), name=name, daemon=True).start()
        elif isinstance(action, messages.CollectUserData):
            self._post(collect_user_data(action))
        elif (failure := notify_assignor(action)) is not None:
            self._report(messages.MembershipReport(failure))

    def _run(self, action: messages.RunAssignor) -> None:
        """Make a plan, which may take seconds while heartbeats go on."""
        event = run_assignor(action)
        if isinstance(event, messages.PlanFailed):
            logger.error("assignor %s failed", action.assignor.name, exc_info=event.error.__cause__ or event.error)
        self._post(event)
