"""What a group's retries should be: the policy revisions that live, the delays that need a topic, what is in the way.

A record that waits follows the revision that it was given when it failed. So a policy's edit adds a revision and takes
none away: an old one leaves when nothing can name it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.contract import naming
from fleet_operator.planning.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRevision:
    """One content of a RetryPolicy, under its hash.

    `content` is what workers are given (see the worker's policy file), canonical: the hash is of this. `superseded_at`
    is when another revision took its place for new failures, in epoch seconds; None for the one that they follow.
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
        """All delays of the sequence together."""
        return sum(map(naming.parse_delay, self.sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryIntent:
    """The wanted retries of one ConsumerGroup.

    - `policy`: the RetryPolicy's name.
    - `wanted`: the content that the policy has now; None while it is absent or invalid.
    - `known`: the revisions that workers have been told of, the current one among them.
    - `current`: the hash that new failures follow, as published; None before the first publication.
    - `delays`: canonical texts of all delays that `known` and `wanted` use, and of those that the retry workers still
      read for the sake of what waits there: their topics must exist.
    - `drained_delays`: delays of topics that nobody reads any more; deleted, once they are seen to hold nothing.
    - `predecessors`: delays of topics that an earlier object of the same group left on the cluster, as long as nothing
      was
      published; None while that has not been looked for. Records may wait there that have no other reader.
    - `problem`: why the policy's present content cannot be used; `wanted` may all the same be an older content of it.
    - `ending`: the spec wants no retries any more; what waits is still being worked off.
    - `ended`: that is done, and nobody is left that writes or reads: the topics are the user's to delete.
    """

    policy: str
    wanted: PolicyRevision | None = None
    known: tuple[PolicyRevision, ...] = ()
    current: str | None = None
    delays: tuple[str, ...] = ()
    drained_delays: tuple[str, ...] = ()
    predecessors: tuple[str, ...] | None = ()
    problem: Problem | None = None
    ending: bool = False
    ended: bool = False

    @property
    def total_seconds(self) -> int:
        """The longest that any living revision lets a record wait, all its attempts together; 0 without revisions."""
        revisions = (*self.known, *((self.wanted,) if self.wanted else ()))
        return max((revision.total_seconds for revision in revisions), default=0)

    @property
    def may_pause(self) -> bool:
        """Whether a living revision has a budget on which workers act: nothing but themselves tells when they do."""
        revisions = (*self.known, *((self.wanted,) if self.wanted else ()))
        return any((revision.content.get("budget") or {}).get("action", "None") != "None" for revision in revisions)


def delays_of(revisions: Iterable[PolicyRevision]) -> tuple[str, ...]:
    """The distinct delays of several revisions, shortest first."""
    distinct = {delay for revision in revisions for delay in revision.sequence}
    return tuple(sorted(distinct, key=naming.parse_delay))
