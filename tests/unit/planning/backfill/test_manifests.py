"""Children of a Backfill, as the operator makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.contract.backfill_ledger import CONTROL_KEY, Control, parse_control
from fleet_operator.api.v1alpha1 import Backfill, ConsumerGroup
from fleet_operator.planning.backfill import manifests
from fleet_operator.planning.backfill.manifests import Handlers, SourceFiles, backfill_config, for_attempt
from fleet_operator.planning.backfill.spark import NO_APPLICATION, STATES, SparkState, read_application
from fleet_operator.planning.labels import BACKFILL_LABEL, COMPONENT_LABEL, GROUP_LABEL
from tests.unit.api.backfill_objects import full_backfill
from tests.unit.planning import builders
from tests.unit.planning.backfill.applications import FILES, MOUNTED, container, launched, rendered, volumes, worker
from tests.unit.planning.backfill.things import RANGE, backfill

SASL = {"mechanism": "SCRAM-SHA-512", "secretRef": {"name": "login"}}


def conf_with(own: dict[str, str]) -> dict[str, str]:
    """Spark's settings for a Backfill with some of its own."""
    conf: dict[str, str] = launched(backfill({"attempts": 1}, spark={"sparkConf": own}))["spec"]["sparkConf"]
    return conf


def accounts(launch: dict[str, Any]) -> tuple[str, str]:
    """The service accounts of driver and executors."""
    return launch["spec"]["driver"]["serviceAccount"], launch["spec"]["executor"]["serviceAccount"]


TIMES = {"time": {"from": "1970-01-01T00:00:01Z", "to": "1970-01-01T00:00:09Z"}}


def test_settings_are_what_the_driver_reads() -> None:
    config = parse_config(rendered(backfill(range=TIMES)))
    assert (config.id, config.topic, config.ranges) == ("b-1", "orders", {0: (0, 10), 1: (5, 15)})
    assert (config.filter.from_ms, config.filter.to_ms) == (1_000, 9_000)
    assert (config.ledger, config.control) == ("again-ledger", "again-control")
    assert (config.slice_records, config.slice_seconds, config.parallelism) == (10_000_000, 15, 2)


def test_every_field_of_a_spec_reaches_the_driver() -> None:
    body = full_backfill()
    body["metadata"] |= {"uid": "b-1", "namespace": "shop"}
    body["spec"]["dryRun"] = False
    config = parse_config(rendered(Backfill.model_validate(body)))
    assert config.filter.key is not None
    assert (config.filter.headers, config.ordering, config.on_error) == ({"region": "north"}, "None", "FailedTopic")
    assert (config.slice_records, config.slice_seconds, config.parallelism) == (20_000, 30, 4)
    assert config.sink.parquet == "/var/lib/consumer-fleet/sink/backfills/again"
    assert config.compare is not None
    assert config.compare.candidate.path == "/etc/consumer-fleet/candidate"
    assert (config.compare.ignore_fields, config.compare.ignore_headers) == (("handledAt",), ("trace",))
    assert config.progress_seconds == 1800
    assert (config.event_log, config.dry_run) == (True, False)


def test_dry_run_of_a_sample_writes_nothing_and_compares_nothing() -> None:
    body = full_backfill()
    body["metadata"] |= {"uid": "b-1", "namespace": "shop"}
    config = parse_config(rendered(Backfill.model_validate(body).played))
    assert (config.dry_run, config.on_error, config.compare, config.event_log) == (True, "Skip", None, False)
    assert (config.sink.topic, config.sink.parquet, config.sink.table) == (None, None, None)
    counting = backfill(dryRun=True, onError="Fail")
    assert (counting.only_counts, counting.played) == (True, counting)


def test_settings_name_what_the_range_is_a_sample_of() -> None:
    document = backfill_config(backfill(), replace(RANGE, sampled_from=2000), worker(), "Both")
    assert parse_config(document).sampled_from == 2000
    assert parse_config(rendered(backfill())).sampled_from is None


COLUMN = {"name": "total", "type": "decimal(10,2)", "field": "sum.net"}
TABLE = {"format": "Delta", "path": "lake/orders", "mode": "Replace", "columns": [COLUMN], "partitionBy": ["total"]}


def test_table_reaches_the_driver_with_its_place_and_its_columns() -> None:
    volume = {"persistentVolumeClaim": {"claimName": "results"}}
    assert rendered(backfill(sink={"table": {**TABLE, "volume": volume}}))["sink"] == {
        "topic": None,
        "parquet": None,
        "table": {
            "format": "Delta",
            "path": "/var/lib/consumer-fleet/sink/lake/orders",
            "name": None,
            "mode": "Replace",
            "partitionBy": ["total"],
            "columns": [
                {"name": "total", "type": "decimal(10,2)", "from": "Value", "field": "sum.net", "required": False}
            ],
        },
    }
    plain = {"format": "Iceberg", "path": "s3a://lake/x", "name": "lake.sales.orders"}
    table = rendered(backfill(sink={"table": plain}))["sink"]["table"]
    assert table == {**plain, "mode": "Append", "partitionBy": [], "columns": None}


def test_live_handler_is_its_own_candidate() -> None:
    config = parse_config(rendered(backfill(compare={"self": True})))
    assert config.compare is not None
    assert config.compare.candidate == config.worker.handler.python
    assert config.compare.handlers == "Both"


def test_settings_name_the_cluster_and_the_topic_of_the_range() -> None:
    named = replace(RANGE, cluster_id="cluster-a", topic_id="t-1")
    document = backfill_config(backfill(), named, worker(), "Both")
    config = parse_config(document)
    assert (config.cluster_id, config.topic_id) == ("cluster-a", "t-1")
    again = for_attempt(document, document["worker"]["connection"], "Both")
    assert (again["clusterId"], again["topicId"]) == ("cluster-a", "t-1")


def test_settings_of_a_range_without_ids_have_no_field_for_them() -> None:
    """Ranges that were resolved before there was one, and brokers that have none."""
    document = backfill_config(backfill(), RANGE, worker(), "Both")
    assert not {"clusterId", "topicId"} & document.keys()
    config = parse_config(document)
    assert (config.cluster_id, config.topic_id) == (None, None)


def test_last_seconds_leave_out_no_record_of_a_fast_clock() -> None:
    """The range ends with the log: a time after its end would leave out records that lie inside."""
    config = parse_config(rendered(backfill(range={"last": {"seconds": 60}})))
    assert (config.filter.from_ms, config.filter.to_ms) == (1_000, None)


def test_further_attempts_differ_in_brokers_and_pass_only() -> None:
    two = backfill(compare={"callable": "shop:next", "image": "x:1"}, sink={"parquet": {"path": "s3a://a/b"}})
    first = rendered(two, "Live")
    connection = {**first["worker"]["connection"], "bootstrapServers": ["elsewhere:9092"]}
    again = for_attempt(first, connection, "Candidate")
    assert parse_config(again).worker.brokers.bootstrap_servers == ("elsewhere:9092",)
    changed = {
        **again,
        "compare": first["compare"],
        "worker": {**again["worker"], "connection": first["worker"]["connection"]},
    }
    assert changed == first
    assert again["compare"]["handlers"] == "Candidate"
    plain = rendered(backfill())
    assert for_attempt(plain, plain["worker"]["connection"], "Both") == plain


def test_children_belong_to_the_backfill() -> None:
    body = backfill()
    handlers = Handlers(worker=worker(), handler_files={"shop.py": ""}, candidate_files={"next.py": ""})
    children = [
        *manifests.driver_permissions(body, "role"),
        *manifests.sources(body, handlers),
        manifests.settings(body, {}),
        manifests.ledger(body),
        manifests.control(body, Control()),
    ]
    for child in children:
        metadata = child["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Backfill", "b-1", True)
        assert (metadata["labels"][BACKFILL_LABEL], metadata["labels"][GROUP_LABEL]) == ("again", "orders")
    assert manifests.ledger(body)["data"] == {}
    names = [(child["kind"], child["metadata"]["name"]) for child in children]
    assert len(set(names)) == len(names)


def test_orders_are_what_the_driver_reads() -> None:
    text = manifests.control(backfill(), Control(suspend=True, records_per_second=5))["data"][CONTROL_KEY]
    assert parse_control(text) == Control(suspend=True, records_per_second=5)


def test_driver_may_write_its_ledger_and_nothing_else_of_the_kind() -> None:
    account, role, own, pods = manifests.driver_permissions(backfill(), "spark-driver")
    assert account["automountServiceAccountToken"] is False
    assert [(rule["resourceNames"], rule["verbs"]) for rule in role["rules"]] == [
        (["again-ledger"], ["get", "update"]),
        (["again-control"], ["get"]),
    ]
    _, named, *_ = manifests.driver_permissions(backfill(), "spark-driver", "shop")
    assert named["rules"][2:] == [
        {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["shop"], "verbs": ["use"]}
    ]
    assert [each["roleRef"]["name"] for each in (own, pods)] == ["again-driver", "spark-driver"]
    assert [each["roleRef"]["kind"] for each in (own, pods)] == ["Role", "ClusterRole"]


def test_only_the_driver_has_a_token() -> None:
    launch = launched()
    assert launch["spec"]["driver"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert launch["spec"]["executor"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert accounts(launch) == (
        "again-driver",
        "default",
    )
    named = builders.consumer_group(template={"spec": {"serviceAccountName": "shop"}})
    launch = launched(group=named)
    assert accounts(launch) == ("again-driver", "shop")
    assert "serviceAccountName" not in launch["spec"]["driver"]["template"]["spec"]


def with_all() -> ConsumerGroup:
    """A group whose template has everything that a tenant may run in a pod."""
    added = [
        {"name": "worker", "env": [{"name": "REGION", "value": "n"}], "envFrom": [{"secretRef": {"name": "s"}}]},
        {"name": "proxy", "image": "p", "readinessProbe": {"tcpSocket": {"port": 1}}},
    ]
    spec = {
        "containers": added,
        "initContainers": [{"name": "first", "image": "f"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    metadata = {"labels": {"net": "kafka"}, "annotations": {"vault.hashicorp.com/agent-inject": "true"}}
    template = {"metadata": metadata, "spec": {**spec, "nodeSelector": {"a": "b"}}}
    return builders.consumer_group(handler=MOUNTED, retry={"policyRef": {"name": "p"}}, template=template)


def test_executors_are_the_worker_s_pods_with_another_program() -> None:
    template = launched(group=with_all(), cluster=builders.kafka_cluster(sasl=SASL))["spec"]["executor"]["template"]
    worker_like = container(template)
    assert worker_like["name"] == "spark-kubernetes-executor"
    assert not worker_like.keys() & {"image", "command", "args", "resources", "ports", "readinessProbe", "startupProbe"}
    assert {"name": "REGION", "value": "n"} in worker_like["env"]
    assert worker_like["envFrom"] == [{"secretRef": {"name": "s"}}]
    security = worker_like["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    first, proxy = template["spec"]["initContainers"]
    assert (first["name"], proxy["name"], proxy["restartPolicy"]) == ("first", "proxy", "Always")
    assert "readinessProbe" not in proxy
    context = template["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (185, 0, True)
    assert template["spec"]["nodeSelector"] == {"a": "b"}
    assert template["metadata"]["labels"][COMPONENT_LABEL] == "backfill-executor"
    sources = volumes(template)["consumer-fleet-settings"]["projected"]["sources"]
    assert [each["configMap"]["name"] for each in sources if "configMap" in each] == [
        "again-backfill",
        "again-backfill-handler",
    ]
    assert [each["secret"]["name"] for each in sources if "secret" in each] == ["login"]
    assert {"v", "consumer-fleet-retry"} <= volumes(template).keys()


def test_nothing_of_the_tenant_s_runs_beside_the_driver_s_token() -> None:
    launch = launched(
        group=with_all(), cluster=builders.kafka_cluster(sasl=SASL), files=FILES._replace(candidate=("next.py",))
    )
    template = launch["spec"]["driver"]["template"]
    worker_like = container(template)
    assert worker_like["name"] == "spark-kubernetes-driver"
    assert all("fieldRef" in each["valueFrom"] for each in worker_like["env"]), "fields of the pod only"
    assert not worker_like.keys() & {"envFrom", "image", "command", "args", "resources", "ports", "lifecycle"}
    assert (len(template["spec"]["containers"]), "initContainers" in template["spec"]) == (1, False)
    assert not template["metadata"]["annotations"]
    assert template["metadata"]["labels"]["net"] == "kafka"
    assert template["spec"]["nodeSelector"] == {"a": "b"}
    assert all(name.startswith("consumer-fleet-") for name in volumes(template))
    sources = volumes(template)["consumer-fleet-settings"]["projected"]["sources"]
    assert [each.get("configMap", each.get("secret"))["name"] for each in sources] == ["again-backfill", "login"]


@pytest.mark.parametrize("kind", [{"parquet": {}}, {"table": {"format": "Delta"}}], ids=["parquet", "table"])
def test_sink_is_mounted_into_both_and_the_candidate_into_executors(kind: dict[str, dict[str, Any]]) -> None:
    place = {"path": "x", "volume": {"persistentVolumeClaim": {"claimName": "results"}}}
    sink = {name: {**settings, **place} for name, settings in kind.items()}
    launch = launched(backfill({"attempts": 1}, sink=sink), files=FILES._replace(candidate=("next.py",)))
    for template in (launch["spec"]["driver"]["template"], launch["spec"]["executor"]["template"]):
        assert volumes(template)["consumer-fleet-sink"]["persistentVolumeClaim"] == {"claimName": "results"}
        mounts = {each["mountPath"] for each in container(template)["volumeMounts"]}
        assert "/var/lib/consumer-fleet/sink" in mounts
    sources = volumes(launch["spec"]["executor"]["template"])["consumer-fleet-settings"]["projected"]["sources"]
    items = sources[2]["configMap"]["items"]
    assert items == [{"key": "next.py", "path": "candidate/next.py"}]


def test_handler_of_an_image_is_not_mounted() -> None:
    driver = launched(files=SourceFiles())["spec"]["driver"]["template"]
    sources = volumes(driver)["consumer-fleet-settings"]["projected"]["sources"]
    assert [each["configMap"]["name"] for each in sources] == ["again-backfill"]


def test_application_is_run_once_and_kept_for_a_day() -> None:
    body = launched()
    spec = body["spec"]
    assert (body["metadata"]["name"], body["kind"]) == ("again-2", "SparkApplication")
    assert spec["arguments"] == ["--config", "/etc/consumer-fleet/backfill.json", "--attempt", "2"]
    assert (spec["restartPolicy"], spec["timeToLiveSeconds"]) == ({"type": "Never"}, 86_400)
    assert (spec["mainApplicationFile"], spec["image"]) == ("local:///opt/fleet/backfill.py", "spark:1")
    assert spec["driver"]["memory"] == spec["executor"]["memory"] == "512m"
    assert (spec["driver"]["memoryOverhead"], spec["executor"]["memoryOverhead"]) == ("200m", "384m")
    assert (spec["driver"]["coreRequest"], spec["executor"]["coreRequest"]) == ("100m", "250m")


SUBMISSION = """failed to submit spark application: failed to run spark-submit: WARNING: Using incubator modules
26/11/25 16:02:30 WARN BlockedThreadChecker: Thread Thread[vert.x-eventloop-thread-1,5,main] has been blocked
\tat java.base@17.0.21.1/sun.security.ssl.SSLEngineImpl.<init>(SSLEngineImpl.java:78)
Exception in thread "main" io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.
\tat io.fabric8.kubernetes.client.dsl.internal.OperationSupport.waitForResult(OperationSupport.java:509)
Caused by: java.util.concurrent.TimeoutException
\tat io.fabric8.kubernetes.client.utils.AsyncUtils.lambda$withTimeout$0(AsyncUtils.java:42)
26/11/25 16:02:44 INFO ShutdownHookManager: Shutdown hook called
"""
"""As much of the message of a failed submission as its 11 KB have of everything."""


def test_failed_submission_is_told_by_its_errors() -> None:
    def seen(message: str) -> Any:
        status = {"applicationState": {"state": "FAILED", "errorMessage": message}}
        return read_application({"metadata": {"uid": "u"}, "status": status})

    assert seen(SUBMISSION).message == (
        "spark-submit failed: io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.; caused "
        "by java.util.concurrent.TimeoutException"
    )
    assert seen(SUBMISSION.partition("Exception")[0]).message.startswith("failed to submit spark application: ")
    assert not seen(SUBMISSION).submitted


def test_states_of_applications() -> None:
    assert read_application(None) == NO_APPLICATION

    def observed(status: dict[str, Any] | None) -> Any:
        return read_application({"metadata": {"uid": "u"}, **({"status": status} if status is not None else {})})

    new = observed(None)
    assert (new.state, new.taken) == (SparkState.SUBMITTED, False)
    for word, state in STATES.items():
        assert observed({"applicationState": {"state": word}}).state is state
    assert observed({"applicationState": {"state": "SUSPENDED"}}).state is SparkState.UNKNOWN
    failed = observed(
        {"applicationState": {"state": "FAILED", "errorMessage": "x" * 9000}, "driverInfo": {"podName": "p"}}
    )
    assert (failed.driver_pod, len(failed.message), failed.taken, failed.submitted) == ("p", 4096, True, True)
    over = {state for state in SparkState if state.over}
    assert over == {SparkState.ABSENT, SparkState.SUCCEEDED, SparkState.FAILED}
