"""Calls of assignors, which may be user code, on behalf of the group machine."""

import logging
import threading
from collections.abc import Callable

from fleet_consumer.group import messages
from fleet_consumer.group.classic.planning import collect_user_data, notify_assignor, run_assignor

logger = logging.getLogger(__name__)


class AssignorCalls:
    """Executes a member's assignor actions. `post` is called with the resulting events, on any thread."""

    def __init__(
        self, group_id: str, post: Callable[[messages.Event], None], report: Callable[[messages.MembershipReport], None]
    ) -> None:
        self._group_id = group_id
        self._post = post
        self._report = report

    def carry_out(self, action: messages.RunAssignor | messages.CollectUserData | messages.NotifyAssignor) -> None:
        """Call the assignor: for a plan on a new thread, otherwise on the current thread (the coordinator thread)."""
        if isinstance(action, messages.RunAssignor):
            name = f"assignor-{self._group_id}"
            threading.Thread(target=self._run, args=(action,), name=name, daemon=True).start()
        elif isinstance(action, messages.CollectUserData):
            self._post(collect_user_data(action))
        elif (failure := notify_assignor(action)) is not None:
            self._report(messages.MembershipReport(failure))

    def _run(self, action: messages.RunAssignor) -> None:
        """Make a plan. Planning may take seconds, during which the coordinator thread sends heartbeats."""
        event = run_assignor(action)
        if isinstance(event, messages.PlanFailed):
            logger.error("assignor %s failed", action.assignor.name, exc_info=event.error.__cause__ or event.error)
        self._post(event)
