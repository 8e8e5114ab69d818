"""The state of a fleet and of the operator, as a failed test reports it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster import CommandFailed, conditions
from e2e.demo.fleet import FlightFleet
from e2e.install import OPERATOR_NAMESPACE, OPERATOR_SELECTOR

SHOWN = ("state", "stateSince", "observedAt", "members", "transitions", "scaling", "targetReplicas", "limit")
"""Fields of the group's status that printer columns do not show fully."""


@contextmanager
def described_failure(fleet: FlightFleet) -> Iterator[None]:
    """Add the state of a fleet to a failure in the block."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at the time of the failure:\n{described(fleet)}")
        raise


def described(fleet: FlightFleet) -> str:
    """The group, its conditions, pods and last log lines, and those of the operator."""
    try:
        parts = [_rollouts(fleet), fleet.kubectl("get", "consumergroups,pods,statefulsets", "--output", "wide")]
        group = fleet.group()
        status = group.get("status") or {}
        parts.append(json.dumps({key: status[key] for key in SHOWN if key in status}, indent=1))
        for kind, entry in conditions(group).items():
            parts.append(f"{kind}={entry['status']} {entry['reason']}: {entry['message']}")
        selector = f"consumerfleet.io/group={fleet.name}"
        parts.append(fleet.kubectl("logs", "--selector", selector, "--tail=20", "--prefix", "--ignore-errors"))
        operator = ("--namespace", OPERATOR_NAMESPACE)
        parts.append(fleet.cluster.kubectl(*operator, "get", "pods", "--output", "wide"))
        parts.append(fleet.cluster.kubectl(*operator, "logs", "--selector", OPERATOR_SELECTOR, "--tail=40"))
    except CommandFailed as failure:
        return str(failure)
    return "\n".join(parts)


def _rollouts(fleet: FlightFleet) -> str:
    """Facts that a rollout waits for, a line for each StatefulSet and pod: a summary shows no more of a failure."""
    lines = []
    for kind in ("statefulsets", "pods"):
        for each in fleet.cluster.list(kind, namespace=fleet.namespace, selector="consumerfleet.io/group"):
            metadata, status = each["metadata"], each.get("status") or {}
            shown = {key: value for key, value in status.items() if key.endswith(("eplicas", "Revision", "Generation"))}
            ready = [entry["status"] for entry in status.get("conditions", ()) if entry["type"] == "Ready"]
            leaves = metadata.get("deletionTimestamp", "stays")
            lines.append(f"{metadata['name']} generation={metadata.get('generation')} {ready} {leaves} {shown}")
    return "\n".join(lines)
