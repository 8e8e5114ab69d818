"""`kubectl fleet` on a real API server. No operator runs: the tests write the statuses that it would write."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_kubectl.api import open_api
from fleet_kubectl.cli import main
from fleet_kubectl.errors import KindsNotInstalled
from fleet_operator.clients.kinds import Kind
from tests.apiserver import objects
from tests.apiserver.conftest import Site
from tests.support.apiserver import ApiServer
from tests.unit.plugin import page
from tests.unit.plugin.fleets import condition, group, pod

SECRET = "hunter2-x9"
RETRY = objects.retry()


class Person:
    """A user with a kubeconfig, who types commands for one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, read: pytest.CaptureFixture[str]) -> None:
        self._cluster = ("--kubeconfig", str(kubeconfig), "--namespace", namespace)
        self._read = read

    def types(self, *words: str, code: int = 0) -> str:
        """Run a command; return what it printed on standard output and then on standard error."""
        self._read.readouterr()
        found = main([*words, *self._cluster])
        printed = self._read.readouterr()
        assert found == code, printed
        assert "Traceback" not in printed.err
        return printed.out + printed.err


@pytest.fixture
def place(
    quiet_site: Callable[..., Site], quiet_api: ApiServer, capsys: pytest.CaptureFixture[str]
) -> tuple[Site, Person]:
    """A namespace with a fleet `orders` that has retries, and its administrator."""
    site = quiet_site("plugin")
    site.apply(objects.cluster(site.name, "kafka:9092"), objects.policy(site.name, "5m"))
    site.apply(objects.group(site.name, name="orders", retry=RETRY))
    return site, Person(quiet_api.kubeconfig, site.name, capsys)


def write(site: Site, *conditions: dict[str, Any], **status: Any) -> None:
    """Write the status of the fleet `orders`."""
    site.client.merge_status(
        "consumergroups", site.name, "orders", group("orders", site.name, *conditions, **status)["status"]
    )


@contextmanager
def operator(site: Site, plural: str, **end: Any) -> Iterator[list[dict[str, Any]]]:
    """End every object of a kind with a status, and collect the objects, as the operator would."""
    seen: dict[str, dict[str, Any]] = {}
    stop = threading.Event()
    complete = condition("Complete", "True", "AllMoved")

    def run() -> None:
        while not stop.wait(0.2):
            for body in site.every(plural, ""):
                name = body["metadata"]["name"]
                if name not in seen:
                    for status in ({"phase": "Pending"}, {"phase": "Succeeded", "conditions": [complete], **end}):
                        site.client.merge_status(plural, site.name, name, status)
                    seen[name] = body

    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=run, name="operator")
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        found += sorted(seen.values(), key=lambda body: str(body["metadata"]["creationTimestamp"]))


def test_status_and_explanation_of_a_fleet(place: tuple[Site, Person]) -> None:
    site, person = place
    assert "NotSeenYet" in person.types("status", code=1)
    assert "the operator has not seen it" in " ".join(person.types("explain", "orders").split())
    missing = "topic orders does not exist"
    write(
        site,
        condition("Ready", "False", "TopicNotFound", missing),
        condition("Degraded", "True", "TopicNotFound", missing),
    )
    table = person.types("status", "orders", code=1)
    assert table.splitlines()[1].split()[:3] == ["orders", "False", "TopicNotFound"]
    shown = person.types("explain", "orders")
    assert missing in shown
    assert f"1. kubectl describe consumergroup orders -n {site.name}" in shown
    write(site, retry={"waiting": 8, "failed": 2})
    (row,) = json.loads(person.types("status", "-o", "json"))
    assert (row["ready"], row["retriesWaiting"], row["failed"]) == ("True", 8, 2)
    assert "kubectl fleet failed count orders" in person.types("explain", "orders")


def test_names_that_do_not_exist_are_named(place: tuple[Site, Person]) -> None:
    site, person = place
    said = person.types("explain", "oders", code=3)
    assert said.startswith(f"ObjectNotFound: ConsumerGroup {site.name}/oders does not exist; ")
    assert "ConsumerGroup oders does not exist" in person.types("status", "orders", "oders", code=1)
    assert person.types("logs", "oders", code=3).startswith("ObjectNotFound: ConsumerGroup")
    assert person.types("logs", "orders", code=3).startswith(
        f"ObjectNotFound: ConsumerGroup {site.name}/orders: there is no pod"
    )
    assert person.types("failed", "count", "orders", code=3).startswith(
        f"NoWorkerRuns: ConsumerGroup {site.name}/orders: "
    )


def test_redrive_is_previewed_created_and_followed(place: tuple[Site, Person]) -> None:
    site, person = place
    words = (
        "redrive",
        "orders",
        "--reason",
        "exhausted",
        "--error-class",
        "ValueError",
        "--rate",
        "50",
        "--name",
        "fixed",
    )
    assert person.types(*words, code=3).startswith("OptionInvalid: standard input is not a terminal")
    assert site.every("redrives", "") == []
    with operator(site, "redrives", selected=2, moved=2, remaining=0) as made:
        shown = person.types(*words, "--yes")
    assert "NoWorkerRuns" in shown  # no pod runs here, so a dry run counts
    assert f"Redrive {site.name}/fixed is created." in shown
    assert "Redrive fixed is Succeeded: 2 match, 2 put back" in shown
    (run,) = [body for body in made if body["metadata"]["name"] == "fixed"]
    assert run["spec"]["filter"].pop("toTime")
    assert run["spec"]["filter"] == {"reasons": ["Exhausted"], "errorRegex": r"^(?:[^:]*\.)?(?:ValueError): "}
    assert (run["spec"]["rate"], run["spec"]["dryRun"]) == ({"recordsPerSecond": 50}, False)
    previews = [body for body in made if body["spec"]["dryRun"]]
    assert previews
    assert all(body["spec"]["filter"].items() >= run["spec"]["filter"].items() for body in previews)
    again = person.types(*words, "--yes", "--no-wait", "--dry-run", "--error-regex", "x", code=3)
    assert again.startswith("OptionInvalid: --error-class and --error-regex exclude each other")


def test_run_that_fails_is_an_error_with_its_reason(place: tuple[Site, Person]) -> None:
    site, person = place
    failed = [condition("Failed", "True", "SettingsInvalid", "the failed topic has no partition 9")]
    with operator(site, "redrives", phase="Failed", conditions=failed):
        said = person.types("redrive", "orders", "--record", "9:1", "--dry-run", code=3)
    assert "SettingsInvalid: the failed topic has no partition 9; correct the cause" in said


def test_group_without_retries_has_nothing_that_reads_the_records(place: tuple[Site, Person]) -> None:
    site, person = place
    site.apply(objects.group(site.name, name="plain"))
    assert person.types("redrive", "plain", code=3).startswith(
        f"OptionInvalid: ConsumerGroup {site.name}/plain has no spec.retry"
    )


def test_reset_shows_the_plan_before_it_is_created(place: tuple[Site, Person]) -> None:
    site, person = place
    previous = [{"topic": "flights", "partition": n, "offset": 100} for n in range(2)]
    resolved = [{"topic": "flights", "partition": n, "offset": 0} for n in range(3)]
    with operator(site, "offsetresets", previous=previous, resolved=resolved, partitions=3) as made:
        shown = person.types("reset", "orders", "--to", "earliest", "--name", "again", "--yes")
        dry = person.types("reset", "orders", "--to", "2h", "--dry-run")
    assert "200 offsets are read again, 0 are skipped; partitions without a commit: 1" in shown
    assert (
        shown.index("-100")
        < shown.index("OffsetReset again stops the main workers")
        < shown.index("again is Succeeded")
    )
    assert dry.endswith("This was a dry run: no offset was changed.\n")
    (run,) = [body for body in made if not body["spec"]["dryRun"]]
    assert (run["metadata"]["name"], run["spec"]["to"], run["spec"]["offsets"]) == ("again", "Offsets", resolved)
    assert run["spec"]["notAfter"]


@pytest.fixture
def viewer(
    place: tuple[Site, Person], quiet_api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Person:
    """A user who may read ConsumerGroups and pods of one namespace, and nothing else."""
    site, _ = place
    metadata = {"name": "viewer", "namespace": site.name}
    site.kubectl("create", "serviceaccount", "viewer")
    site.kubectl("create", "role", "viewer", "--verb=get,list,watch", "--resource=consumergroups.consumerfleet.io,pods")
    site.kubectl("create", "rolebinding", "viewer", "--role=viewer", f"--serviceaccount={site.name}:viewer")
    config = yaml.safe_load(quiet_api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": site.kubectl("create", "token", metadata["name"]).strip()}
    path = tmp_path / "viewer.conf"
    path.write_text(yaml.safe_dump(config))
    return Person(path, site.name, capsys)


def test_user_of_one_namespace_sees_it_and_reads_what_is_missing(place: tuple[Site, Person], viewer: Person) -> None:
    site, _ = place
    write(site)
    assert "orders" in viewer.types("status")
    said = viewer.types("status", "-A", code=3)
    assert said.startswith("Forbidden: consumergroups of all namespaces: ")
    assert (
        "read only one namespace with --namespace, or ask for this permission (kubectl auth can-i --list lists yours)"
        in said
    )
    shown = viewer.types("explain", "orders")
    assert "is Ready: FleetReady" in shown
    assert f"Forbidden: redrives of namespace {site.name}: " in shown.partition("Not read")[2]
    said = viewer.types("redrive", "orders", "--dry-run", code=3)
    assert said.startswith(f"Forbidden: Redrive {site.name}/orders-")
    assert f'cannot create resource "redrives" in API group "consumerfleet.io" in the namespace "{site.name}"' in said


def members(path: Path) -> dict[str, str]:
    """The files of a bundle by name."""
    found = {}
    with tarfile.open(path) as bundle:
        for entry in bundle.getmembers():
            file = bundle.extractfile(entry)
            assert file is not None
            found[entry.name] = file.read().decode()
    return found


def test_bundle_has_objects_and_no_secret(place: tuple[Site, Person], viewer: Person, tmp_path: Path) -> None:
    site, person = place
    write(site, condition("Ready", "False", "BrokerUnreachable", f"sasl failed: password={SECRET}"))
    worker = pod("orders-fleet-0")
    del worker["status"]
    worker["metadata"]["namespace"] = site.name
    worker["spec"] = {
        "automountServiceAccountToken": False,
        "containers": [{"name": "worker", "image": "worker", "env": [{"name": "DB", "value": SECRET}]}],
    }
    handler = objects.handler_source(site.name, source=f"PASSWORD = '{SECRET}'\n")
    handler["metadata"]["labels"] = {"consumerfleet.io/group": "orders"}
    service_account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": site.name},
    }
    site.apply(service_account, worker, handler, objects.secret(site.name, "login", password=SECRET))
    for who, path in ((person, tmp_path / "all.tar.gz"), (viewer, tmp_path / "few.tar.gz")):
        who.types("support-bundle", "orders", "--output", str(path))
    texts = members(tmp_path / "all.tar.gz")
    assert not [name for name, text in texts.items() if SECRET in text]
    kinds = {name.split("/")[2] for name in texts if name.startswith("fleet/objects/")}
    assert {"consumergroups", "kafkaclusters", "retrypolicies", "pods", "configmaps"} <= kinds
    assert "secrets" not in kinds
    assert "handler.py" in texts["fleet/objects/configmaps/handler.json"]
    assert "logs/" in texts["fleet/README.txt"].partition("Could not be read")[2]  # no kubelet has the pod's log
    assert "is not Ready: BrokerUnreachable" in texts["fleet/explain.txt"]
    readme = members(tmp_path / "few.tar.gz")["fleet/README.txt"]
    assert "configmaps of namespace" in readme
    assert "Forbidden" in readme
    assert (tmp_path / "few.tar.gz").stat().st_mode & 0o077 == 0


def test_cluster_without_our_kinds_and_without_a_server(
    quiet_api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = Kind("consumerfleet.io", "v1alpha1", "Nothing", "nothings")
    with pytest.raises(KindsNotInstalled, match=r"nothings\.consumerfleet\.io: this cluster does not have the CRD"):
        open_api(str(quiet_api.kubeconfig), None, "default").list(absent, "default")
    config = yaml.safe_load(quiet_api.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "gone.conf"
    path.write_text(yaml.safe_dump(config))
    said = Person(path, "default", capsys).types("status", code=3)
    assert said.startswith("NoCluster: the API server https://127.0.0.1:1 does not respond: ")
    assert main(["status", "--kubeconfig", str(path), "--context", "other"]) == 3


def test_commands_of_the_page_run_and_print_what_it_shows(
    place: tuple[Site, Person], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, person = place
    site.apply(objects.group(site.name, name="flights", retry=RETRY))
    missing = "topic orders does not exist at the brokers: create it, or correct spec.topics"
    bad = [
        condition("Ready", "False", "TopicNotFound", missing),
        condition("Degraded", "True", "TopicNotFound", missing),
        condition("TopicsReady", "False", "TopicNotFound", missing),
    ]
    numbers = {"readyReplicas": 0, "replicas": 0, "memberCount": 0, "lagApproximate": 65536, "behindText": "14m"}
    write(site, *bad, state="Empty", **numbers)
    good = group("flights", site.name, retry={"waiting": 8, "failed": 2})["status"]
    site.client.merge_status("consumergroups", site.name, "flights", good)
    shown = page.outputs()
    assert set(shown) == {"status", "explain"}
    for words, text in shown.values():
        printed = person.types(*words, code=1 if words[0] == "status" else 0).replace(site.name, "shop")
        print(printed)
        assert printed == text
    monkeypatch.chdir(tmp_path)
    plan = {"previous": [], "resolved": [{"topic": "orders", "partition": 3, "offset": 1734}]}
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with operator(site, "redrives", selected=2, moved=2), operator(site, "offsetresets", **plan):
        for words in page.commands(in_pods=False):
            person.types(*words, code=1 if words[0] == "status" else 0)
    assert len(site.every("redrives", "")) >= 4
    assert [path.name.startswith(f"fleet-{site.name}-orders-") for path in tmp_path.iterdir()] == [True]
