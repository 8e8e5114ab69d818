"""Wanted retries of a group: the policy revisions in use, and the delays whose topics they need.

A waiting record follows the revision that it got when it failed. An edit of the policy therefore adds a revision and
removes none; an old one leaves when no record can name it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from fleet_consumer.contract import naming
from fleet_consumer.contract.policies import TooManyDelays
from fleet_consumer.contract.policy_expansion import expand_policy
from fleet_consumer.contract.section import PatternInvalid, SettingsInvalid
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.retrypolicy import RetryPolicy
from fleet_operator.planning.problem import Problem, spec_problem


class DelayState(StrEnum):
    IN_USE = "InUse"  # a revision uses it
    DRAINING = "Draining"  # no revision uses it; retry workers still read the topic
    LEAVING = "Leaving"  # no worker reads the topic; it is deleted when nothing waits in it


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRevision:
    """One content of a RetryPolicy, under its hash.

    `content` is the worker's policy file, canonical: the hash is computed from it. `superseded_at` is when another
    revision replaced it for new failures, in epoch seconds; None for the current one.
    """

    hash: str
    content: Mapping[str, Any]
    superseded_at: float | None = None

    @property
    def sequence(self) -> tuple[str, ...]:
        """The delays in the order of the attempts, canonical texts."""
        return tuple(self.content["sequence"])

    @property
    def total_seconds(self) -> int:
        return sum(map(naming.parse_delay, self.sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryIntent:
    """Wanted retries of one ConsumerGroup.

    - `policy`: name of the RetryPolicy.
    - `wanted`: its present content, or an older one while that is unusable (`problem` says why); None without any.
    - `known`: the published revisions; `current` is the hash of the one for new failures, None before the first
      publication.
    - `delays`: canonical texts of the delays in use and draining, shortest first. The topics of those in use must
      exist.
    - `drained_delays`: the leaving delays.
    - `searched`: False until the cluster was searched for topics of an earlier object of the same Kafka group. Records
      may wait there that have no other reader.
    - `ending`: the spec wants no retries any more; waiting records are still processed.
    - `ended`: no worker is left that writes or reads; the topics are the user's to delete.
    """

    policy: str
    wanted: PolicyRevision | None = None
    known: tuple[PolicyRevision, ...] = ()
    current: str | None = None
    delays: tuple[str, ...] = ()
    drained_delays: tuple[str, ...] = ()
    searched: bool = True
    problem: Problem | None = None
    ending: bool = False
    ended: bool = False

    @property
    def revisions(self) -> tuple[PolicyRevision, ...]:
        return (*self.known, self.wanted) if self.wanted else self.known

    @property
    def unused(self) -> frozenset[str]:
        """The draining delays. A topic of theirs that is gone was deleted by somebody, and is not made again."""
        return frozenset(self.delays).difference(delays_of(self.revisions))

    @property
    def total_seconds(self) -> int:
        """The longest sequence of any revision; 0 without revisions."""
        return max((revision.total_seconds for revision in self.revisions), default=0)

    @property
    def may_pause(self) -> bool:
        """True if a revision has a budget on which workers act: only their own reports show when they do."""
        return any(
            (revision.content.get("budget") or {"action": "Pause"})["action"] != "None" for revision in self.revisions
        )


def delays_of(revisions: Iterable[PolicyRevision]) -> tuple[str, ...]:
    """The distinct delays of several revisions, shortest first."""
    return sort_delays({delay for revision in revisions for delay in revision.sequence})


def sort_delays(delays: Iterable[str]) -> tuple[str, ...]:
    """Delays, shortest first. Raises ValueError for a text that is no delay."""
    return tuple(sorted(delays, key=naming.parse_delay))


def expand(policy: RetryPolicy) -> PolicyRevision:
    """The revision of a policy's spec. Raises SettingsInvalid."""
    content = expand_policy(policy.spec.model_dump(mode="json", by_alias=True, exclude_none=True), "spec")
    return PolicyRevision(hash=naming.content_hash(content), content=content)


def read_policy(body: Mapping[str, Any]) -> PolicyRevision | Problem:
    name = f"RetryPolicy {body['metadata']['name']!r}"
    try:
        return expand(RetryPolicy.model_validate(body))
    except TooManyDelays as refused:
        return Problem(conditions.TOO_MANY_DELAYS, f"{name} {refused.problem}")
    except PatternInvalid as refused:
        message = f"{name}, spec.classify, messageRegex: {refused.problem}"
        return Problem(conditions.MESSAGE_REGEX_REFUSED, message)
    except ValidationError as error:
        problem = spec_problem(error)
        return Problem(problem.reason, f"{name}: {problem.message}")
    except SettingsInvalid as refused:  # the API server accepts these if its CRD is another version
        return Problem(conditions.SPEC_INVALID, f"{name}: {refused}")
