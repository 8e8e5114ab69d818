"""Every kubectl command in the code blocks of docs and examples runs as written.

No operator runs here: the test itself writes the conditions that a command waits for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_operator.api.v1alpha1.model import ADOPT_ANNOTATION, CANARY_LABEL
from tests.apiserver.conftest import ROOT
from tests.support.apiserver import ApiServer
from tests.support.argo import SCRIPTS
from tests.unit.api.crd_objects import consumer_group

PAGES = (
    "README.md",
    "docs/api-conventions.md",
    "docs/demo.md",
    "docs/gitops.md",
    "docs/offsets.md",
    "docs/offsets-topic.md",
    "docs/pods.md",
    "docs/retries.md",
    "docs/rollouts.md",
    "docs/scaling.md",
    "docs/upgrades.md",
)
ON_A_CLUSTER = (
    *("docs/install.md", "docs/own-image.md", "docs/quickstart.md", "docs/backfill.md"),
    "examples/flights/backfill.yaml",
)
"""Run by e2e/test_walkthrough.py, e2e/newcomer/test_quickstart.py, e2e/load/test_backfill_page.py and e2e/demo: a watch
of Backfills never ends."""
OF_THE_PLUGIN = ("docs/kubectl-fleet.md",)
"""Run by test_plugin.py, and by tests/unit/plugin/test_in_pods.py what needs a kubelet."""
EXAMPLES = (
    *("flights/handler.py", "flights/fleet.yaml", "flights/redrive.yaml", "flights/compare.yaml"),
    *("flights/reset.yaml", "http/fleet.yaml"),
    *(str(path.relative_to(ROOT / "examples")) for path in sorted((ROOT / "examples/gallery").glob("*/group.yaml"))),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:#\s+|\s*)(kubectl .*)$", re.MULTILINE)
GOOD = ("Ready", "TopicsReady", "Complete")
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "flights-fleet-0"},
    "spec": {"containers": [{"name": "worker", "image": "worker"}], "automountServiceAccountToken": False},
}


class Reader:
    """A reader who types the commands of a document into a shell, in a folder and a namespace."""

    def __init__(self, server: ApiServer, namespace: str, folder: Path = ROOT) -> None:
        self.server, self.namespace, self.folder = server, namespace, folder
        server.kubectl("create", "namespace", namespace)
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})

    def close(self) -> None:
        """Leave nothing to operators of other tests."""
        self.kubectl("delete", "kafkaclusters,consumergroups,retrypolicies,redrives,backfills,offsetresets", "--all")

    def apply(self, *bodies: dict[str, Any]) -> None:
        for body in bodies:
            self.kubectl("apply", "-f", "-", text=json.dumps(body))

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return self.server.kubectl("-n", self.namespace, *words, input=text)

    def types(self, line: str) -> str:
        """Run one line, which may pipe one kubectl into the next; return the output of the last."""
        output: str | None = None
        for part in line.split(" | "):
            first, *words = shlex.split(part, comments=True)
            assert first == "kubectl", line
            output = self.kubectl(*map(self._found, words), text=output)
        assert output is not None
        return output

    def _found(self, word: str) -> str:
        option, equals, name = word.rpartition("=")
        return f"{option}{equals}{self.folder / name}" if (self.folder / name).is_file() else word

    def say_that_all_is_well(self) -> None:
        """Write the status that the operator writes when everything is healthy."""
        said = {"status": "True", "reason": "AsWanted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        conditions = [{"type": kind, **said} for kind in GOOD]
        conditions.append({**said, "type": "Progressing", "status": "False", "reason": "Complete"})
        for kind in ("consumergroups", "retrypolicies", "redrives"):
            for name in self.kubectl("get", kind, "-o", "name").split():
                status: dict[str, Any] = {"observedGeneration": 1, "conditions": conditions}
                if kind == "consumergroups":
                    status["retry"] = {"waiting": 8, "failed": 2}
                patch = json.dumps({"status": status})
                self.kubectl("patch", name, "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture
def place(quiet_api: ApiServer) -> Iterator[Callable[..., Reader]]:
    """Make readers in a namespace and a folder."""
    with ExitStack() as left:

        def make(namespace: str, folder: Path = ROOT) -> Reader:
            return left.enter_context(closing(Reader(quiet_api, namespace, folder)))

        yield make


def blocks(page: str, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall((ROOT / page).read_text()) if language in languages]


def commands(page: str) -> list[str]:
    return [line for text in blocks(page, "console", "") for line in text.splitlines() if line.startswith("kubectl ")]


def test_documented_retry_commands_run(place: Callable[..., Reader]) -> None:
    page = "docs/retries.md"
    reader = place("docs-retries")
    found = [body for text in blocks(page, "yaml") for body in yaml.safe_load_all(text) if "kind" in body]
    assert {body["kind"] for body in found} == {"RetryPolicy", "ConsumerGroup", "Redrive"}
    reader.apply(*found)
    reader.say_that_all_is_well()
    outputs = {line: reader.types(line) for line in commands(page)}
    assert len(outputs) >= 10
    (wide,) = [text for line, text in outputs.items() if "-o wide" in line]
    assert {"RETRY", "NEXT-DUE", "FAILED"} <= set(wide.splitlines()[0].split())
    (status,) = [text for line, text in outputs.items() if "jsonpath" in line]
    assert json.loads(status) == {"waiting": 8, "failed": 2}
    assert "orders-fixed" not in reader.kubectl("get", "redrives", "-o", "name")


def test_commands_of_the_demo_page_and_the_table_of_the_readme(place: Callable[..., Reader]) -> None:
    reader = place("demo")
    reader.apply(*yaml.safe_load_all((ROOT / "examples/flights/fleet.yaml").read_text()), POD)
    found = commands("docs/demo.md")
    assert [line.split()[3] for line in found] == ["get", "scale", "delete"]
    for line in found:
        reader.types(line)
    assert reader.kubectl("get", "kcg", "flights", "-o", "jsonpath={.spec.replicas}") == "3"
    assert reader.kubectl("get", "pods", "-o", "name") == ""
    columns = re.search(r"^\$ kubectl get consumergroups\n(NAME .*)\n", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert columns is not None
    assert columns[1].split() == reader.types("kubectl get consumergroups").splitlines()[0].split()


def test_documented_selections_by_reference(place: Callable[..., Reader]) -> None:
    page = "docs/api-conventions.md"
    reader = place("docs-conventions")
    reader.apply(consumer_group())
    found = [reader.types(line) for line in commands(page)]
    assert "orders" in found[0]
    assert [text for text in found[1:] if "orders" in text] == []


def test_documented_template_and_upgrade(place: Callable[..., Reader]) -> None:
    page = "docs/pods.md"
    reader = place("docs-pods")
    (text,) = blocks(page, "yaml")
    reader.apply(consumer_group(flat(yaml.safe_load(text))))
    stored = json.loads(reader.kubectl("get", "kcg", "orders", "-o", "json"))
    assert stored["spec"]["template"] == yaml.safe_load(text)["spec"]["template"]
    listing, patched = [reader.types(line) for line in commands(page)]
    assert listing.split()[:3] == ["NAME", "IMAGE", "UPGRADE"]
    assert "patched" in patched


def flat(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a fragment's spec by their paths."""
    return {f"spec.{name}": value for name, value in body["spec"].items()}


def test_commands_about_offsets(place: Callable[..., Reader], tmp_path: Path) -> None:
    page = "docs/offsets.md"
    reader = place("docs-offsets", tmp_path)
    reset, *_ = blocks(page, "yaml")
    (tmp_path / "prices-again.yaml").write_text(reset)
    reader.apply(consumer_group())
    made, *others = commands(page)
    reader.types(made)
    previous = [{"topic": "orders", "partition": 3, "offset": 1734}]
    skipped = [{"topic": "orders", "partition": 3, "offset": 1734, "state": "Skipped"}]
    statuses = {
        "kor/prices-again": {"phase": "Succeeded", "previous": previous},
        "kcg/orders": {"offsets": {"skipped": skipped}},
    }
    for name, status in statuses.items():
        patch = json.dumps({"status": status})
        reader.kubectl("patch", name, "--subresource=status", "--type=merge", "-p", patch)
    _, undo, _, passed = [reader.types(line) for line in others]
    assert json.loads(undo) == previous
    assert json.loads(passed)[0]["state"] == "Skipped"
    assert reader.kubectl("get", "kor", "-o", "name") == ""


def test_commands_about_the_offsets_topic(place: Callable[..., Reader]) -> None:
    page = "docs/offsets-topic.md"
    reader = place("docs-offsets-topic")
    (text,) = blocks(page, "yaml")
    reader.apply(yaml.safe_load(text), consumer_group())
    carried = [{"broker": 1, "groups": 300, "crowded": True}, {"broker": 2, "groups": 40}]
    offsets = {"partitions": 50, "reassignment": '{"version":1}', "groupsPerCoordinator": carried}
    cluster, group = {"offsetsTopic": offsets}, {"coordinator": {"id": 1, "crowded": True}}
    for name, status in (("kcl/main", cluster), ("kcg/orders", group)):
        patch = json.dumps({"status": status})
        reader.kubectl("patch", name, "--subresource=status", "--type=merge", "-p", patch)
    plan, coordinators, groups = [reader.types(line) for line in commands(page)]
    assert json.loads(plan) == {"version": 1}
    assert json.loads(coordinators) == carried
    assert groups.splitlines()[1].split() == ["orders", "1", "true"]


def test_documented_backfills_are_accepted(place: Callable[..., Reader]) -> None:
    """Those with an object store and a catalog of one's own, too, which no test of the page runs."""
    reader = place("docs-backfill")
    found = [body for text in blocks("docs/backfill.md", "yaml") for body in yaml.safe_load_all(text)]
    whole, parts = [body for body in found if "kind" in body], [body for body in found if "kind" not in body]
    reader.apply(*whole)
    stored = reader.kubectl("get", "backfills", "-o", "name").split()
    assert len(stored) == len([body for body in whole if body["kind"] == "Backfill"]) >= 7
    (catalog,) = parts
    (lake,) = [body for body in whole if body["metadata"]["name"] == "orders-lake"]
    reader.apply({**lake, "metadata": {"name": "orders-catalog"}, "spec": {**lake["spec"], **catalog}})
    for line in commands("docs/backfill.md"):
        if " patch " in line:
            reader.types(line)


def test_documented_rollout_commands(place: Callable[..., Reader]) -> None:
    page = "docs/rollouts.md"
    reader = place("docs-rollouts")
    (text,) = blocks(page, "yaml")
    reader.apply(consumer_group(flat(yaml.safe_load(text))))
    reader.say_that_all_is_well()
    found = commands(page)
    assert [line.split()[1] for line in found] == ["get", "wait", "wait", "describe", "annotate"]
    outputs = [reader.types(line) for line in found]
    assert "PROGRESS" in outputs[0].splitlines()[0].split()
    stored = json.loads(reader.kubectl("get", "kcg", "orders", "-o", "json"))
    assert stored["spec"]["rollout"] == yaml.safe_load(text)["spec"]["rollout"]
    assert stored["metadata"]["annotations"]["consumerfleet.io/retry-rollout"]


def test_commands_about_upgrades(place: Callable[..., Reader]) -> None:
    reader = place("docs-upgrades")
    reader.apply(consumer_group())
    listing, *changes = [reader.types(line) for line in commands("docs/upgrades.md")]
    assert listing.split()[:5] == ["NAMESPACE", "NAME", "IMAGE", "UPGRADE", "WHY"]
    assert [text.split()[-1] for text in changes] == ["labeled", "annotated"]
    metadata = json.loads(reader.kubectl("get", "kcg", "orders", "-o", "json"))["metadata"]
    assert metadata["labels"][CANARY_LABEL] == "true"
    assert metadata["annotations"][ADOPT_ANNOTATION] == "true"
    (values,) = blocks("docs/upgrades.md", "yaml")
    assert yaml.safe_load(values)["upgrades"].keys() == chart_values()["upgrades"].keys()


def chart_values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((ROOT / "charts/consumer-fleet/values.yaml").read_text())
    return values


def test_commands_about_deploying(place: Callable[..., Reader]) -> None:
    """The health scripts go into Argo CD's own ConfigMap, next to what others have put there."""
    reader = place("argocd")
    reader.apply(consumer_group({"metadata.namespace": "argocd"}))
    reader.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"}, "data": {"url": "theirs"}}
    )
    reader.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-notifications-cm"}})
    reader.say_that_all_is_well()
    found = commands("docs/gitops.md")
    assert [line.split()[1] for line in found] == ["wait", "wait", "apply", "kustomize", "patch"]
    for line in found:
        reader.types(line)
    stored = json.loads(reader.kubectl("get", "configmap", "argocd-cm", "-o", "json"))["data"]
    assert stored.pop("url") == "theirs"
    assert stored == {
        f"resource.customizations.health.consumerfleet.io_{path.parent.name}": path.read_text()
        for path in SCRIPTS.glob("*/health.lua")
    }


@pytest.mark.parametrize("example", EXAMPLES)
def test_commands_of_the_example(place: Callable[..., Reader], example: str) -> None:
    path = ROOT / "examples" / example
    reader = place(re.sub(r"[\W_]", "-", example), path.parent)
    found = COMMAND.findall(path.read_text())
    assert found
    for line in found:
        reader.types(line)


def test_no_document_has_a_command_that_is_not_run_here() -> None:
    known = {*PAGES, *ON_A_CLUSTER, *OF_THE_PLUGIN, *(f"examples/{example}" for example in EXAMPLES)}
    others = {
        str(path.relative_to(ROOT))
        for folder in ("docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py", ".yaml") and COMMAND.search(path.read_text())
    }
    assert others <= known
