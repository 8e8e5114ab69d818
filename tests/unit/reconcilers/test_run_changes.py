"""A Job or application that another client has changed is reported, and left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.run import RunDecision
from fleet_operator.planning.trimming import trim_job
from fleet_operator.reconcilers.run import Step, report_changes
from fleet_operator.runtime.events import EventRecorder

FIELDS = [{"manager": "kubectl-edit", "fieldsV1": {"f:spec": {"f:parallelism": {}}}}]
OURS = [{"manager": "consumer-fleet", "fieldsV1": {"f:spec": {}}}, {"manager": "k", "fieldsV1": {"f:status": {}}}]


def told(child: JsonObject, *, is_final: bool = False) -> list[Any]:
    """The Events of one step that does nothing."""
    events: list[Any] = []
    decision = RunDecision("Succeeded" if is_final else "Running", "Reason", "message")
    step = SimpleNamespace(body={"kind": "Redrive"}, child=child, decision=decision)
    report_changes(cast("EventRecorder", SimpleNamespace(record=events.append)), cast("Step", step))
    return events


def job(fields: list[JsonObject]) -> JsonObject:
    metadata = {"name": "again", "namespace": "shop", "uid": "u", "managedFields": fields}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}}


@pytest.mark.parametrize(("child", "named"), [(job(FIELDS), "kubectl-edit"), (trim_job(job(FIELDS)), "another client")])
def test_changed_job_is_reported_with_its_remedy(child: JsonObject, named: str) -> None:
    (event,) = told(child)
    assert event.reason == "ChangedByOthers"
    assert f"Job `again` was changed by {named}" in event.note
    assert "delete the Redrive" in event.note


def test_job_as_it_was_made_and_one_that_has_ended_are_not() -> None:
    assert told(job(OURS)) == []
    assert told(job(FIELDS), is_final=True) == []
