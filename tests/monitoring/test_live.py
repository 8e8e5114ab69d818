"""A real Prometheus scrapes a real operator and real workers, evaluates the chart's alerts and dashboards, and reports
to a real Alertmanager with the sample configuration."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.local_cluster.daemons import Daemon, free_ports
from tests.apiserver import objects
from tests.apiserver.chart import of_kind, rendered
from tests.apiserver.client import Client
from tests.apiserver.conftest import Operator, Site, install_crds
from tests.apiserver.nodes import Nodes
from tests.broker.retry_fleet import RetryFleet
from tests.broker.workers import Kafka
from tests.monitoring.programs import PROMETHEUS, ensure_monitoring
from tests.monitoring.queries import DASHBOARDS, alerts, filled, queries_of
from tests.monitoring.test_alertmanager import Notification, alertmanager, get, receivers
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

PATIENCE_S = 180.0
NAMESPACE, GROUP = "shop", "flights"
VARIABLES = {"__rate_interval": "20s", "namespace": NAMESPACE, "group": GROUP}
ABSENT = {
    *(f"consumer_fleet_group_{name}" for name in ("arrival_records_per_second", "retry_oldest_due_timestamp_seconds")),
    "consumer_fleet_group_worker_capacity_records_per_second",
    "consumer_fleet_worker_breaker_state",
    *(f"consumer_fleet_operator_{name}" for name in ("refused", "upgrades", "cluster_problem")),
    *(f"consumer_fleet_operator_{name}_total" for name in ("observation_failures", "watch_corrections")),
    *(f"consumer_fleet_operator_{name}_total" for name in ("group_visits", "status_deferred")),
}
"""Metrics that may be absent from this scene: without scaling, waves, budgets, refusals and outages."""


@dataclass(frozen=True)
class Scene:
    prometheus: str
    site: Site
    notifications: list[Notification]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The present result of a query; AssertionError with Prometheus' message if it is wrong."""
        answer = self._get("query", query=expression)
        found: list[dict[str, Any]] = answer["result"]
        return found

    def rules(self) -> dict[str, dict[str, Any]]:
        """Alerting rules with their health, as Prometheus evaluates them."""
        return {rule["name"]: rule for group in self._get("rules")["groups"] for rule in group["rules"]}

    def _get(self, what: str, **arguments: str) -> dict[str, Any]:
        url = f"http://{self.prometheus}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        found: dict[str, Any] = json.loads(get(url))["data"]
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One group with a main and a retry worker that handle records, an operator, Prometheus and Alertmanager."""
    folder = tmp_path_factory.mktemp("monitoring")
    with ExitStack() as stack:
        api, broker = stack.enter_context(ApiServer()), stack.enter_context(KafkaBroker())
        install_crds(api)
        nodes = stack.enter_context(Nodes(str(api.kubeconfig)))
        here = Site(api, stack.enter_context(Client(api.kubeconfig)), NAMESPACE)
        fleet = RetryFleet(Kafka(broker.bootstrap), folder, GROUP, sequence=("1s",), partitions=2)
        main = stack.enter_context(fleet.worker(namespace=NAMESPACE))
        retry = stack.enter_context(fleet.retry_worker(namespace=NAMESPACE))
        nodes.addresses[NAMESPACE, f"{GROUP}-fleet-0"] = ("127.0.0.1", main.port)
        (operator_port,) = free_ports(1)
        stack.enter_context(Operator(api, "--metrics-port", str(operator_port)))
        here.apply(objects.namespace(NAMESPACE), objects.handler_source(NAMESPACE))
        here.apply(
            objects.cluster(NAMESPACE, broker.bootstrap, observeIntervalSeconds=5), objects.policy(NAMESPACE, "1s")
        )
        here.apply(objects.group(NAMESPACE, group_id=GROUP, replicas=1, retry=objects.retry()))
        fleet.send({"do": "ok"}, {"do": "fail", "n": 1}, {"do": "ok"})
        webhooks, notifications = stack.enter_context(receivers())
        manager = stack.enter_context(alertmanager(folder, webhooks))
        targets = {"operator": operator_port, "main": main.port, "retry": retry.port}
        yield Scene(stack.enter_context(_Prometheus(folder, targets, manager)).address, here, notifications)


class _Prometheus:
    """Prometheus with the rules as the chart renders them, except that each waits for two seconds at most."""

    def __init__(self, folder: Path, targets: dict[str, int], manager: str) -> None:
        (rule,) = of_kind(rendered("alerts.enabled=true"), "PrometheusRule").values()
        for each in (each for group in rule["spec"]["groups"] for each in group["rules"]):
            each["for"] = "2s" if "for" in each else "0s"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
        config = {
            "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
            "rule_files": [str(folder / "rules.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]},
            "scrape_configs": [
                {
                    "job_name": name,
                    "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"pod": f"{name}-0"}}],
                }
                for name, port in targets.items()
            ],
        }
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        program = ensure_monitoring(PROMETHEUS) / "prometheus"
        arguments = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        command = [str(program), *arguments, f"--web.listen-address={self.address}"]
        self._daemon = Daemon("prometheus", command, log=folder / "prometheus.log")

    def __enter__(self) -> _Prometheus:
        self._daemon.start()
        eventually(lambda: get(f"http://{self.address}/-/ready"), timeout_s=PATIENCE_S, what="Prometheus to be ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._daemon.kill()


def test_every_query_of_every_dashboard_finds_series(scene: Scene) -> None:
    """A query on metrics that the scene has is never empty, unless it selects by value."""
    queries = [filled(query, VARIABLES) for path in sorted(DASHBOARDS.iterdir()) for query in queries_of(path)]
    assert len(queries) > 100

    def metrics(query: str) -> set[str]:
        return set(re.findall(r"\b(?:consumer_fleet|process)_\w+", query))

    def all_found() -> bool:
        present = {name for name in set().union(*map(metrics, queries)) if scene.query(f"count({name})")}
        missing = set().union(*map(metrics, queries)) - present
        assert missing <= ABSENT, missing - ABSENT
        by_value = re.compile(r"[<>]|==|unless|condition=")
        empty = [
            query
            for query in queries
            if not scene.query(query) and metrics(query) <= present and not by_value.search(query)
        ]
        assert not empty, empty
        return True

    eventually(all_found, timeout_s=PATIENCE_S, what="series for every query")


def test_every_alert_is_evaluated_without_error(scene: Scene) -> None:
    def healthy() -> bool:
        found = scene.rules()
        assert found.keys() == alerts().keys()
        wrong = {name: rule.get("lastError") for name, rule in found.items() if rule["health"] != "ok"}
        assert not wrong, wrong
        return True

    eventually(healthy, timeout_s=PATIENCE_S, what="every rule to be evaluated")


def test_alert_reaches_the_receiver_with_its_runbook_and_resolves(scene: Scene) -> None:
    scene.site.apply(objects.group(NAMESPACE, name="broken", group_id="broken", callable_="handler:missing"))

    def told(status: str) -> dict[str, Any]:
        found = [
            each
            for one in scene.notifications
            for each in one["alerts"]
            if (each["labels"]["alertname"], each["status"]) == ("GroupIsStalled", status)
            and each["labels"]["group_name"] == "broken"
        ]
        assert found, [each["labels"] for one in scene.notifications for each in one["alerts"]]
        return dict(found[-1])

    fired = eventually(lambda: told("firing"), timeout_s=PATIENCE_S, what="the alert to reach its receiver")
    assert fired["annotations"]["summary"] == "The newest revision of shop/broken is refused"
    assert fired["annotations"]["runbook_url"] == "docs/alerts.md#groupisstalled"
    assert fired["labels"]["cluster_name"] == "main"
    scene.site.client.delete_all("consumergroups", NAMESPACE)
    eventually(lambda: told("resolved"), timeout_s=PATIENCE_S, what="the end of the alert to reach its receiver")
