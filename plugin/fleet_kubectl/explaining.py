"""Explains one ConsumerGroup: its state, number of workers, refused revision and retries. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fleet_kubectl import groups
from fleet_kubectl.tables import compact, cut, printable, wrapped
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.explanations import EXPLANATIONS, Explanation
from fleet_operator.planning import labels, times

JsonObject = Mapping[str, Any]

MESSAGE_CHARACTERS: Final = 400
ENDS_MAX: Final = 6
"""MESSAGE_CHARACTERS: maximum length of one container's message. ENDS_MAX: maximum number of containers that are
shown."""
CALM_WAITS: Final = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class Facts:
    """One ConsumerGroup, its pods, and its Redrives and OffsetResets (`runs`). `missing` has a line for each kind that
    could not be read."""

    group: JsonObject
    pods: Sequence[JsonObject] = ()
    runs: Sequence[JsonObject] = ()
    missing: Sequence[str] = field(default=())

    @property
    def name(self) -> str:
        return str(self.group["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.group["metadata"]["namespace"])

    @property
    def status(self) -> JsonObject:
        return self.group.get("status") or {}


def explain(facts: Facts, now: float) -> list[str]:
    """The output lines of `explain`. Sections without content are left out."""
    lines = _headline(facts)
    parts = (
        ("Conditions", [*_conditions(facts)]),
        ("Workers", [*_workers(facts)]),
        ("Pods that ended or do not start", [*_ends(facts)]),
        ("Kafka group", [*_kafka(facts, now)]),
        ("Retries and failed records", [*_retries(facts, now)]),
        ("Runs", [*_runs(facts)]),
        ("What to do", [*_steps(facts)]),
        ("Not read", [f"  {line}" for line in facts.missing]),
    )
    for title, content in parts:
        if content:
            lines += ["", title, *content]
    return lines


def _headline(facts: Facts) -> list[str]:
    fleet = groups.fleet_of(facts.group)
    who = f"ConsumerGroup {facts.namespace}/{facts.name}"
    if fleet.reason == groups.NOT_SEEN:
        text = (
            "has no status yet: the operator has not seen it. Check that the operator runs, and serves this namespace."
        )
        return wrapped(f"{who} {text}", indent="  ", first="")
    verdict = {"True": "is Ready", "False": "is not Ready"}.get(fleet.ready, "has an unknown state")
    lines = [f"{who} {verdict}: {fleet.reason}"]
    lines += wrapped(_message(groups.conditions_of(facts.group)[c.READY]), indent="  ")
    seen, newest = facts.status.get("observedGeneration"), facts.group["metadata"].get("generation")
    if seen is not None and newest is not None and seen < newest:
        lines.append("  The spec has changed, and the operator has not written a status for the new spec yet.")
    return lines


def _conditions(facts: Facts) -> Iterator[str]:
    """Yield bad and notable conditions, grouped by reason and message, with the meaning of the reason."""
    together: dict[tuple[str, str], list[JsonObject]] = {}
    for condition in groups.conditions_of(facts.group).values():
        if groups.is_bad(condition) or groups.NOTABLE.get(condition["type"]) == condition["status"]:
            together.setdefault((condition["reason"], _message(condition)), []).append(condition)
    for (reason, message), found in together.items():
        names = ", ".join(f"{each['type']} is {each['status']}" for each in found)
        yield from wrapped(f"{names}: {reason}", indent="    ", first="  ")
        if not any(each["type"] == c.READY for each in found):  # the headline already shows this message
            yield from wrapped(message, indent="    ")
        known = explanation_of(found)
        if known is not None:
            yield from wrapped(f"Meaning: {known.meaning}", indent="             ", first="    ")
            yield f"    First:   {command_of(known, facts)}"
            yield f"    Page:    docs/{known.page}"


def explanation_of(found: Sequence[JsonObject]) -> Explanation | None:
    """The explanation of the first condition's reason or, without one, of its type; None without either."""
    words = (found[0]["reason"], found[0]["type"])
    return next((EXPLANATIONS[word] for word in words if word in EXPLANATIONS), None)


def command_of(known: Explanation, facts: Facts) -> str:
    """The command of an explanation, with placeholders replaced by this group's names and namespace."""
    pod = facts.status.get("stuckPartitions") or facts.status.get("members") or ()
    named = next((each["pod"] for each in pod if each.get("pod")), f"{facts.name}-fleet-0")
    spec = facts.group.get("spec") or {}
    words = known.command.split()
    names = {"NAME": facts.name, "PODNAME": named, "CLUSTER": (spec.get("clusterRef") or {}).get("name", "CLUSTER")}
    command = " ".join(names.get(word, word) for word in words)
    if words[:1] == ["kubectl"] and "--namespace" not in words and "-n" not in words:
        command = f"{command} -n {facts.namespace}"
    return command


def _workers(facts: Facts) -> Iterator[str]:
    status, found = facts.status, groups.conditions_of(facts.group)
    fleet = groups.fleet_of(facts.group)
    if fleet.target is None:
        return
    yield f"  {fleet.workers} ready of {fleet.target} wanted; {status.get('replicas', 0)} pods exist"
    active, limit = found.get(c.SCALING_ACTIVE), status.get("limit")
    if active is not None:
        yield from wrapped(f"Chosen by: {active['reason']}: {_message(active)}", indent="    ", first="  ")
    if limit and limit != "None":
        known = EXPLANATIONS.get(limit)
        yield from wrapped(f"Limit: {limit}" + (f": {known.meaning}" if known else ""), indent="    ", first="  ")
    scaling = status.get("scaling") or {}
    if not scaling:
        return
    if scaling.get("decision"):
        said = f"Decision: {scaling['decision']} at {scaling.get('at', '-')}: {scaling.get('reason', '-')}"
        yield from wrapped(said, indent="    ", first="  ")
    inputs = (
        ("arrivalPerSecond", "arrive per second"),
        ("perReplicaPerSecond", "per second and worker"),
        ("rawReplicas", "workers needed with reserve"),
        ("usefulReplicas", "workers at which even the busiest worker keeps up"),
        ("proposedReplicas", "workers proposed, not applied"),
    )
    shown = [f"{scaling[name]} {words}" for name, words in inputs if scaling.get(name) is not None]
    if shown:
        yield from wrapped("Inputs: " + "; ".join(shown), indent="    ", first="  ")
    step = scaling.get("lastStep")
    if step:
        said = f"Last step: {step['from']} to {step['to']} at {step['at']}: {step['reason']}"
        yield from wrapped(said, indent="    ", first="  ")


def _ends(facts: Facts) -> Iterator[str]:
    """Yield containers that ended with an error or are waiting, those of check pods of a new revision first."""
    found = [
        (component != labels.CHECK, pod["metadata"]["name"], line)
        for pod in facts.pods
        for component in [labels.label_of(pod, labels.COMPONENT_LABEL)]
        for line in container_ends(pod)
    ]
    for _, _, line in sorted(found)[:ENDS_MAX]:
        yield from wrapped(line, indent="    ", first="  ")
    if len(found) > ENDS_MAX:
        yield f"  and {len(found) - ENDS_MAX} more (kubectl get pods -l {labels.GROUP_LABEL}={facts.name})"


def container_ends(pod: JsonObject) -> Iterator[str]:
    """Yield a line for each container that ended with an error or waits, and for an unschedulable pod. Containers that
    wait because they are being created are left out."""
    revision = labels.annotation_of(pod, labels.REVISION_ANNOTATION)
    who = f"{pod['metadata']['name']}" + (f" (revision {revision})" if revision else "")
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state, last = container.get("state") or {}, container.get("lastState") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in CALM_WAITS:
            said = f": {waiting['message']}" if waiting.get("message") else ""
            yield cut(f"{who}, container {container['name']} waits: {waiting['reason']}{said}", MESSAGE_CHARACTERS)
        ended = state.get("terminated") or last.get("terminated") or {}
        if ended.get("exitCode"):
            said = termination_text(ended.get("message") or "") or ended.get("reason") or ""
            restarts = container.get("restartCount") or 0
            often = f", {restarts} restarts" if restarts else ""
            yield cut(
                f"{who}, container {container['name']} ended with exit code {ended['exitCode']}{often}: {said}",
                MESSAGE_CHARACTERS,
            )
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield cut(f"{who} has no node: {condition.get('message', condition.get('reason', ''))}", MESSAGE_CHARACTERS)


def termination_text(message: str) -> str:
    """The last line of a termination message. If it is a worker's JSON, only its reason and message."""
    last = message.strip().rsplit("\n", 1)[-1]
    try:
        said = json.loads(last)
    except (ValueError, RecursionError):
        return last
    if not isinstance(said, dict) or "reason" not in said:
        return last
    return f"{said['reason']}: {said.get('message', '')}"


def _kafka(facts: Facts, now: float) -> Iterator[str]:
    status, fleet = facts.status, groups.fleet_of(facts.group)
    if not status.get("groupId"):
        return
    since = f", since {ago(status.get('stateSince'), now)}" if status.get("stateSince") else ""
    members = status.get("memberCount")
    yield f"  {printable(status['groupId'])} is {fleet.state}{since}; {compact(members)} members"
    if fleet.lag is not None:
        known = "" if fleet.lag_known else " (last known)"
        yield f"  lag about {compact(fleet.lag)}{known}, behind {fleet.behind}"
    for stuck in status.get("stuckPartitions") or ():
        place = f"{stuck['topic']}-{stuck['partition']}:{stuck.get('offset', '?')}"
        said = f"{place} is stuck in {stuck.get('pod') or '-'}: {stuck['reason']}: {stuck.get('message', '')}"
        yield from wrapped(said, indent="    ", first="  ")


def _retries(facts: Facts, now: float) -> Iterator[str]:
    retry = facts.status.get("retry") or {}
    if not retry:
        return
    if retry.get("waiting") is not None:
        due = f"; the next is due {ago(retry['nextDueAt'], now)}" if retry.get("nextDueAt") else ""
        late = f"; {compact(retry['dueLag'])} are due" if retry.get("dueLag") else ""
        yield f"  about {compact(retry['waiting'])} records wait for a retry{due}{late}"
    if retry.get("failed") is not None:
        yield f"  {compact(retry['failed'])} failed records are in the failed topic"
    for row in retry.get("failedReasons") or ():
        named = printable(row.get("errorClass") or "")
        yield f"    at least {compact(row.get('records'))}: {row['reason']} {named}".rstrip()
    if retry.get("expired"):
        yield f"  {compact(retry['expired'])} records expired in retry topics before they were handled"


def _runs(facts: Facts) -> Iterator[str]:
    """Yield the Redrives and OffsetResets that have not ended."""
    for run in facts.runs:
        status = run.get("status") or {}
        phase = status.get("phase") or "Pending"
        if phase in ("Succeeded", "Failed", "Cancelled"):
            continue
        complete = groups.conditions_of(run).get(c.COMPLETE) or {}
        said = f": {complete['reason']}: {_message(complete)}" if complete else ""
        yield from wrapped(f"{run['kind']} {run['metadata']['name']} is {phase}{said}", indent="    ", first="  ")


def _steps(facts: Facts) -> Iterator[str]:
    """Yield the commands that help, in the order in which to run them."""
    fleet, found = groups.fleet_of(facts.group), groups.conditions_of(facts.group)
    steps: list[str] = []
    bad = [condition for condition in found.values() if groups.is_bad(condition)]
    for condition in bad:
        known = explanation_of([condition])
        if known is not None:
            steps.append(command_of(known, facts))
    own = f"{facts.name} -n {facts.namespace}"
    if bad and fleet.workers:
        steps.append(f"kubectl fleet logs {own}")
    if fleet.failed:
        steps += [f"kubectl fleet failed count {own}", f"kubectl fleet failed list {own} --limit 10"]
        if (facts.group.get("spec") or {}).get("retry"):
            steps.append(f"kubectl fleet redrive {own}    (after the handler is corrected; shows a preview and asks)")
    for number, step in enumerate(dict.fromkeys(steps), 1):
        yield f"  {number}. {step}"
    if not steps:
        yield "  Nothing." if fleet.ready == "True" else f"  Wait, then run again: kubectl fleet explain {own}"


def ago(text: str | None, now: float) -> str:
    """Format an API time with its distance from `now`, such as `2026-01-31T12:00:00Z (4m ago)`."""
    at = times.from_text(text)
    if at is None:
        return printable(text or "-")
    distance = times.duration_text(int(abs(at - now)))
    return f"{printable(text or '')} ({distance} ago)" if at <= now else f"{printable(text or '')} (in {distance})"


def _message(condition: JsonObject) -> str:
    return printable(condition.get("message") or "")
