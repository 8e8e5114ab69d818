"""Derives Events from the differences between two statuses. Pure."""

from typing import Final, Literal, NamedTuple

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.scaling.decision import LAGGING

SILENT: Final = frozenset({conditions.SERVING, conditions.STALLED, conditions.LAG_KNOWN, conditions.PAUSED})
"""Conditions without Events: other conditions change together with them."""

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
"""Reasons of a condition in a state that will pass, such as a start, or that users want, such as a suspended group. A
condition with one of these reasons causes no Warning."""

ALWAYS_TOLD: Final = frozenset({conditions.READY, conditions.COMPLETE})
"""Conditions that always cause an Event when they recover, even without an earlier Warning."""


class Transition(NamedTuple):
    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def find_transitions(before: JsonObject, after: JsonObject) -> list[Transition]:
    """Find the conditions that became good or bad, or that are bad for a different reason than before.

    A change to Unknown is not a transition. A change from Unknown to good is recorded only for Ready. If several
    conditions of the object have the same reason and message, only one Event is recorded, because thousands of groups
    record Events during an outage of Kafka.
    """
    known, told = {c["type"]: c for c in before.get("conditions", ())}, set[tuple[str, str]]()
    found = [
        *_group_transitions(before, after),
        *_upgrade_transitions(before, after),
        *_coordinator_transitions(before, after),
        *_expired_transitions(before, after),
        *_lagging_transitions(before, after),
    ]
    for condition in after.get("conditions", ()):
        good = conditions.GOOD.get(condition["type"])
        if good is None or condition["type"] in SILENT or condition["status"] == "Unknown":
            continue
        old = known.get(condition["type"], {})
        if (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"]):
            continue
        is_good = condition["status"] == good
        if not is_good and condition["reason"] in ON_THE_WAY and (not old or old.get("reason") in ON_THE_WAY):
            continue  # progress of a new object, which its children's Events already show
        was_bad = old.get("status") in {"True", "False"} - {good}
        if is_good and not was_bad and (condition["type"] != conditions.READY or old.get("status") == good):
            continue
        if is_good and old.get("reason") in ON_THE_WAY and condition["type"] not in ALWAYS_TOLD:
            continue  # no Warning preceded, and a thousand new groups must not record Events for all their conditions
        cause = (condition["reason"], condition["message"])
        if cause in told:
            continue
        told.add(cause)
        note = f"{condition['type']}: {condition['message']}"
        calm = is_good or condition["reason"] in ON_THE_WAY
        found.append(Transition("Normal" if calm else "Warning", condition["reason"], note))
    return found


def _lagging_transitions(before: JsonObject, after: JsonObject) -> list[Transition]:
    """The transition of a fleet whose lag grows although the fleet is not at a limit that its user set. A fleet at a
    user's limit causes no Event here, because users set limits on purpose."""
    was, now = (
        conditions.find_condition(status.get("conditions") or (), conditions.SCALING_LIMITED) or {}
        for status in (before, after)
    )
    if now.get("reason") != LAGGING or was.get("reason") == LAGGING:
        return []
    return [Transition("Warning", LAGGING, now["message"])]


GROUP_DEAD: Final = "GroupDead"


def _group_transitions(before: JsonObject, after: JsonObject) -> list[Transition]:
    """The transitions of a Kafka group to Dead: the group no longer exists, and its offsets are lost.

    Other states of the group cause no Event here. Rebalances are routine; a rebalance that takes too long is a reason
    of Degraded; a group that cannot be observed is a reason of ClusterReachable.
    """
    known = {(entry["to"], entry["at"]) for entry in before.get("transitions") or ()}
    return [
        Transition(
            "Warning",
            GROUP_DEAD,
            f"the Kafka group no longer exists: {entry['cause']}; workers start at the offsets that "
            "spec.consumer.autoOffsetReset determines",
        )
        for entry in after.get("transitions") or ()
        if entry["to"] == "Dead" and entry["from"] != "Unknown" and (entry["to"], entry["at"]) not in known
    ]


UPGRADE_REASONS: Final = {
    "Rolling": "UpgradeBegun",
    "Complete": "UpgradeComplete",
    "Failed": conditions.UPGRADE_STOPPED,
}


def _upgrade_transitions(before: JsonObject, after: JsonObject) -> list[Transition]:
    """The transition of an upgrade that started, completed or failed. A failure matters to other groups, because their
    upgrades then wait."""
    old, new = before.get("upgrade") or {}, after.get("upgrade") or {}
    reason = UPGRADE_REASONS.get(new.get("phase", ""))
    if reason is None or new == old:
        return []
    brought = [f"image {new['image']}"] if "image" in new else []
    brought += ["the KafkaCluster's changed connection"] if "connection" in new else []
    note = f"upgrade to {' and '.join(brought)}: {new['phase']}"
    if new["phase"] != "Failed":
        return [Transition("Normal", reason, note)]
    progress = conditions.find_condition(after.get("conditions") or (), conditions.PROGRESSING) or {}
    return [Transition("Warning", reason, f"{note}; no further group gets this upgrade: {progress.get('message', '')}")]


def _coordinator_transitions(before: JsonObject, after: JsonObject) -> list[Transition]:
    """The transition of a group whose coordinator became crowded, or which moved to a crowded coordinator."""
    old, new = (status.get("coordinator") or {} for status in (before, after))
    if not new.get("crowded") or (old.get("crowded") and old.get("id") == new.get("id")):
        return []
    note = (
        f"broker {new.get('id')}, the coordinator of the Kafka group, coordinates far more groups than its share: see "
        "the condition CoordinatorsBalanced of the KafkaCluster; a different spec.groupId may map to another broker"
    )
    return [Transition("Warning", conditions.COORDINATOR_CROWDED, note)]


def _expired_transitions(before: JsonObject, after: JsonObject) -> list[Transition]:
    """The transition of a group that lost further records, which were deleted while they waited for a retry."""
    old, new = (status.get("retry") or {} for status in (before, after))
    lost = new.get("expired", 0) - old.get("expired", 0)
    if lost <= 0:
        return []
    known = old.get("expiredTo") or ()
    topics = sorted({end["topic"] for end in new.get("expiredTo") or () if end not in known})
    note = f"records that waited in {', '.join(topics)} were deleted before they could be handled, and are lost: {lost}"
    return [Transition("Warning", RETRIES_EXPIRED, f"{note}, {new['expired']} in all")]


RETRIES_EXPIRED: Final = "RetriesExpired"
