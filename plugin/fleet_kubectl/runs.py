"""Formats the progress and the result of a Redrive or OffsetReset as lines. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fleet_kubectl import groups
from fleet_kubectl.tables import printable, table
from fleet_operator.api.v1alpha1 import conditions as c

JsonObject = Mapping[str, Any]

FINAL: Final = frozenset({"Succeeded", "Failed", "Cancelled"})
COUNTS: Final = (
    ("selected", "match"),
    ("moved", "put back"),
    ("movedBefore", "were put back before"),
    ("guarded", "were put back too often"),
    ("failedAgain", "failed again after a redrive"),
    ("remaining", "offsets left to read"),
)
PARTITIONS_MAX: Final = 20


def phase_of(body: JsonObject) -> str:
    return str((body.get("status") or {}).get("phase") or "Pending")


def is_final(body: JsonObject) -> bool:
    return phase_of(body) in FINAL


def reason_text(body: JsonObject) -> str:
    """Reason and message of the most informative condition: Failed if True, else Complete, else Ready."""
    found = groups.conditions_of(body)
    failed = found.get(c.FAILED)
    chosen = (
        failed if failed is not None and failed["status"] == "True" else found.get(c.COMPLETE) or found.get(c.READY)
    )
    return (
        f"{chosen['reason']}: {printable(chosen.get('message') or '')}"
        if chosen
        else "the operator has not seen it yet"
    )


def progress_line(body: JsonObject) -> str:
    """One line: the run's phase, with the numbers of records or, while the run waits, with the reason."""
    status, phase = body.get("status") or {}, phase_of(body)
    shown = [f"{status[name]} {words}" for name, words in COUNTS if status.get(name)]
    if status.get("ratePerSecond"):
        shown.append(f"{status['ratePerSecond']} per second")
    who = f"{body['kind']} {body['metadata']['name']}"
    if shown and phase in ("Running", "Succeeded"):
        return f"{who} is {phase}: {', '.join(shown)}"
    return f"{who} is {phase}: {reason_text(body)}"


def redrive_end(body: JsonObject, namespace: str) -> list[str]:
    """The result of a successful Redrive, with commands that show if the records were handled."""
    status, group = body.get("status") or {}, body["spec"]["groupRef"]["name"]
    lines = [f"  {status[name]:>9}  {words}" for name, words in COUNTS if status.get(name) is not None]
    if body["spec"].get("dryRun"):
        return [*lines, "This was a dry run: nothing was put back."]
    if not status.get("moved"):
        return [*lines, f"No record was put back: {reason_text(body)}"]
    return [
        *lines,
        "The records are in the redrive topic now. All of them are handled when WAITING is 0 again:",
        f"  kubectl fleet status {group} -n {namespace}",
        "To count the records that failed again:",
        f"  kubectl fleet redrive {group} -n {namespace} --from {status.get('startedAt', '1h')} --dry-run",
    ]


def reset_plan(body: JsonObject) -> list[str]:
    """The offsets before and after the reset: a line for each partition, largest change first, then the sums."""
    status = body.get("status") or {}
    before = {(each["topic"], each["partition"]): each["offset"] for each in status.get("previous") or ()}
    after = {(each["topic"], each["partition"]): each["offset"] for each in status.get("resolved") or ()}
    changes = {place: offset - before[place] for place, offset in after.items() if place in before}
    order = sorted(after, key=lambda place: (-abs(changes.get(place, 0)), place))
    rows = [
        (place[0], str(place[1]), str(before.get(place, "-")), str(after[place]), _signed(changes.get(place)))
        for place in order[:PARTITIONS_MAX]
    ]
    header = ("TOPIC", "PARTITION", "BEFORE", "AFTER", "CHANGE")
    lines = table(header, rows, width=100, flexible={"TOPIC": 16}, right={*header} - {"TOPIC"})
    if len(order) > PARTITIONS_MAX:
        lines.append(f"and {len(order) - PARTITIONS_MAX} more partitions")
    again, left = -sum(n for n in changes.values() if n < 0), sum(n for n in changes.values() if n > 0)
    lines.append(
        f"{again} offsets are read again, {left} are skipped; partitions without a commit: {len(after) - len(changes)}"
    )
    if status.get("note"):
        lines.append(printable(status["note"]))
    return lines


def _signed(change: int | None) -> str:
    return "-" if change is None else f"{change:+d}" if change else "0"


def reset_end(body: JsonObject, namespace: str) -> list[str]:
    """The lines after a successful reset: the next command, and how to undo the reset."""
    name, group = body["metadata"]["name"], body["spec"]["groupRef"]["name"]
    return [
        f"The offsets are set, and the workers start: kubectl fleet status {group} -n {namespace}",
        "To undo the reset, create an OffsetReset with `to: Offsets` and the former offsets, which are in this object:",
        f"  kubectl get kor {name} -n {namespace} -o jsonpath='{{.status.previous}}'",
    ]


def changed(bodies: Iterator[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    """Yield a run's states with their progress line. States with the same line as before are left out."""
    last = ""
    for body in bodies:
        line = progress_line(body)
        if line != last:
            yield body, line
            last = line
