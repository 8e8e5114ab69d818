"""Helm's `--wait` and `kubectl wait` read the statuses that the operator writes, in every phase of a rollout.

No operator runs here: the test writes what the operator's projection makes of a phase.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.local_cluster.gomodules import HELM, ensure_programs
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from tests.apiserver.conftest import Site
from tests.support.argo import health
from tests.unit.api.crd_objects import consumer_group
from tests.unit.chart.test_argo_health import PULLING, behind
from tests.unit.planning import builders
from tests.unit.planning.status.projecting import cause, project

pytestmark = pytest.mark.together

SHORT_S: Final = 10
"""Enough for Helm to have asked for the status once, on a busy machine too: all of it is waited."""
LONG_S: Final = 120
"""A timeout that a test would notice: what is over must end the wait at once."""


class Release:
    """A chart with one ConsumerGroup, and its release."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.body = consumer_group({"metadata.namespace": site.name, "spec.replicas": 2})
        (folder / "templates").mkdir()
        (folder / "Chart.yaml").write_text("apiVersion: v2\nname: shop\nversion: 0.1.0\n")

    def install(self) -> None:
        """`helm upgrade --install`, which waits for nothing."""
        assert self._helm() == ""

    def deploy(self, timeout_s: int) -> str:
        """`helm upgrade --install --wait`; return its error, empty if it succeeded."""
        return self._helm("--wait", "--timeout", f"{timeout_s}s")

    def _helm(self, *options: str) -> str:
        (self.folder / "templates" / "group.yaml").write_text(json.dumps(self.body))
        command = [str(ensure_programs(HELM) / "helm"), "--kubeconfig", str(self.site.api.kubeconfig)]
        command += ["upgrade", "--install", "shop", str(self.folder), "--namespace", self.site.name, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG_S / 2)
        return done.stderr if done.returncode else ""

    def write(self, facts: ConsumerGroupFacts) -> None:
        """Write the status that the operator projects, for the object's present generation."""
        generation = self.site.get("consumergroups", "orders")["metadata"]["generation"]
        status = project(facts)
        for condition in status["conditions"]:
            condition["observedGeneration"] = generation
        status["observedGeneration"] = generation
        self.site.client.merge_status("consumergroups", self.site.name, "orders", status)

    def meets(self, condition: str) -> bool:
        """Return whether `kubectl wait` finds the condition at once."""
        try:
            self.site.kubectl("wait", f"--for=condition={condition}", "kcg/orders", "--timeout=0")
        except Exception as failure:
            if "condition not met" not in str(failure):
                raise
            return False
        return True

    def shown(self) -> str:
        """The health that Argo CD shows."""
        return health(self.site.get("consumergroups", "orders")).status


@pytest.fixture
def release(quiet_site: Callable[..., Site], tmp_path: Path) -> Iterator[Release]:
    made = Release(quiet_site(f"deploying-{secrets.token_hex(3)}"), tmp_path)
    yield made
    made.site.kubectl("delete", "consumergroups", "--all")


def test_group_that_the_operator_has_not_seen_is_in_progress(release: Release) -> None:
    assert "InProgress" in release.deploy(SHORT_S)
    assert not release.meets("Ready")
    assert release.shown() == "Progressing"


def test_success_ends_every_wait(release: Release) -> None:
    release.install()
    release.write(builders.facts())
    assert release.deploy(LONG_S) == ""
    assert release.meets("Ready")
    assert release.meets("Progressing=False")
    assert not release.meets("Stalled")
    assert release.shown() == "Healthy"


@pytest.mark.parametrize(
    "facts",
    [
        behind(RolloutPhase.CHECKING),
        behind(RolloutPhase.WAITING),
        behind(RolloutPhase.WAITING, waits=PULLING),
        builders.facts(rollout=cause(RolloutPhase.HELD, "HandlerSourceNotFound"), revision=None),
    ],
    ids=["checked", "rolled-out", "pulling", "reference-missing"],
)
def test_revision_on_its_way_keeps_every_wait_waiting(release: Release, facts: ConsumerGroupFacts) -> None:
    release.install()
    release.write(facts)
    assert "InProgress" in release.deploy(SHORT_S)
    assert not release.meets("Ready")
    assert not release.meets("Progressing=False")
    assert release.meets("Progressing")
    assert release.shown() == "Progressing"


def test_refusal_ends_every_wait_at_once_with_its_reason(release: Release) -> None:
    release.install()
    release.write(behind(RolloutPhase.REFUSED, cause=PULLING))
    error = release.deploy(LONG_S)
    assert "status: Failed" in error
    assert PULLING.message in error
    assert not release.meets("Ready")
    assert release.meets("Progressing=False")
    assert release.meets("Stalled")
    assert release.meets("Serving")
    assert release.shown() == "Degraded"


@pytest.mark.parametrize(
    "facts",
    [builders.facts(), behind(RolloutPhase.REFUSED, cause=PULLING)],
    ids=["success", "refusal"],
)
def test_verdict_about_an_older_generation_says_nothing(release: Release, facts: ConsumerGroupFacts) -> None:
    release.install()
    release.write(facts)
    spec: dict[str, Any] = release.body["spec"]
    spec["suspend"] = True
    assert "InProgress" in release.deploy(SHORT_S)
    for condition in ("Ready", "Progressing=False", "Stalled"):
        assert not release.meets(condition)
    assert release.shown() == "Progressing"
