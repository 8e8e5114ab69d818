"""`kubectl fleet explain`: the state, the count, the refusal, retries, and the commands that come next."""

from __future__ import annotations

import json

from fleet_kubectl.explaining import Facts, container_ends, explain, termination_text
from fleet_operator.api.v1alpha1.explanations import EXPLANATIONS
from fleet_operator.planning import labels
from fleet_operator.planning.times import to_text
from tests.unit.plugin.fleets import NOW, condition, group, pod


def section(lines: list[str], title: str) -> list[str]:
    """The lines below a title, without their margin; empty if the title is absent."""
    if title not in lines:
        return []
    rest = lines[lines.index(title) + 1 :]
    end = rest.index("") if "" in rest else len(rest)
    return [line.strip() for line in rest[:end]]


def test_healthy_fleet_needs_nothing() -> None:
    lines = explain(Facts(group()), NOW)
    assert lines[0] == "ConsumerGroup shop/orders is Ready: FleetReady"
    assert section(lines, "What to do") == ["Nothing."]
    assert section(lines, "Conditions") == []


def test_each_problem_has_its_meaning_and_its_first_command() -> None:
    missing = "topic orders-done does not exist; create it"
    body = group(
        "orders",
        "shop",
        condition("Ready", "False", "TopicNotFound", missing),
        condition("Degraded", "True", "TopicNotFound", missing),
        readyReplicas=0,
    )
    lines = explain(Facts(body), NOW)
    assert lines[0] == "ConsumerGroup shop/orders is not Ready: TopicNotFound"
    assert missing in lines[1]
    shown = "\n".join(lines)
    assert "Ready is False, Degraded is True: TopicNotFound" in shown
    known = EXPLANATIONS["TopicNotFound"]
    assert known.meaning.split(".")[0] in " ".join(shown.split())
    assert f"docs/{known.page}" in shown
    first = section(lines, "What to do")[0]
    assert first.startswith("1. kubectl ")
    assert first.endswith("-n shop")
    assert "NAME" not in first


def test_number_of_workers_is_explained_by_the_decision_and_its_inputs() -> None:
    scaling = {
        "arrivalPerSecond": "120",
        "perReplicaPerSecond": "50",
        "rawReplicas": "3.1",
        "decision": "Grow",
        "reason": "the load needs 4 workers",
        "at": to_text(NOW - 30),
        "lastStep": {"from": 2, "to": 4, "at": to_text(NOW - 30), "reason": "the load needs 4 workers"},
    }
    body = group(
        "orders",
        "shop",
        condition("ScalingActive", "True", "ScaledByLoad"),
        scaling=scaling,
        limit="MaxReplicas",
        targetReplicas=4,
    )
    shown = section(explain(Facts(body), NOW), "Workers")
    assert shown[0] == "3 ready of 4 wanted; 3 pods exist"
    assert any(line.startswith("Limit: MaxReplicas") for line in shown)
    assert any(line.startswith("Decision: Grow at ") and "needs 4 workers" in line for line in shown)
    assert "Inputs: 120 arrive per second; 50 per second and worker; 3.1 workers needed with reserve" in shown
    assert any(line.startswith("Last step: 2 to 4 at ") for line in shown)


def test_refused_revision_shows_the_end_of_its_check_pod_before_workers() -> None:
    ended = json.dumps({"ok": False, "reason": "HandlerNotFound", "message": "module handler has no handle"})
    check = pod(
        "orders-fleet-check-abc",
        labels.CHECK,
        state={"terminated": {"exitCode": 20, "message": f"Traceback …\n{ended}\n"}},
    )
    check["metadata"]["annotations"] = {labels.REVISION_ANNOTATION: "abc"}
    waits = pod("orders-fleet-0", state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    calm = pod("orders-fleet-1", state={"waiting": {"reason": "ContainerCreating"}})
    shown = section(explain(Facts(group(), pods=[calm, waits, check]), NOW), "Pods that ended or do not start")
    text = " ".join(shown)
    assert text.startswith("orders-fleet-check-abc (revision abc), container worker ended with exit code 20:")
    assert "HandlerNotFound: module handler has no handle" in text
    assert "orders-fleet-0, container worker waits: ImagePullBackOff: no such image" in text
    assert "orders-fleet-1" not in text


def test_pod_that_ended_well_is_not_shown() -> None:
    assert [*container_ends(pod("orders-fleet-0", state={"terminated": {"exitCode": 0}}))] == []


def test_termination_message_of_another_program_is_shown_by_its_last_line() -> None:
    assert termination_text("one\ntwo\n") == "two"
    assert termination_text('["reason"]') == '["reason"]'
    assert termination_text("") == ""
    assert termination_text("[" * 100_000) == "[" * 100_000


def test_retries_failed_records_and_the_way_back() -> None:
    retry = {
        "waiting": 8,
        "nextDueAt": to_text(NOW + 240),
        "dueLag": 2,
        "failed": 2,
        "failedReasons": [{"reason": "Exhausted", "errorClass": "ValueError", "records": 2}],
    }
    spec = {"retry": {"policyRef": {"name": "standard"}}}
    lines = explain(Facts(group("orders", "shop", spec=spec, retry=retry)), NOW)
    shown = section(lines, "Retries and failed records")
    assert shown[0] == f"about 8 records wait for a retry; the next is due {to_text(NOW + 240)} (in 4m); 2 are due"
    assert "at least 2: Exhausted ValueError" in shown
    steps = section(lines, "What to do")
    assert steps[0] == "1. kubectl fleet failed count orders -n shop"
    assert any("kubectl fleet redrive orders -n shop" in step for step in steps)
    without = explain(Facts(group("orders", "shop", retry=retry)), NOW)
    assert not any("redrive" in step for step in section(without, "What to do"))


def test_stuck_partition_and_open_run_are_named() -> None:
    stuck = {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "pod": "orders-fleet-1",
        "reason": "Poison",
        "message": "dies",
    }
    run = {
        "kind": "Redrive",
        "metadata": {"name": "fixed"},
        "status": {
            "phase": "Pending",
            "conditions": [condition("Complete", "False", "AnotherRedriveRuns", "first is not done")],
        },
    }
    done = {"kind": "Redrive", "metadata": {"name": "old"}, "status": {"phase": "Succeeded"}}
    lines = explain(Facts(group("orders", "shop", stuckPartitions=[stuck]), runs=[run, done]), NOW)
    assert "orders-3:17 is stuck in orders-fleet-1: Poison: dies" in section(lines, "Kafka group")
    assert section(lines, "Runs") == ["Redrive fixed is Pending: AnotherRedriveRuns: first is not done"]


def test_group_that_no_operator_has_seen_says_so() -> None:
    body = group()
    body["status"] = {"observedGeneration": -1}
    lines = explain(Facts(body, missing=["Forbidden: pods"]), NOW)
    assert "the operator has not seen it" in " ".join(lines)
    assert section(lines, "Not read") == ["Forbidden: pods"]


def test_spec_that_the_status_does_not_describe_yet() -> None:
    body = group("orders", "shop", observedGeneration=1)
    body["metadata"]["generation"] = 2
    assert any("The spec has changed, and" in line for line in explain(Facts(body), NOW))
