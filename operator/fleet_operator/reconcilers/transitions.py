"""News for people in what changed between two statuses. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import JsonObject

GOOD: Final[dict[str, str]] = {
    conditions.READY: "True",
    conditions.CLUSTER_REACHABLE: "True",
    conditions.TOPICS_READY: "True",
    conditions.OFFSETS_TOPIC_SIZED: "True",
    conditions.DEGRADED: "False",
    conditions.STUCK: "False",
    conditions.GROUP_SHARED: "False",
}
"""The conditions whose turning is worth an Event, with the status that is good news."""


class Turn(NamedTuple):
    """A condition that turned."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def turns(before: JsonObject, after: JsonObject) -> list[Turn]:
    """The conditions that became good or bad, or bad for another reason.

    Unknown is no news by itself, and a condition that becomes good for the first time in a row of Unknowns is only
    worth telling for Ready.
    """
    known = {c["type"]: c for c in before.get("conditions", ())}
    found = []
    for condition in after.get("conditions", ()):
        good = GOOD.get(condition["type"])
        if good is None or condition["status"] == "Unknown":
            continue
        old = known.get(condition["type"], {})
        if (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"]):
            continue
        is_good = condition["status"] == good
        was_bad = old.get("status") in {"True", "False"} - {good}
        if is_good and not was_bad and (condition["type"] != conditions.READY or old.get("status") == good):
            continue
        note = f"{condition['type']}: {condition['message']}"
        found.append(Turn("Normal" if is_good else "Warning", condition["reason"], note))
    return found
