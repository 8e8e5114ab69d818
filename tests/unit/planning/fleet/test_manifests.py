"""Revisions and the objects made from them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_consumer.contract import naming
from fleet_consumer.contract.worker_config import parse_config
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.pod_template import check_pod_spec, leave_users_to_platform
from fleet_operator.planning.fleet.revision import Revision, plan_revision
from fleet_operator.planning.labels import selector_text
from tests.unit.planning.builders import IMAGE, consumer_group, kafka_cluster, with_containers, with_worker

OAUTH = {
    "mechanism": "OAUTHBEARER",
    "secretRef": {"name": "login"},
    "oauth": {"tokenEndpoint": "https://login.example/token"},
}
SASL = {"mechanism": "PLAIN", "secretRef": {"name": "login"}, "allowWithoutTls": True}
LOGIN = {"mechanism": "PLAIN", "directory": "/etc/consumer-fleet/credentials", "identity": None, "oauth": None}
TLS = {"caSecretRef": {"name": "ca", "key": "root.pem"}, "clientCertSecretRef": {"name": "client"}}
FILES = {"shop.py": "def handle(record): ...", "helpers.py": ""}


def revision_of(group: ConsumerGroup, *, files: dict[str, str] | None = None, image: str = IMAGE) -> Revision:
    return plan_revision(group, kafka_cluster(), handler_files=files, image=image)


def children(group: ConsumerGroup, revision: Revision) -> list[dict[str, Any]]:
    template = revision.pod_template
    handler = manifests.handler_config_map(group, revision)
    return [
        manifests.headless_service(group),
        manifests.disruption_budget(group),
        manifests.stateful_set(group, revision=revision.hash, pod_template=template, replicas=3),
        manifests.revision_config_map(group, revision),
        manifests.preflight_pod(group, revision=revision.hash, pod_template=template),
        *([handler] if handler else []),
    ]


def worker(revision: Revision) -> dict[str, Any]:
    containers = revision.pod_template["spec"]["containers"]
    found: dict[str, Any] = next(c for c in containers if c["name"] == "worker")
    return found


def test_same_spec_gives_the_same_revision() -> None:
    assert revision_of(consumer_group()) == revision_of(consumer_group())
    assert len(revision_of(consumer_group()).hash) == 10


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("replicas", {"replicas": 9}),
        ("suspension", {"suspend": True}),
        ("what becomes of the group afterwards", {"deletion": {"group": "Delete"}}),
        ("scaling", {"scaling": {"maxReplicas": 4}}),
    ],
)
def test_pods_do_not_roll_for(what: str, change: dict[str, Any]) -> None:
    assert revision_of(consumer_group(**change)).hash == revision_of(consumer_group()).hash, what


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("another handler", {"handler": {"python": {"callable": "shop:other"}}}),
        ("another topic", {"topics": ["orders", "returns"]}),
        ("another environment", {"template": with_worker(env=[{"name": "A", "value": "1"}])}),
        ("another way to pull the image", {"imagePullPolicy": "Always"}),
        ("another user", {"template": {"spec": {"securityContext": {"runAsUser": 1000}}}}),
        ("another interval", {"consumer": {"commitIntervalSeconds": 1}}),
    ],
)
def test_pods_roll_for(what: str, change: dict[str, Any]) -> None:
    assert revision_of(consumer_group(**change)).hash != revision_of(consumer_group()).hash, what


def test_pods_roll_for_a_changed_handler_source() -> None:
    group = consumer_group()
    changed = FILES | {"shop.py": "def handle(record): return None"}
    assert revision_of(group, files=FILES).hash != revision_of(group, files=changed).hash
    assert revision_of(group, files=FILES).hash != revision_of(group).hash


def test_pods_roll_for_another_image() -> None:
    assert revision_of(consumer_group(), image="x").hash != revision_of(consumer_group(), image="y").hash


some_labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=2)
workers = st.fixed_dictionaries(
    {"name": st.just("worker")},
    optional={
        "env": st.lists(st.sampled_from(["A", "B"]).map(lambda name: {"name": name, "value": "1"}), max_size=2),
        "envFrom": st.just([{"secretRef": {"name": "s"}}]),
        "volumeMounts": st.just([{"name": "cache", "mountPath": "/tmp"}]),
        "resources": st.sampled_from([{}, {"limits": {"memory": "1Gi"}}]),
    },
)
sides = st.fixed_dictionaries(
    {"name": st.just("side"), "image": st.just("i")},
    optional={
        "securityContext": st.sampled_from(
            [
                {"privileged": True, "procMount": "Unmasked", "seLinuxOptions": {"type": "spc_t"}},
                {"capabilities": {"add": ["SYS_ADMIN", "NET_BIND_SERVICE"]}, "runAsNonRoot": False, "runAsUser": 0},
                {"seccompProfile": {"type": "Unconfined"}, "allowPrivilegeEscalation": True},
                {"windowsOptions": {"hostProcess": True}, "runAsGroup": 0, "appArmorProfile": {"type": "Unconfined"}},
            ]
        ),
        "volumeDevices": st.just([{"name": "d", "devicePath": "/dev/x"}]),
    },
)
templates = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"labels": some_labels, "annotations": some_labels}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.tuples(workers, sides).map(list) | st.lists(workers, max_size=1),
                "initContainers": st.lists(sides.map(lambda side: {**side, "name": "first"}), max_size=1),
                "volumes": st.just([{"name": "cache", "emptyDir": {}}]),
                "nodeSelector": st.just({"disk": "fast"}),
                "affinity": st.just({"nodeAffinity": {}}),
                "securityContext": st.sampled_from(
                    [
                        {"runAsUser": 1000, "runAsGroup": 0, "fsGroup": 1000, "supplementalGroups": [7]},
                        {"runAsNonRoot": False, "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}},
                    ]
                ),
            },
        ),
    },
)


@settings(max_examples=50, deadline=None)
@given(templates, st.sampled_from([None, FILES]))
def test_building_twice_gives_equal_objects_and_changes_no_input(
    template: dict[str, Any], files: dict[str, str] | None
) -> None:
    group = consumer_group(template=template)
    before = group.model_dump()
    revision = revision_of(group, files=files)
    shown = copy.deepcopy(revision)
    first, second = children(group, revision), children(group, revision)
    assert first == second
    for body in first:
        body.clear()
    assert children(group, revision) == second
    assert (group.model_dump(), revision) == (before, shown)


@settings(max_examples=50, deadline=None)
@given(templates)
def test_every_container_is_held_to_the_restricted_level(template: dict[str, Any]) -> None:
    """Pod Security Standards, level restricted; also for what users add, and for the check."""
    group = consumer_group(template=template)
    revision = revision_of(group)
    check = manifests.preflight_pod(group, revision=revision.hash, pod_template=revision.pod_template)
    for spec in (revision.pod_template["spec"], check["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            assert set(context["capabilities"].get("add", ())) <= {"NET_BIND_SERVICE"}
            assert context.keys() <= {
                *("allowPrivilegeEscalation", "capabilities", "runAsUser", "runAsGroup"),
                *("readOnlyRootFilesystem", "seccompProfile"),
            }
            assert context.get("runAsUser", 1) > 0
            assert context.get("seccompProfile", {"type": "RuntimeDefault"})["type"] != "Unconfined"
            assert "volumeDevices" not in container


def test_containers_of_users_get_neither_root_nor_ports_of_the_node() -> None:
    side: dict[str, Any] = {"name": "side", "image": "i", "securityContext": {"runAsUser": 0}}
    side["ports"] = [{"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}]
    revision = revision_of(consumer_group(template=with_containers(side)))
    (tamed,) = (c for c in revision.pod_template["spec"]["containers"] if c["name"] == "side")
    assert "runAsUser" not in tamed["securityContext"]
    assert tamed["ports"] == [{"containerPort": 80}]


def test_user_and_groups_of_the_pod_are_the_users_choice() -> None:
    wanted = {"runAsUser": 1000, "runAsGroup": 0, "fsGroupChangePolicy": "OnRootMismatch", "supplementalGroups": [7]}
    given = revision_of(consumer_group(template={"spec": {"securityContext": wanted}})).pod_template["spec"]
    assert given["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 0,
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
        "supplementalGroups": [7],
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_platform_that_assigns_users_is_asked_for_none_but_a_named_one() -> None:
    group = consumer_group()
    left = revision_of(leave_users_to_platform(group))
    for spec in (left.pod_template["spec"], check_pod_spec(left.pod_template)):
        assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True}
    assert left.hash != revision_of(group).hash
    assert left.inputs != revision_of(group).inputs, "fleets go over when the installation's setting changes"
    named = consumer_group(template={"spec": {"securityContext": {"fsGroup": 1000660000}}})
    context = revision_of(leave_users_to_platform(named)).pod_template["spec"]["securityContext"]
    assert (context["fsGroup"], "runAsUser" in context) == (1000660000, False)


def test_worker_has_default_resources_until_others_are_given() -> None:
    """Given resources replace them as a whole, and an empty object means none."""
    assert worker(revision_of(consumer_group()))["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}}
    for wanted in ({}, {"limits": {"memory": "1Gi"}}):
        assert worker(revision_of(consumer_group(template=with_worker(resources=wanted))))["resources"] == wanted
    without = with_worker(env=[{"name": "A", "value": "1"}])
    assert worker(revision_of(consumer_group(template=without)))["resources"]["requests"]["cpu"] == "50m"


def test_image_is_pulled_as_the_spec_says() -> None:
    assert worker(revision_of(consumer_group()))["imagePullPolicy"] == "IfNotPresent"
    assert worker(revision_of(consumer_group(imagePullPolicy="Never")))["imagePullPolicy"] == "Never"


def test_every_child_is_owned_and_labelled() -> None:
    group = consumer_group()
    for body in children(group, revision_of(group, files=FILES)):
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("ConsumerGroup", group.metadata.uid, True)
        assert body["metadata"]["labels"]["consumerfleet.io/group"] == "orders"
        assert body["metadata"]["namespace"] == "shop"


def test_selectors_take_workers_and_leave_check_pods() -> None:
    """A check pod behind the Service or in the budget would look like a worker."""
    group = consumer_group(template={"metadata": {"labels": {"team": "a"}}})
    revision = revision_of(group)
    selector = MAIN.selector("orders").items()
    stateful = manifests.stateful_set(group, revision=revision.hash, pod_template=revision.pod_template, replicas=1)
    assert selector <= stateful["spec"]["template"]["metadata"]["labels"].items()
    assert stateful["spec"]["selector"]["matchLabels"].items() == selector
    check = manifests.preflight_pod(group, revision=revision.hash, pod_template=revision.pod_template)
    assert not selector <= check["metadata"]["labels"].items()
    assert check["metadata"]["labels"]["team"] == "a"
    assert selector_text(MAIN.selector("orders")) == "app.kubernetes.io/component=worker,consumerfleet.io/group=orders"


def test_worker_that_imports_for_minutes_is_not_killed_meanwhile() -> None:
    """The kubelet begins with the probe of liveness once that of the start has succeeded."""
    container = worker(revision_of(consumer_group()))
    start, live = container["startupProbe"], container["livenessProbe"]
    assert start["httpGet"] == live["httpGet"]
    assert start["periodSeconds"] * start["failureThreshold"] == 600


def test_check_pod_is_the_workers_pod_with_another_command() -> None:
    worker_too = {"name": "worker", "env": [{"name": "A", "value": "1"}]}
    first, side = {"name": "first", "image": "i"}, {"name": "side", "image": "i"}
    group = consumer_group(template={"spec": {"containers": [side, worker_too], "initContainers": [first]}})
    revision = revision_of(group)
    spec = manifests.preflight_pod(group, revision=revision.hash, pod_template=revision.pod_template)["spec"]
    (container,) = spec["containers"]
    assert container["args"] == ["check", "--config", "/etc/consumer-fleet/worker.json"]
    assert (container["env"], container["image"]) == (worker(revision)["env"], IMAGE)
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "ports"} & container.keys()
    assert (spec["restartPolicy"], "activeDeadlineSeconds" in spec) == ("Never", False)
    assert [c["name"] for c in spec["initContainers"]] == ["first", "side"]


SERVED: dict[str, Any] = {
    "handler": {"http": {"port": 8080}},
    "template": {
        "spec": {
            "containers": [
                {"name": "extra", "image": "b"},
                {"name": "handler", "image": "shop", "securityContext": {"privileged": True}},
            ],
            "initContainers": [{"name": "first", "image": "f"}],
        }
    },
}


def test_http_handler_runs_as_a_native_sidecar_that_outlives_the_worker() -> None:
    group = consumer_group(**SERVED)
    revision = plan_revision(group, kafka_cluster(), handler_files=None, image=IMAGE)
    spec = revision.pod_template["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["first", "handler"]
    assert spec["initContainers"][1]["restartPolicy"] == "Always"
    assert "privileged" not in spec["initContainers"][1]["securityContext"]
    assert [each["name"] for each in spec["containers"]] == ["worker", "extra"]
    check = manifests.preflight_pod(group, revision=revision.hash, pod_template=revision.pod_template)["spec"]
    assert [each["name"] for each in check["initContainers"]] == ["first", "handler", "extra"]
    assert [each["name"] for each in check["containers"]] == ["worker"]


def test_check_tries_the_containers_beside_the_worker_and_ends_without_them() -> None:
    """One whose image is missing, or that no node has room for, would first show where it replaces a worker."""
    fields = {"image": "proxy:2", "resources": {"requests": {"cpu": "1"}}, "volumeMounts": [{"name": "x"}]}
    attending = {"readinessProbe": {"exec": {"command": ["true"]}}, "lifecycle": {"preStop": {"sleep": {"seconds": 9}}}}
    extra = {"name": "extra", **fields, **attending}
    group = consumer_group(template=with_containers(extra))
    revision = plan_revision(group, kafka_cluster(), handler_files=None, image=IMAGE)
    check = manifests.preflight_pod(group, revision=revision.hash, pod_template=revision.pod_template)["spec"]
    (tried,) = check["initContainers"]
    assert {key: tried[key] for key in ("name", *fields)} == {"name": "extra", **fields}
    assert tried["restartPolicy"] == "Always"
    assert not tried.keys() & attending.keys(), "they may need a worker that serves"


def test_worker_leaves_the_port_that_its_handler_wants() -> None:
    group = consumer_group(**SERVED)
    revision = plan_revision(group, kafka_cluster(), handler_files=None, image=IMAGE)
    assert revision.worker_config["httpPort"] == 8081
    assert revision.pod_template["spec"]["containers"][0]["ports"][0]["containerPort"] == 8081
    assert manifests.headless_service(group)["spec"]["ports"][0]["port"] == 8081


def test_revision_is_named_wherever_it_is_needed() -> None:
    group = consumer_group()
    revision = revision_of(group, files=FILES)
    stateful = manifests.stateful_set(group, revision=revision.hash, pod_template=revision.pod_template, replicas=1)
    key = "consumerfleet.io/revision"
    assert stateful["metadata"]["annotations"][key] == revision.hash
    assert stateful["spec"]["template"]["metadata"]["annotations"][key] == revision.hash
    assert revision.worker_config["revision"] == revision.hash
    named = json.dumps(revision.pod_template)
    assert naming.revision_config("orders", revision.hash) in named
    assert naming.revision_handler("orders", revision.hash) in named


def test_settings_handler_and_secrets_lie_in_one_projected_volume() -> None:
    group = consumer_group()
    cluster = kafka_cluster(tls=TLS, sasl=SASL)
    revision = plan_revision(group, cluster, handler_files=FILES, image=IMAGE)
    volume = revision.pod_template["spec"]["volumes"][0]["projected"]
    paths = [item["path"] for source in volume["sources"] for part in source.values() for item in part["items"]]
    assert paths == [
        "worker.json",
        "handler/helpers.py",
        "handler/shop.py",
        "credentials/username",
        "credentials/password",
        "tls/ca.crt",
        "tls/tls.crt",
        "tls/tls.key",
    ]
    assert volume["defaultMode"] == 0o440
    connection = revision.worker_config["connection"]
    assert connection["sasl"] == LOGIN
    assert connection["tls"] == {
        "caFile": "/etc/consumer-fleet/tls/ca.crt",
        "certFile": "/etc/consumer-fleet/tls/tls.crt",
        "keyFile": "/etc/consumer-fleet/tls/tls.key",
    }


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"handler": {"python": {"callable": "shop:handle", "configMapRef": {"name": "h"}}, "outputs": ["done"]}},
        {"consumer": {"classic": {"assignors": ["cooperative-sticky"]}, "staticMembership": False}},
        {"consumer": {"properties": {"fetch.min.bytes": "1"}, "isolationLevel": "ReadCommitted"}},
        {"producer": {"properties": {"compression.type": "zstd"}}},
        {"topics": None, "topicPattern": "^orders", "consumer": {"classic": {"assignors": ["shop.assign:Mine"]}}},
        {"handler": {"http": {"port": 9000, "batch": True}}, "template": with_containers({"name": "handler"})},
        {"groupId": "shop.orders", "topics": ["a", "b"], "handler": {"python": {"callable": "a:b"}, "concurrency": 4}},
    ],
)
@pytest.mark.parametrize("connection", [{}, {"tls": {}}, {"tls": TLS, "sasl": SASL}, {"tls": TLS, "sasl": OAUTH}])
def test_worker_parses_the_written_settings(spec: dict[str, Any], connection: dict[str, Any]) -> None:
    """worker.json as the worker's own parser sees it: strict, so that any drift between the two fails here."""
    group = consumer_group(**spec)
    revision = plan_revision(group, kafka_cluster(**connection), handler_files=FILES, image=IMAGE)
    config_map = manifests.revision_config_map(group, revision)
    config = parse_config(json.loads(config_map["data"]["worker.json"]))
    assert (config.group_id, config.topics) == (group.group_id, group.source_topics)
    assert (config.revision, config.failed_topic) == (revision.hash, naming.failed_topic(group.group_id))
    assert config.consumer.session_timeout_seconds == group.spec.consumer.classic.session_timeout_seconds
    assert config.consumer.assignors == group.spec.consumer.classic.assignors
    assert config.handler.concurrency == group.spec.handler.concurrency


def test_worker_pod_can_write_only_to_its_scratch_directory() -> None:
    revision = revision_of(consumer_group())
    mounts = worker(revision)["volumeMounts"]
    assert [(mount["mountPath"], mount.get("readOnly", False)) for mount in mounts] == [
        ("/etc/consumer-fleet", True),
        ("/etc/fleet/offsets", True),
        ("/tmp", False),
    ]
    assert worker(revision)["securityContext"]["readOnlyRootFilesystem"] is True


def test_user_may_bring_his_own_scratch_directory() -> None:
    extra = with_worker(volumeMounts=[{"name": "big", "mountPath": "/tmp/"}])
    extra["spec"]["volumes"] = [{"name": "big", "emptyDir": {}}]
    revision = revision_of(consumer_group(template=extra))
    assert [mount["name"] for mount in worker(revision)["volumeMounts"]] == [
        "consumer-fleet-settings",
        "big",
        "consumer-fleet-offsets",
    ]
    assert len(revision.pod_template["spec"]["volumes"]) == 3


def test_grace_period_outlasts_the_drain() -> None:
    revision = revision_of(consumer_group())
    grace = revision.pod_template["spec"]["terminationGracePeriodSeconds"]
    assert grace > revision.worker_config["drainSeconds"]


def test_names_of_children_fit_for_the_longest_name() -> None:
    group = consumer_group("a" * 40)
    bodies = children(group, revision_of(group, files=FILES))
    names = [body["metadata"]["name"] for body in bodies if body["kind"] != "ConfigMap"]
    assert max(map(len, names)) <= 63
    assert len(MAIN.child("a" * 40)) <= 52, "room for the controller's own suffix"


def test_records_are_immutable() -> None:
    """Their content is what was checked; pods that restart must find the same."""
    group = consumer_group()
    revision = revision_of(group, files=FILES)
    handler = manifests.handler_config_map(group, revision)
    assert handler is not None
    assert handler["immutable"] is True
    assert handler["data"] == FILES
    assert manifests.revision_config_map(group, revision)["immutable"] is True
