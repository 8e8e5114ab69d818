"""Events that follow from the change between two statuses. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.scaling.decision import LAGGING

GOOD: Final[dict[str, str]] = {
    conditions.READY: "True",
    conditions.CLUSTER_REACHABLE: "True",
    conditions.TOPICS_READY: "True",
    conditions.OFFSETS_TOPIC_SIZED: "True",
    conditions.COORDINATORS_AVAILABLE: "True",
    conditions.COORDINATORS_BALANCED: "True",
    conditions.COMPLETE: "True",
    conditions.DEGRADED: "False",
    conditions.STUCK: "False",
    conditions.GROUP_SHARED: "False",
    conditions.OFFSETS_KEPT: "True",
    conditions.RETRIES_KEPT: "True",
}
"""The conditions whose turning is worth an Event, with the status that is good news."""

ON_THE_WAY: Final = frozenset(
    {
        conditions.CHECKING_REVISION,
        conditions.ROLLING_OUT,
        conditions.WAITING_FOR_REPLICAS,
        conditions.WAITING_FOR_GROUP,
        conditions.TOPIC_NOT_CREATED,
        conditions.TOPICS_CHANGING,
        conditions.SUSPENDED,
        conditions.RESETTING_OFFSETS,
        conditions.NOT_YET_OBSERVED,
        conditions.TOPICS_NOT_READY,
        conditions.GROUP_SUSPENDED,
        conditions.PAUSED_BY_ANNOTATION,
        conditions.ANOTHER_REDRIVE_RUNS,
        conditions.WAITING_FOR_LAST_RUN,
        conditions.RUNNING,
        conditions.RATE_CHANGED,
        conditions.RESOLVING,
        conditions.RESOLVED,
        conditions.STARTING,
        conditions.STOPPING,
        conditions.STOPPED,
        conditions.PASS_DONE,
        conditions.EXPIRY_ALLOWED,
    }
)
"""Reasons of conditions that are not good yet, or not meant to be: nothing to warn of."""


ALWAYS_TOLD: Final = frozenset({conditions.READY, conditions.COMPLETE})
"""Conditions that are told when they become good, also where nobody was warned before."""


class Turn(NamedTuple):
    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def turns(before: JsonObject, after: JsonObject) -> list[Turn]:
    """The conditions that became good or bad, or bad for another reason.

    Unknown is no news by itself, and a condition that becomes good for the first time in a row of Unknowns is only
    worth an Event for Ready. One cause that several conditions give in the same words is told once: an outage of Kafka
    under thousands of groups is thousands of Events as it is.
    """
    known, told = {c["type"]: c for c in before.get("conditions", ())}, set[tuple[str, str]]()
    found = [
        *_group_turns(before, after),
        *_upgrade_turns(before, after),
        *_coordinator_turns(before, after),
        *_expired_turns(before, after),
        *_lagging_turns(before, after),
    ]
    for condition in after.get("conditions", ()):
        good = GOOD.get(condition["type"])
        if good is None or condition["status"] == "Unknown":
            continue
        old = known.get(condition["type"], {})
        if (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"]):
            continue
        is_good = condition["status"] == good
        if not is_good and condition["reason"] in ON_THE_WAY and (not old or old.get("reason") in ON_THE_WAY):
            continue  # the first visit of a new object, and its next step, of which its children's Events tell
        was_bad = old.get("status") in {"True", "False"} - {good}
        if is_good and not was_bad and (condition["type"] != conditions.READY or old.get("status") == good):
            continue
        if is_good and old.get("reason") in ON_THE_WAY and condition["type"] not in ALWAYS_TOLD:
            continue  # nobody was warned: of a thousand new groups each would say it for each of its conditions
        cause = (condition["reason"], condition["message"])
        if cause in told:
            continue
        told.add(cause)
        note = f"{condition['type']}: {condition['message']}"
        calm = is_good or condition["reason"] in ON_THE_WAY
        found.append(Turn("Normal" if calm else "Warning", condition["reason"], note))
    return found


def _lagging_turns(before: JsonObject, after: JsonObject) -> list[Turn]:
    """A fleet that falls behind, and that no bound of anybody keeps small. Other bounds are somebody's wish."""
    was, now = (
        conditions.find_condition(status.get("conditions") or (), conditions.SCALING_LIMITED) or {}
        for status in (before, after)
    )
    if now.get("reason") != LAGGING or was.get("reason") == LAGGING:
        return []
    return [Turn("Warning", LAGGING, now["message"])]


GROUP_DEAD: Final = "GroupDead"


def _group_turns(before: JsonObject, after: JsonObject) -> list[Turn]:
    """A Kafka group that is gone, and its offsets with it.

    No other state is worth an Event: rebalances are daily work, one that lasts is a reason of Degraded, and a group
    that cannot be observed is one of ClusterReachable.
    """
    known = {(entry["to"], entry["at"]) for entry in before.get("transitions") or ()}
    return [
        Turn(
            "Warning",
            GROUP_DEAD,
            f"the Kafka group does not exist any more: {entry['cause']}; workers begin where "
            "spec.consumer.autoOffsetReset says",
        )
        for entry in after.get("transitions") or ()
        if entry["to"] == "Dead" and entry["from"] != "Unknown" and (entry["to"], entry["at"]) not in known
    ]


UPGRADE_REASONS: Final = {
    "Rolling": "UpgradeBegun",
    "Complete": "UpgradeComplete",
    "Failed": conditions.UPGRADE_STOPPED,
}


def _upgrade_turns(before: JsonObject, after: JsonObject) -> list[Turn]:
    """An upgrade that has begun, has arrived, or has failed and so holds up those of other groups."""
    old, new = before.get("upgrade") or {}, after.get("upgrade") or {}
    reason = UPGRADE_REASONS.get(new.get("phase", ""))
    if reason is None or new == old:
        return []
    brought = [f"image {new['image']}"] if "image" in new else []
    brought += ["the KafkaCluster's changed connection"] if "connection" in new else []
    note = f"upgrade to {' and '.join(brought)}: {new['phase']}"
    if new["phase"] != "Failed":
        return [Turn("Normal", reason, note)]
    progress = conditions.find_condition(after.get("conditions") or (), conditions.PROGRESSING) or {}
    return [Turn("Warning", reason, f"{note}; no further group goes over to it: {progress.get('message', '')}")]


def _coordinator_turns(before: JsonObject, after: JsonObject) -> list[Turn]:
    """A group that has come to a crowded coordinator, or whose coordinator has become crowded."""
    old, new = (status.get("coordinator") or {} for status in (before, after))
    if not new.get("crowded") or (old.get("crowded") and old.get("id") == new.get("id")):
        return []
    note = (
        f"broker {new.get('id')}, the coordinator of the Kafka group, coordinates far more groups than its share: see "
        "the condition CoordinatorsBalanced of the KafkaCluster; another spec.groupId may fall on another broker"
    )
    return [Turn("Warning", conditions.COORDINATOR_CROWDED, note)]


def _expired_turns(before: JsonObject, after: JsonObject) -> list[Turn]:
    """Records that were deleted while they waited for a retry."""
    old, new = (status.get("retry") or {} for status in (before, after))
    lost = new.get("expired", 0) - old.get("expired", 0)
    if lost <= 0:
        return []
    known = old.get("expiredTo") or ()
    topics = sorted({end["topic"] for end in new.get("expiredTo") or () if end not in known})
    note = f"records that waited in {', '.join(topics)} were deleted before they could be handled, and are lost: {lost}"
    return [Turn("Warning", RETRIES_EXPIRED, f"{note}, {new['expired']} in all")]


RETRIES_EXPIRED: Final = "RetriesExpired"
