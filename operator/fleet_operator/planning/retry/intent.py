"""The retries that a group should have: the policy revisions in use, and the delays whose topics they need.

A waiting record follows the revision that was current when the record failed, and a header of the record names this
revision. So an edit of the policy adds a revision and removes none. An old revision is removed once no waiting record
can name it.
"""

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
    IN_USE = "InUse"  # a revision uses the delay
    DRAINING = "Draining"  # no revision uses the delay; retry workers still read its topic
    LEAVING = "Leaving"  # no worker reads the delay's topic, which is deleted when no record waits in it


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRevision:
    """A RetryPolicy's content in canonical form, as in the workers' `policies.json`, identified by its hash.
    `superseded_at`: the time, in epoch seconds, from which records that fail follow another revision. None for the
    current revision."""

    hash: str
    content: Mapping[str, Any]
    superseded_at: float | None = None

    @property
    def sequence(self) -> tuple[str, ...]:
        """Delays in the order of the attempts, as canonical strings."""
        return tuple(self.content["sequence"])

    @property
    def total_seconds(self) -> int:
        return sum(map(naming.parse_delay, self.sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryIntent:
    """The retries that one ConsumerGroup should have.

    - `wanted`: the revision with the policy's present content or, while the present content is unusable, an older
      revision; None if no revision is usable.
    - `problem`: the reason why the present content is unusable.
    - `known`: the published revisions.
    - `current`: the hash of the revision that records follow if they fail now; None before a revision is published.
    - `delays`: the delays in use and the draining delays, as canonical strings, shortest first. The topics of delays in
      use must exist.
    - `drained_delays`: the delays in state `LEAVING`.
    - `searched`: False until the cluster has been searched for retry topics of an earlier ConsumerGroup with the same
      `groupId`. Records may wait in such topics, and only this group's retry workers can handle them.
    - `ending`: the spec no longer wants retries; waiting records are still processed.
    - `ended`: no worker reads or writes the retry topics now, so the user may delete them.
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
        """The draining delays. Their topics are not created again if somebody deletes them."""
        return frozenset(self.delays).difference(delays_of(self.revisions))

    @property
    def total_seconds(self) -> int:
        """The largest sum of delays in the sequence of any revision, in seconds; 0 without revisions."""
        return max((revision.total_seconds for revision in self.revisions), default=0)

    @property
    def may_pause(self) -> bool:
        """True if the budget of at least one revision lets workers pause. Only the workers' reports show if a worker is
        paused."""
        return any(
            (revision.content.get("budget") or {"action": "Pause"})["action"] != "None" for revision in self.revisions
        )


def delays_of(revisions: Iterable[PolicyRevision]) -> tuple[str, ...]:
    """Return the distinct delays of several revisions, shortest first."""
    return sort_delays({delay for revision in revisions for delay in revision.sequence})


def sort_delays(delays: Iterable[str]) -> tuple[str, ...]:
    """Sort delays, shortest first. Raises ValueError for a string that is not a delay."""
    return tuple(sorted(delays, key=naming.parse_delay))


def expand(policy: RetryPolicy) -> PolicyRevision:
    """Return the revision that a policy's spec describes. Raises SettingsInvalid if the spec is invalid."""
    content = expand_policy(policy.spec.model_dump(mode="json", by_alias=True, exclude_none=True), "spec")
    return PolicyRevision(hash=naming.content_hash(content), content=content)


def read_policy(body: Mapping[str, Any]) -> PolicyRevision | Problem:
    name = f"RetryPolicy {body['metadata']['name']!r}"
    try:
        return expand(RetryPolicy.model_validate(body))
    except TooManyDelays as refused:
        return Problem(conditions.TOO_MANY_DELAYS, f"{name} {refused.problem}")
    except PatternInvalid as refused:
        return Problem(conditions.MESSAGE_REGEX_REFUSED, f"{name}, spec.classify, messageRegex: {refused.problem}")
    except ValidationError as error:
        problem = spec_problem(error)
        return Problem(problem.reason, f"{name}: {problem.message}")
    except SettingsInvalid as refused:  # the API server accepted the spec with another version of the CRD
        return Problem(conditions.SPEC_INVALID, f"{name}: {refused}")
