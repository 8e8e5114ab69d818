"""Answers of the API server, sorted by what the operator can do about them."""

from __future__ import annotations

import json

import pytest

from fleet_operator.clients import kube


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (401, "Unauthorized", kube.KubeForbiddenError),
        (403, "pods is forbidden: exceeded quota", kube.KubeForbiddenError),
        (404, "not found", kube.KubeNotFoundError),
        (409, "the object has been modified", kube.KubeConflictError),
        (422, "StatefulSet is invalid", kube.KubeInvalidError),
        (429, "too many requests", kube.KubeUnavailableError),
        (500, "etcdserver: request timed out", kube.KubeUnavailableError),
        (503, "apiserver is shutting down", kube.KubeUnavailableError),
        (
            500,
            'failed to create typed patch object (ns/orders-check; /v1, Kind=Pod): .spec.containers[name="worker"]'
            '.env[name="A"].valueFrom.secretKeyref: field not declared in schema',
            kube.KubeInvalidError,
        ),
    ],
)
def test_answer_has_its_error(status: int, message: str, error: type[kube.KubeError]) -> None:
    found = kube._error(status, json.dumps({"kind": "Status", "message": message}), "apply Pod ns/x", None)
    assert type(found) is error
    assert message in str(found)
