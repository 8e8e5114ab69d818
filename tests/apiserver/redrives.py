"""Redrives, and a stand-in for the Job controller and the kubelet of their Jobs, as a test says."""

from __future__ import annotations

import json
from typing import Any

from tests.apiserver import objects
from tests.apiserver.conftest import Site

JsonObject = dict[str, Any]
JOB = "fixed-redrive"
NOW = "2026-01-01T00:00:00Z"


def redrive(site: Site, name: str = "fixed", **spec: Any) -> JsonObject:
    metadata = {"name": name, "namespace": site.name}
    wanted = {"groupRef": {"name": "flights"}, **spec}
    return {"apiVersion": objects.API_VERSION, "kind": "Redrive", "metadata": metadata, "spec": wanted}


def patch_status(site: Site, plural: str, name: str, status: JsonObject) -> None:
    site.client.merge_status(plural, site.name, name, status)


def make_pod(site: Site, job: JsonObject, name: str) -> None:
    """The pod of a running Job, as the Job controller would make it."""
    template = job["spec"]["template"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": JOB, "uid": job["metadata"]["uid"], "controller": True}
    metadata = {"name": name, "namespace": site.name, "labels": template["metadata"]["labels"]}
    site.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata | {"ownerReferences": [owner]}}
        | {"spec": template["spec"]}
    )
    patch_status(site, "pods", name, {"phase": "Running"})


def end_pod(site: Site, name: str, word: JsonObject, *, code: int = 0) -> None:
    ended = {"exitCode": code, "message": json.dumps(word), "startedAt": NOW, "finishedAt": NOW, "reason": "Completed"}
    container = {"name": "worker", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    statuses = [container | {"state": {"terminated": ended}}]
    patch_status(site, "pods", name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses})


def end_job(site: Site) -> None:
    """The status that the Job controller leaves; the API server validates it."""
    times = {"lastProbeTime": NOW, "lastTransitionTime": NOW}
    conditions = [{"type": kind, "status": "True", **times} for kind in ("SuccessCriteriaMet", "Complete")]
    done = {"startTime": NOW, "completionTime": NOW, "succeeded": 1, "uncountedTerminatedPods": {}}
    patch_status(site, "jobs", JOB, {**done, "conditions": conditions})
