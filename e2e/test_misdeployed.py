"""Deployment errors in real pods: reported within 30 seconds, without failed records, and gone with their cause."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest

from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import BOOTSTRAP, FlightFleet, handler_config_map

API_VERSION: Final = "consumerfleet.io/v1alpha1"
REPORTED_S: Final = 30.0
RECORDS: Final = b"tea\nmilk\njam\n"
NAME: Final = "misdeployed"
UNLISTED, PATH, LOGIN, MISSING = GROUPS = tuple(f"{NAME}-{what}" for what in ("unlisted", "path", "login", "missing"))
REASONS: Final = {
    UNLISTED: "OutputNotListed",
    PATH: "HandlerMisconfigured",
    LOGIN: "HandlerMisconfigured",
    MISSING: "TopicNotFound",
}

PYTHON: Final = f"""
from fleet_consumer import Produce

def handle(record):
    return Produce("{NAME}-done", record.value)
"""
SERVER: Final = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        known = 200 if os.environ["LOGIN"] == "known" else 401
        self.send_response(known if self.path == "/records" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""


def group(name: str, handler: dict[str, Any], **spec: Any) -> dict[str, Any]:
    wanted = {"clusterRef": {"name": "main"}, "groupId": name, "topics": [name], "handler": handler, **spec}
    return {"apiVersion": API_VERSION, "kind": "ConsumerGroup", "metadata": {"name": name}, "spec": wanted}


def served(name: str, image: str, *, path: str = "/records", login: str = "known") -> dict[str, Any]:
    container = {
        "name": "handler",
        "image": image,
        "command": ["python", "/server/server.py"],
        "env": [{"name": "LOGIN", "value": login}],
        "volumeMounts": [{"name": "server", "mountPath": "/server"}],
    }
    volumes = [{"name": "server", "configMap": {"name": "server"}}]
    template = {"spec": {"volumes": volumes, "containers": [container]}}
    return group(name, {"http": {"port": 8080, "path": path}}, template=template)


def called(name: str, *outputs: str, **spec: Any) -> dict[str, Any]:
    python = {"callable": "handler:handle", "configMapRef": {"name": "handler"}}
    return group(name, {"python": python, "outputs": list(outputs)}, **spec)


def rows(fleet: FlightFleet) -> dict[str, str]:
    """The lines of `kubectl get kcg --output wide`, by group."""
    lines = fleet.kubectl("get", "kcg", "--output", "wide", "--no-headers").splitlines()
    return {line.split()[0]: line for line in lines}


def wait_reported(fleet: FlightFleet, *names: str) -> None:
    """Wait until each of these groups is not Ready and Degraded for its reason, as `kubectl get` shows, too."""

    def probe() -> bool:
        for name in names:
            found = fleet.cluster.get("consumergroups.consumerfleet.io", name, namespace=fleet.namespace) or {}
            seen = {kind: (entry["status"], entry["reason"]) for kind, entry in conditions(found).items()}
            assert seen.get("Ready") == ("False", REASONS[name]), (name, conditions(found).get("Ready"))
            assert seen.get("Degraded") == ("True", REASONS[name]), (name, conditions(found).get("Degraded"))
            assert " False " in rows(fleet)[name]
        return True

    eventually(probe, timeout_s=REPORTED_S, what=f"{', '.join(names)} report their errors", poll_s=1.0)


def wait_ready(fleet: FlightFleet, *names: str) -> None:
    def probe() -> bool:
        for name in names:
            found = fleet.cluster.get("consumergroups.consumerfleet.io", name, namespace=fleet.namespace) or {}
            ready = conditions(found).get("Ready", {})
            assert ready.get("status") == "True", (name, ready)
        return True

    eventually(probe, timeout_s=PATIENCE_S, what=f"{', '.join(names)} are ready", poll_s=1.0)


@pytest.mark.together
def test_errors_of_the_deployment_are_reported_fail_no_record_and_end_with_their_cause(fleets: Fleets) -> None:
    with fleets.named(NAME, topics=False) as fleet:
        image = fleet.consumer_image
        fleet.inside("create-topics", "--partitions", "2", UNLISTED, PATH, LOGIN, f"{NAME}-done")
        policy = {"apiVersion": API_VERSION, "kind": "RetryPolicy", "metadata": {"name": "standard"}}
        kafka = {"apiVersion": API_VERSION, "kind": "KafkaCluster", "metadata": {"name": "main"}}
        retry = {"policyRef": {"name": "standard"}}
        bodies = [
            kafka | {"spec": {"bootstrapServers": [BOOTSTRAP]}},
            policy | {"spec": {"sequence": ["5s"]}},
            handler_config_map("handler", "handler.py", PYTHON),
            handler_config_map("server", "server.py", SERVER),
            called(UNLISTED, retry=retry),
            served(PATH, image, path="/record"),
            served(LOGIN, image, login="unknown"),
            called(MISSING, f"{NAME}-done", retry=retry),
        ]
        fleet.cluster.apply(bodies, namespace=fleet.namespace)
        wait_ready(fleet, UNLISTED, PATH, LOGIN)
        wait_reported(fleet, MISSING)
        began = time.monotonic()
        for name in (UNLISTED, PATH, LOGIN):
            fleet.inside("write", "--topic", name, stdin=RECORDS)
        wait_reported(fleet, UNLISTED, PATH, LOGIN)
        print(f"reported {time.monotonic() - began:.0f} s after the first record")
        print("\n".join(rows(fleet).values()))
        fleet.inside("create-topics", "--partitions", "2", MISSING)
        fleet.inside("write", "--topic", MISSING, stdin=RECORDS)
        corrected = [called(UNLISTED, f"{NAME}-done", retry=retry), served(PATH, image), served(LOGIN, image)]
        fleet.cluster.apply(corrected, namespace=fleet.namespace)
        wait_ready(fleet, *GROUPS)

        def handled() -> bool:
            for name in GROUPS:
                lag = fleet.inside("lag", "--topic", name, "--group", name)
                assert (lag["end"], lag["lag"]) == (3, 0), (name, lag)
            return True

        eventually(handled, timeout_s=PATIENCE_S, what="every record is handled")
        assert sorted(fleet.inside("read", "--topic", f"{NAME}-done")["values"]) == sorted(["tea", "milk", "jam"] * 2)
        for name in GROUPS:
            assert fleet.inside("read", "--topic", f"_fleet.{name}.failed")["values"] == [], name
