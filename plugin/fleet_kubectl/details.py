"""The view of one fleet in `top`: conditions, members with their partitions, and state changes. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from fleet_kubectl import groups
from fleet_kubectl.explaining import Facts, ago, explain
from fleet_kubectl.tables import compact, printable, table

JsonObject = Mapping[str, Any]


def detail_lines(body: JsonObject, now: float) -> list[str]:
    """The lines of the view: the fleet's explanation, its members, and its last state changes, newest first."""
    lines = explain(Facts(body), now)
    for title, content in (
        ("Members", _members(body)),
        ("Conditions, all", _conditions(body, now)),
        ("Changes of state", _changes(body, now)),
    ):
        rows = [*content]
        if rows:
            lines += ["", title, *rows]
    return lines


def _members(body: JsonObject) -> Iterator[str]:
    status = body.get("status") or {}
    members = status.get("members") or ()
    if not members:
        return
    rows = [
        tuple(
            printable(str(cell))
            for cell in (
                member.get("pod") or member.get("instanceId") or member.get("id") or "-",
                member.get("state") or "-",
                member.get("partitionCount", 0),
                " ".join(f"{each['topic']}:{each['ranges']}" for each in member.get("partitions") or ()),
            )
        )
        for member in members
    ]
    header = ("MEMBER", "STATE", "COUNT", "PARTITIONS")
    for line in table(header, rows, width=10_000, flexible={}, right={"COUNT"}):
        yield f"  {line}"
    total = status.get("memberCount")
    if total is not None and total > len(members):
        yield f"  and {total - len(members)} more members"
    fleet = groups.fleet_of(body)
    partitions = compact(status.get("partitions"))
    yield f"  {partitions} partitions, total lag about {compact(fleet.lag)}, behind {fleet.behind}"


def _conditions(body: JsonObject, now: float) -> Iterator[str]:
    rows = [
        (each["type"], each["status"], each["reason"], ago(each.get("lastTransitionTime"), now))
        for each in groups.conditions_of(body).values()
    ]
    if rows:
        for line in table(("TYPE", "STATUS", "REASON", "SINCE"), rows, width=10_000, flexible={}, right=set()):
            yield f"  {line}"


def _changes(body: JsonObject, now: float) -> Iterator[str]:
    for change in reversed((body.get("status") or {}).get("transitions") or ()):
        cause = f": {printable(change['cause'])}" if change.get("cause") else ""
        yield f"  {ago(change.get('at'), now)}  {change.get('from')} to {change.get('to')}{cause}"
