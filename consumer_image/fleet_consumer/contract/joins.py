"""join.json: the workers added by one scaling step, which should join the group together.

Each join of a member causes a rebalance, during which the group stops. The workers of one step start within seconds of
each other. So all delay their first join until a common time, and the step causes only one rebalance. The workers wait
until a fixed time instead of exchanging messages, because DNS caches peers for seconds, and pods may be unreachable. A
change to a mounted file is not a usable signal either, because it reaches a pod only after a second or two. Workers do
not wait when a fleet is scaled up from zero.

Decision: docs/decisions/0049-scaling-steps.md.
"""

from typing import Any, Final, NamedTuple

from fleet_consumer.contract.section import Section

VERSION: Final = 1
HOLD_S: Final = 10.0
"""Seconds from a step until its workers join, enough to start pods and set up handlers. Slower workers join
immediately."""


class JoinStep(NamedTuple):
    """A scaling step: at `at` (epoch seconds) it added the workers with ordinals from `first` to `end` (exclusive)."""

    first: int
    end: int
    at: float

    def hold_s(self, ordinal: int, now: float) -> float:
        """Return the delay in seconds of a worker's first join.

        The delay is 0 if the common time has passed, or if the worker is not part of this step. It is also 0 if more
        than `HOLD_S` seconds seem to remain, because the machines' clocks then differ.
        """
        if not self.first <= ordinal < self.end:
            return 0.0
        left = self.at + HOLD_S - now
        return left if 0.0 < left <= HOLD_S else 0.0


def render_join(uid: str, step: JoinStep) -> dict[str, Any]:
    """Return the JSON object of a join.json; `uid` is the ConsumerGroup's."""
    return {"version": VERSION, "uid": uid, "first": step.first, "end": step.end, "atMs": round(step.at * 1000)}


def parse_join(document: Any, uid: str) -> JoinStep | None:
    """Return the step of a join.json, or None if the file belongs to another ConsumerGroup. Raises SettingsInvalid."""
    section = Section(document, "join.json")
    section.integer("version", VERSION, VERSION)
    of, first, end = section.text("uid"), section.integer("first", 0), section.integer("end", 0)
    at = section.integer("atMs", 0) / 1000
    section.end()
    return JoinStep(first, end, at) if of == uid else None
