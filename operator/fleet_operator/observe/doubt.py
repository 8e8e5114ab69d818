"""Evidence that a cluster does not answer, and the observation of one that does not. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fleet_consumer.net import AllBrokersUnreachable, AuthenticationFailed, NetError, TlsFailed
from fleet_operator.planning.observation import ClusterObservation

REFUSALS: Final = frozenset({"AuthenticationFailed", "TlsFailed"})
"""Reasons of a cluster that answers, and will not have us."""
DOUBT_LOOKS: Final = 3
DOUBT_SECONDS: Final = 15.0
"""A cluster counts as unreachable when so many looks in a row, or all looks for so long, have failed."""


class Doubt:
    """Evidence from looks that failed in a row. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._failures = 0
        self._since = 0.0

    def failed(self, began: float, now: float) -> bool:
        """Take in a look that failed; whether that is enough to say that the cluster does not answer."""
        if not self._failures:
            self._since = began
        self._failures += 1
        return self._failures >= DOUBT_LOOKS or now - self._since >= DOUBT_SECONDS

    def succeeded(self) -> None:
        self._failures = 0


def failure(error: NetError, last: ClusterObservation | None, now: float, *, proven: bool = True) -> ClusterObservation:
    """The observation after a look that failed altogether: the last good values, not reachable, and why.

    `proven` says that looks have failed for long enough. An answer that refuses us needs no second one, unless other
    brokers gave none: they may be restarting, as all of them do when their certificates are renewed.
    """
    base = last or ClusterObservation(observed_at=now, reachable=False)
    message = str(error)
    if isinstance(error, AllBrokersUnreachable):  # in the same order each time, whichever was asked first
        message = f"no broker answers: {'; '.join(sorted(str(failed) for failed in error.failures))}"
    # The classes and not their finer reasons: people read those in the message, and conditions keep to few words.
    causes = error.failures if isinstance(error, AllBrokersUnreachable) else (error,)
    refusals = [cause for cause in causes if isinstance(cause, AuthenticationFailed | TlsFailed)]
    refused_by_all = bool(refusals) and len(refusals) == len(causes)
    reason = "BrokerUnreachable"
    if refusals:
        of_login = any(isinstance(cause, AuthenticationFailed) for cause in refusals)
        reason = "AuthenticationFailed" if of_login else "TlsFailed"
    return replace(
        base,
        observed_at=now,
        reachable=False,
        reason=reason,
        message=message,
        doubtful=not proven and not refused_by_all and base.last_good_at is not None,
        reachable_since=None,
    )
