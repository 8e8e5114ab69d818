"""join.json: the workers that one step of a fleet adds, so that they join the group together.

A group stops for a rebalance whenever a member joins. Workers of one step start within seconds of each other, so each
holds its first join until a time that all of them know, and the step is one rebalance.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fleet_consumer.contract.section import Section

VERSION: Final = 1
"""Version of the file format."""
HOLD_S: Final = 10.0
"""Time from a step to the join of its workers: pods are scheduled, started and set up within it. One that takes longer
joins by itself."""


class JoinStep(NamedTuple):
    """The ordinals from `first` to before `end`, which a step added at a time, epoch seconds."""

    first: int
    end: int
    at: float

    def hold_s(self, ordinal: int, now: float) -> float:
        """Seconds for which a worker holds its first join; 0 for one that is not of this step, or late.

        The clocks of two machines differ: none holds for longer than `HOLD_S`, whatever its clock says.
        """
        if not self.first <= ordinal < self.end:
            return 0.0
        left = self.at + HOLD_S - now
        return left if 0.0 < left <= HOLD_S else 0.0


def render_join(uid: str, step: JoinStep) -> dict[str, Any]:
    """The JSON object of a join.json; `uid` is that of the ConsumerGroup."""
    return {"version": VERSION, "uid": uid, "first": step.first, "end": step.end, "atMs": round(step.at * 1000)}


def parse_join(document: Any, uid: str) -> JoinStep | None:
    """The step of a parsed join.json; None where it is of another ConsumerGroup. Raises SettingsInvalid."""
    section = Section(document, "join.json")
    section.integer("version", VERSION, VERSION)
    of, first, end = section.text("uid"), section.integer("first", 0), section.integer("end", 0)
    at = section.integer("atMs", 0) / 1000
    section.end()
    return JoinStep(first, end, at) if of == uid else None
