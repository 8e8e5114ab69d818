"""The quickstart's files: its handlers do what the page shows, and its manifests fit together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_consumer.handlers.loading import Handler
from fleet_consumer.handlers.performing import Outputs, decoder
from fleet_consumer.record import Record
from tests.unit.examples.test_flights import loaded

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "quickstart"
PAGE = (ROOT / "docs" / "quickstart.md").read_text()


@pytest.fixture
def handler() -> Iterator[Handler]:
    yield from loaded(FOLDER)


@pytest.fixture
def fixed() -> Iterator[Handler]:
    yield from loaded(FOLDER / "fixed")


def orders() -> list[Record]:
    decode = decoder("value", "Json")
    assert decode is not None
    lines = (FOLDER / "orders.txt").read_bytes().splitlines()
    return [Record("orders", 0, number, 0, None, decode(line)) for number, line in enumerate(lines)]


def test_two_orders_fail_with_the_error_that_the_redrive_selects(handler: Handler) -> None:
    failed = 0
    for order in orders():
        try:
            handler.call(order)
        except ZeroDivisionError:
            failed += 1
    assert failed == 2
    assert "'{.status.retry.failed}'=2" in PAGE
    assert manifests("redrive.yaml")[0]["spec"]["filter"]["errorRegex"] == "^ZeroDivisionError: "


def test_corrected_handler_makes_the_outputs_that_the_page_shows(fixed: Handler) -> None:
    outputs = [str(each.value) for order in orders() for each in Outputs(["orders-done"]).records_in(fixed.call(order))]
    shown = [line for line in PAGE.splitlines() if line.startswith('{"item": ')]
    assert sorted(outputs) == sorted(shown)
    assert f"--max-messages {len(shown)} " in PAGE


def manifests(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text()))


def test_kafka_meets_the_restricted_pod_standard_and_advertises_the_address_of_the_fleet() -> None:
    namespace, service, broker = manifests("kafka.yaml")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    pod = broker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert not broker["spec"].get("volumeClaimTemplates")
    environment = {each["name"]: each["value"] for each in container["env"]}
    cluster = manifests("fleet.yaml")[0]
    (address,) = cluster["spec"]["bootstrapServers"]
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{address}"
    name = f"{service['metadata']['name']}.{namespace['metadata']['name']}.svc.cluster.local"
    assert address == f"{name}:{service['spec']['ports'][0]['port']}"
