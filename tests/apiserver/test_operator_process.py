"""The operator as a process: election, probes, metrics, orderly end."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apiserver import objects
from tests.apiserver.client import Client
from tests.apiserver.conftest import PATIENCE_S, Operator, Site, install_crds
from tests.support.apiserver import ApiServer
from tests.support.metrics import documented, exported, sample
from tests.support.waiting import eventually

LEASE = "consumer-fleet-operator"


def elected(here: Site, identity: str) -> Operator:
    """An operator that competes for a Lease in, and serves, one namespace without any of our objects."""
    return Operator(
        here.api, "--leader-elect", "--lease-namespace", here.name, "--namespace", here.name, identity=identity
    )


def holder(here: Site) -> str:
    """The holder of the Lease; empty without one."""
    return str(here.get("leases", LEASE)["spec"].get("holderIdentity") or "").split("_")[0]


@pytest.mark.usefixtures("operator")
@pytest.mark.together
def test_standby_takes_over_from_a_stopped_and_from_a_killed_leader(site: Callable[..., Site]) -> None:
    here = site("election")
    with elected(here, "first") as first:
        eventually(lambda: holder(here) == "first", timeout_s=PATIENCE_S, what="the first to lead")
        with elected(here, "second") as second:
            eventually(lambda: "serving" in second.log.read_text(), timeout_s=PATIENCE_S, what="the second to stand by")
            assert holder(here) == "first"
            assert first.stop() == 0
            assert holder(here) in ("", "second"), "the first has not let go of the lease"
            eventually(lambda: holder(here) == "second", timeout_s=PATIENCE_S, what="the second to lead")
            second.kill()
            with elected(here, "third"):
                eventually(lambda: holder(here) == "third", timeout_s=PATIENCE_S, what="the third to lead after expiry")


@pytest.mark.usefixtures("operator")
@pytest.mark.together
def test_leader_that_loses_its_lease_ends_itself(site: Callable[..., Site]) -> None:
    here = site("robbed")
    with elected(here, "robbed") as operator:
        eventually(lambda: holder(here) == "robbed", timeout_s=PATIENCE_S, what="the operator to lead")
        stolen = json.dumps({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}})
        here.kubectl("patch", "lease", LEASE, "--type=merge", "-p", stolen)
        assert operator.process.wait(PATIENCE_S) == 3
    assert holder(here) == "thief"


@pytest.mark.together
def test_probes_and_metrics_answer(operator: Operator, site: Callable[..., Site]) -> None:
    here = site("metrics")
    here.apply(objects.group(here.name))
    here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="ClusterNotFound")
    (line,) = re.findall(r"serving .*", operator.log.read_text())
    health, metrics = (int(port) for port in re.findall(r"_port=(\d+)", line))

    def get(port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    assert get(health, "/healthz") == "ok\n"
    eventually(lambda: get(health, "/readyz") == "ok\n", timeout_s=PATIENCE_S, what="the operator to be ready")
    group = {"group_namespace": here.name, "group_name": "flights"}

    def shown() -> str:
        text = get(metrics, "/metrics")
        assert sample(text, "consumer_fleet_group_ready", **group) == 0
        return text

    # The first status of an object can stand before its numbers.
    text = eventually(shown, timeout_s=PATIENCE_S, what="the group's numbers")
    for name in (
        "reconciles_total",
        "queue_depth",
        "queue_wait_seconds_bucket",
        "loop_lag_seconds",
        "watch_events_total",
    ):
        assert f"consumer_fleet_operator_{name}" in text
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    known = documented(page, "consumer_fleet_operator_")
    known |= documented(page, "consumer_fleet_group_", ("group_namespace", "group_name"))
    found = exported(text, "consumer_fleet_")
    assert found.items() <= known.items()
    assert sample(text, "consumer_fleet_group_lag_records", **group) is None, "unknown is not zero"


@pytest.mark.together
def test_operator_waits_for_crds_and_goes_on_when_one_goes() -> None:
    """Started before its CRDs (a chart installs them side by side), it waits, and works once they exist.

    A watch that is refused ends no other, and the kind is served again once its CRD is back.
    """
    with ApiServer() as bare, Client(bare.kubeconfig) as client, Operator(bare) as running:
        log = running.log
        eventually(lambda: "cannot list yet" in log.read_text(), timeout_s=PATIENCE_S, what="it to say what it misses")
        assert "kafkaclusters" in log.read_text()
        install_crds(bare)
        eventually(lambda: "working" in log.read_text(), timeout_s=PATIENCE_S, what="the operator to work")
        here = Site(bare, client, "default")
        here.apply(objects.group(here.name))
        here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="ClusterNotFound")
        bare.kubectl("delete", "crd", "redrives.consumerfleet.io")
        eventually(lambda: "kind='Redrive'" in log.read_text(), timeout_s=PATIENCE_S, what="the refusal to be seen")
        here.apply(objects.group(here.name, name="later"))
        here.wait_condition("consumergroups", "later", "Ready", status="False", reason="ClusterNotFound")
        install_crds(bare)
        eventually(
            lambda: "listed after failures kind='Redrive'" in log.read_text().rpartition("cannot list yet")[2],
            timeout_s=2 * PATIENCE_S,
            what="redrives to be served again",
        )
        assert running.stop() == 0


@pytest.mark.together
def test_operator_without_backfills_misses_nothing_where_their_crd_is_not_installed() -> None:
    with ApiServer() as bare, Client(bare.kubeconfig) as client:
        install_crds(bare)
        bare.kubectl("delete", "crd", "backfills.consumerfleet.io")
        with Operator(bare, "--backfills=false") as running:
            here = Site(bare, client, "default")
            here.apply(objects.group(here.name))
            here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="ClusterNotFound")
            assert "ackfill" not in running.log.read_text()
            assert running.stop() == 0


def test_operator_logs_no_traceback(operator: Operator) -> None:
    """Not run next to the others: it reads the log of all of them afterwards."""
    text = operator.log.read_text()
    assert "working" in text
    assert "Traceback" not in text
