"""The retries part of a group's state: past and future of its published policies, and of its retry workers' number.

The policies themselves stand in the ConfigMap that the workers mount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from fleet_operator.planning.state.sizing import Count, Time


@dataclass(frozen=True, slots=True)
class Redriven:
    """A sum of end offsets of the failed topic with this id: later records are failures that were not put back."""

    topic_id: str
    to: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySizing:
    """The number of retry workers, and the one that was too small lately.

    - `count`: the number of retry workers that was decided last, and `changed_at` when it changed.
    - `shrunk_at`: when workers were last removed while records were due; `short` workers were too few at `short_at`.
    - `most`: the last `spec.retry.worker.maxReplicas`, which holds while retries end, too.
    """

    count: Count | None = None
    most: Count | None = None
    changed_at: Time | None = None
    shrunk_at: Time | None = None
    short: Count = 0
    short_at: Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesState:
    """Times are epoch seconds.

    - `published_at`: last change of the policies that workers read; None for a group that never had retries.
    - `superseded`: when another revision replaced a published one for new failures, by hash.
    - `leaving`: delays whose topics are deleted when nothing waits in them; `drained`: draining delays in which nothing
      waits, longest first.
    - `ending_since`: when the spec stopped wanting retries.
    - `redriven`: what finished Redrives have found.
    """

    published_at: Time | None = None
    superseded: Mapping[str, Time] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    ending_since: Time | None = None
    redriven: Redriven | None = None
    sizing: RetrySizing = field(default_factory=RetrySizing)
