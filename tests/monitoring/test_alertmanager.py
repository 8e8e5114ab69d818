"""The sample configuration of Alertmanager, on a real Alertmanager: routes, groups, inhibition, resolution."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from e2e.install import CHART
from e2e.local_cluster.daemons import Daemon, free_ports
from tests.monitoring.programs import ALERTMANAGER, ensure_monitoring
from tests.support.waiting import eventually

SAMPLE = CHART.parents[1] / "examples" / "alertmanager" / "alertmanager.yaml"
PATIENCE_S = 120.0
Notification = dict[str, Any]


@contextmanager
def receivers() -> Iterator[tuple[str, list[Notification]]]:
    """Base address of webhooks, and the notifications that they receive, with the webhook's path as `receiver`."""
    found: list[Notification] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Keep the tests' output short."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", found
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def alertmanager(folder: Path, webhooks: str) -> Iterator[str]:
    """An Alertmanager with the sample, except that its webhooks are ours and it waits for seconds, not minutes."""
    config = yaml.safe_load(SAMPLE.read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s"}
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{webhooks}/{receiver['name']}"}]
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    arguments = [f"--config.file={file}", f"--storage.path={folder}", f"--web.listen-address={address}"]
    program = ensure_monitoring(ALERTMANAGER) / "alertmanager"
    daemon = Daemon("alertmanager", [str(program), *arguments, "--cluster.listen-address="], log=folder / "am.log")
    daemon.start()
    try:
        eventually(lambda: get(f"http://{address}/-/ready"), timeout_s=PATIENCE_S, what="Alertmanager to be ready")
        yield address
    finally:
        daemon.kill()


def get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{url}: {error}: {error.read().decode()}") from None


def send(address: str, *labels: dict[str, str], ended: bool = False) -> None:
    """Report alerts as Prometheus does; `ended` reports that they have resolved."""
    end = {"endsAt": datetime.now(UTC).isoformat()} if ended else {}
    body = json.dumps([{"labels": each, **end} for each in labels]).encode()
    request = urllib.request.Request(
        f"http://{address}/api/v2/alerts", body, {"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=10).close()


def alert(name: str, severity: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, "severity": severity, **labels}


GROUP = {"group_namespace": "shop", "group_name": "orders"}
CLUSTER = {"cluster_namespace": "shop", "cluster_name": "main"}


def names(notifications: list[Notification], receiver: str, status: str = "firing") -> list[set[str]]:
    """Names of the alerts of each notification with this status to a receiver."""
    return [
        {each["labels"]["alertname"] for each in one["alerts"] if each["status"] == status}
        for one in notifications
        if one["receiver"] == receiver
    ]


def test_alerts_go_to_their_receivers_by_group_and_resolve(tmp_path: Path) -> None:
    behind, failed = alert("GroupIsBehind", "warning", **GROUP), alert("RecordsWereGivenUp", "warning", **GROUP)
    stuck, full = alert("RecordIsStuck", "critical", **GROUP), alert("WorkersAreFull", "info", **GROUP)
    other = alert("GroupIsBehind", "warning", group_namespace="shop", group_name="bills")
    with receivers() as (webhooks, found), alertmanager(tmp_path, webhooks) as address:
        send(address, behind, failed, stuck, full, other)

        def routed() -> bool:
            assert {"GroupIsBehind", "RecordsWereGivenUp"} in names(found, "tickets"), found
            assert {"GroupIsBehind"} in names(found, "tickets"), "the other group has a notification of its own"
            assert names(found, "pager") == [{"RecordIsStuck"}]
            assert names(found, "chat") == [{"WorkersAreFull"}]
            return True

        eventually(routed, timeout_s=PATIENCE_S, what="each alert to reach its receiver")
        send(address, stuck, ended=True)
        eventually(
            lambda: {"RecordIsStuck"} in names(found, "pager", "resolved"),
            timeout_s=PATIENCE_S,
            what="the end of the alert to reach the pager",
        )


def test_alerts_of_groups_are_muted_while_their_cluster_is_unreachable(tmp_path: Path) -> None:
    unreachable = alert("KafkaClusterIsNotSeen", "critical", **CLUSTER)
    muted = alert("GroupLagIsUnknown", "warning", group_id="o", **GROUP, **CLUSTER)
    elsewhere = {"group_namespace": "shop", "group_name": "bills", "cluster_namespace": "shop", "cluster_name": "b"}
    heard = alert("GroupLagIsUnknown", "warning", group_id="b", **elsewhere)
    with receivers() as (webhooks, found), alertmanager(tmp_path, webhooks) as address:
        send(address, unreachable)
        eventually(lambda: names(found, "pager"), timeout_s=PATIENCE_S, what="the alert of the cluster")
        send(address, muted, heard)
        eventually(lambda: names(found, "tickets"), timeout_s=PATIENCE_S, what="the alert of the other cluster's group")
        clusters = [one["groupLabels"]["cluster_name"] for one in found if one["receiver"] == "tickets"]
        assert set(clusters) == {"b"}
        send(address, unreachable, ended=True)

        def told() -> bool:
            clusters = {one["groupLabels"]["cluster_name"] for one in found if one["receiver"] == "tickets"}
            assert clusters == {"main", "b"}
            return True

        eventually(told, timeout_s=PATIENCE_S, what="the alert of the group once the cluster is reachable")


def test_missing_coordinators_mute_nothing_and_a_refused_revision_is_always_heard(tmp_path: Path) -> None:
    other = {"group_namespace": "shop", "group_name": "bills", "cluster_namespace": "shop", "cluster_name": "b"}
    causes = (
        alert("CoordinatorsAreMissing", "critical", **CLUSTER),
        alert("KafkaClusterIsNotSeen", "critical", cluster_namespace="shop", cluster_name="b"),
    )
    heard = (
        alert("GroupIsNotReady", "warning", **GROUP, **CLUSTER),
        alert("GroupIsStalled", "warning", condition="Stalled", reason="Refused", **other),
    )
    with receivers() as (webhooks, found), alertmanager(tmp_path, webhooks) as address:
        send(address, *causes)
        eventually(lambda: len(names(found, "pager")) >= 2, timeout_s=PATIENCE_S, what="the alerts of both clusters")
        send(address, *heard)

        def told() -> bool:
            assert set().union(*names(found, "tickets")) == {"GroupIsNotReady", "GroupIsStalled"}
            return True

        eventually(told, timeout_s=PATIENCE_S, what="the alerts of both groups")
