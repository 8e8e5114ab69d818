"""A stand-in for the Spark operator and a driver: states of applications, pods, and the ledger, as a test says."""

from __future__ import annotations

import json
from typing import Any

from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.spark_operator import spark_operator_crds
from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_ledger import (
    CONTROL_KEY,
    LEDGER_KEY,
    Control,
    Counts,
    Ledger,
    Ranges,
    RunProblem,
    ledger_text,
    parse_control,
)
from tests.apiserver import objects
from tests.apiserver.client import NotFoundError
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.support.apiserver import ApiServer
from tests.support.waiting import eventually

JsonObject = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
NAME = "again"
CRD = "sparkapplications.sparkoperator.k8s.io"


def install_crd(server: ApiServer) -> None:
    """Install the CRD of SparkApplications, as released."""
    (path,) = (path for path in spark_operator_crds() if path.stem.endswith("_sparkapplications"))
    server.kubectl("apply", "--server-side", "-f", str(path))

    def served() -> bool:
        try:
            server.kubectl("get", CRD, "--all-namespaces")
        except ClusterError as error:
            raise AssertionError(str(error)) from error
        return True

    eventually(served, timeout_s=PATIENCE_S, what="the API server to serve SparkApplications")


def backfill(in_namespace: str, name: str = NAME, **spec: Any) -> JsonObject:
    """A Backfill of the group `flights` over the last day."""
    wanted = {"groupRef": {"name": "flights"}, "range": {"last": {"seconds": 86_400}}, "sink": {"none": {}}, **spec}
    metadata = {"name": name, "namespace": in_namespace}
    return {"apiVersion": objects.API_VERSION, "kind": "Backfill", "metadata": metadata, "spec": wanted}


def offsets(first: int, end: int) -> list[JsonObject]:
    """A range of partition 0, in a spec or in a status."""
    return [{"partition": 0, "from": first, "to": end}]


def wait_phase(site: Site, phase: str, reason: str, name: str = NAME) -> JsonObject:
    """Wait until the Backfill is in this phase for this reason; return its status."""

    def seen() -> JsonObject:
        status: JsonObject = site.status("backfills", name)
        reasons = {c["reason"] for c in status.get("conditions", ()) if c["type"] in ("Ready", "Complete")}
        assert status.get("phase") == phase, status
        assert reason in reasons, status
        return status

    return eventually(seen, timeout_s=PATIENCE_S, what=f"phase {phase} ({reason})")


def wait_attempt(site: Site, number: int, name: str = NAME) -> JsonObject:
    """Wait for the application of an attempt; return it."""
    return eventually(
        lambda: site.get("sparkapplications", naming.backfill_application(name, number)),
        timeout_s=PATIENCE_S,
        what=f"the application of attempt {number}",
    )


def set_state(site: Site, number: int, state: str, message: str = "", name: str = NAME) -> None:
    """Write what the Spark operator would say of an application."""
    application = naming.backfill_application(name, number)
    said = {"state": state} | ({"errorMessage": message} if message else {})
    status = {"applicationState": said, "driverInfo": {"podName": f"{application}-driver"}}
    site.client.merge_status("sparkapplications", site.name, application, status)


def make_driver(site: Site, number: int, name: str = NAME, *, phase: str = "Running") -> JsonObject:
    """The driver's pod, of the template and with what Spark fills in."""
    application = site.get("sparkapplications", naming.backfill_application(name, number))
    return make_pod(site, application, "driver", phase=phase)


def make_pod(site: Site, application: JsonObject, role: str, *, phase: str = "Running") -> JsonObject:
    spec, uid = application["spec"], application["metadata"]["uid"]
    template, size = spec[role]["template"], spec[role]
    owner = {"apiVersion": application["apiVersion"], "kind": "SparkApplication", "uid": uid, "controller": True}
    owner["name"] = application["metadata"]["name"]
    metadata: JsonObject = {"name": f"{owner['name']}-{role}", "namespace": site.name, "ownerReferences": [owner]}
    metadata |= template["metadata"]
    (container,) = template["spec"]["containers"]
    filled = container | {"image": spec["image"], "args": [role, *spec["arguments"]]}
    filled["resources"] = {"requests": {"cpu": size["coreRequest"], "memory": "712Mi"}, "limits": {"memory": "712Mi"}}
    account = {"serviceAccountName": size["serviceAccount"], "restartPolicy": "Never"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    body["spec"] = {**template["spec"], **account, "containers": [filled]}
    site.client.create(site.name, body)
    site.client.merge_status("pods", site.name, metadata["name"], {"phase": phase})
    return body


def end_driver(site: Site, number: int, code: int = 0, name: str = NAME, **said: Any) -> None:
    """The driver's pod ends with an exit code and a last word."""
    ended = {"exitCode": code, "startedAt": NOW, "finishedAt": NOW, "reason": "Error" if code else "Completed"}
    if said:
        ended["message"] = json.dumps({"ok": not code, **said})
    container = {"name": "spark-kubernetes-driver", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"phase": "Failed" if code else "Succeeded"}
    status["containerStatuses"] = [container | {"state": {"terminated": ended}}]  # type: ignore[assignment]
    pod = f"{naming.backfill_application(name, number)}-driver"
    site.client.merge_status("pods", site.name, pod, status)


def write_ledger(site: Site, ledger: Ledger | str, name: str = NAME) -> None:
    """Write what a driver notes; a text as it is."""
    text = ledger if isinstance(ledger, str) else ledger_text(ledger)
    found = site.get("configmaps", naming.backfill_ledger(name))
    found["data"] = {LEDGER_KEY: text}
    path = f"/api/v1/namespaces/{site.name}/configmaps/{naming.backfill_ledger(name)}"
    site.client.ask("PUT", path, {"apiVersion": "v1", "kind": "ConfigMap", **found})


def ledger(attempt: int, remaining: Ranges, *, problem: RunProblem | None = None, **more: Any) -> Ledger:
    return Ledger(attempt=attempt, remaining=remaining, problem=problem, **more)


def counts(handled: int, failed: int = 0) -> Counts:
    return Counts(records_in=handled, records_out=handled, failed=failed)


def control(site: Site, name: str = NAME) -> Control:
    return parse_control(site.get("configmaps", naming.backfill_control(name))["data"][CONTROL_KEY])


def wait_control(site: Site, what: str, name: str = NAME, **wanted: Any) -> Control:
    """Wait until the orders have these values."""

    def seen() -> Control:
        found = control(site, name)
        assert {key: getattr(found, key) for key in wanted} == wanted, found
        return found

    return eventually(seen, timeout_s=PATIENCE_S, what=what)


def applications(site: Site) -> list[str]:
    return site.names("sparkapplications", "consumerfleet.io/backfill")


def exists(site: Site, plural: str, name: str) -> bool:
    try:
        site.get(plural, name)
    except NotFoundError:
        return False
    return True
