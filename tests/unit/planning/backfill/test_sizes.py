"""Sizes, places and settings of a Backfill's Spark application."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleet_operator.planning.backfill import manifests
from fleet_operator.planning.backfill.manifests import SourceFiles
from tests.unit.planning import builders
from tests.unit.planning.backfill.applications import MOUNTED, container, launched
from tests.unit.planning.backfill.things import backfill


def test_wire_between_driver_and_executors_is_encrypted_whatever_the_user_sets() -> None:
    weak = {"spark.network.crypto.enabled": "false", "spark.network.crypto.config.cipher.classes": "x"}
    conf = launched(backfill({"attempts": 1}, spark={"sparkConf": {**weak, "spark.network.timeout": "90s"}}))["spec"][
        "sparkConf"
    ]
    assert conf["spark.network.timeout"] == "90s"
    crypto = {name: value for name, value in conf.items() if "crypto" in name or "authenticate" in name}
    assert crypto == {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.saslFallback": "false",
    }


def test_credentials_of_an_object_store_are_those_of_the_secret_in_both() -> None:
    own = [{"name": "AWS_ACCESS_KEY_ID", "value": "template"}, {"name": "REGION", "value": "n"}]
    template = {"spec": {"containers": [{"name": "worker", "env": own}]}}
    sink = {"parquet": {"path": "s3a://a/b"}, "secretRef": {"name": "store"}}
    launch = launched(backfill(sink=sink), group=builders.consumer_group(handler=MOUNTED, template=template))
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    wanted = {name: {"name": "store", "key": name, "optional": name == names[2]} for name in names}
    for role in ("driver", "executor"):
        env = container(launch["spec"][role]["template"])["env"]
        found = [each for each in env if each["name"].startswith("AWS_")]
        assert {each["name"]: each["valueFrom"]["secretKeyRef"] for each in found} == wanted
        assert len(found) == len(wanted)
        assert ({"name": "REGION", "value": "n"} in env) is (role == "executor")
    assert "AWS_" not in str(launched(backfill(sink={"parquet": {"path": "s3a://a/b"}})))


def test_no_user_setting_replaces_what_isolates_a_run() -> None:
    conf = launched(backfill({"attempts": 1}, spark={"sparkConf": {"spark.sql.shuffle.partitions": "8"}}))["spec"][
        "sparkConf"
    ]
    assert conf["spark.sql.shuffle.partitions"] == "8"
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"


@pytest.mark.parametrize(("tasks", "cores", "pods"), [(2, 1, 2), (3, 2, 2), (1, 4, 1), (8, 4, 2)])
def test_there_are_as_many_executors_as_tasks_need(tasks: int, cores: int, pods: int) -> None:
    body = backfill({"attempts": 1}, parallelism=tasks, spark={"executor": {"cores": cores}})
    assert launched(body)["spec"]["executor"]["instances"] == pods


@pytest.mark.parametrize(("least", "stay"), [(1, 1), (2, 2), (9, 4)])
def test_executors_come_with_the_work_and_go_without_it(least: int, stay: int) -> None:
    given = {"dynamicAllocation": {"minExecutors": least}, "executor": {"cores": 2}}
    spec = launched(backfill(parallelism=8, spark=given))["spec"]
    assert spec["dynamicAllocation"] == {
        "enabled": True,
        "initialExecutors": stay,
        "minExecutors": stay,
        "maxExecutors": 4,
        "shuffleTrackingEnabled": True,
    }
    assert spec["executor"]["instances"] == stay
    assert spec["sparkConf"]["spark.dynamicAllocation.enabled"] == "true"


def test_executors_stay_for_the_run_unless_asked() -> None:
    spec = launched()["spec"]
    assert (spec["dynamicAllocation"]["enabled"], spec["executor"]["instances"]) == (False, 2)
    assert spec["sparkConf"]["spark.dynamicAllocation.enabled"] == "false"
    assert spec["sparkConf"]["spark.decommission.enabled"] == "true", "a task in hand on a drained node is ended"


@pytest.mark.parametrize("ui", [True, False])
def test_web_interface_is_served_where_it_is_asked_for(ui: bool) -> None:
    assert launched(backfill(spark={"ui": ui}))["spec"]["sparkConf"]["spark.ui.enabled"] == str(ui).lower()


@pytest.mark.parametrize(
    ("quantity", "spark"),
    [
        ("512Mi", "512m"),
        ("2Gi", "2048m"),
        ("1.5Gi", "1536m"),
        ("1Ti", "1048576m"),
        ("512M", "489m"),
        ("1e9", "954m"),
        (536_870_913, "513m"),
    ],
)
def test_memory_is_whole_mebibytes_of_the_jvm_and_never_less_than_asked_for(quantity: str | int, spark: str) -> None:
    size = {"memory": quantity, "memoryOverhead": quantity}
    spec = launched(backfill({"attempts": 1}, spark={"driver": size, "executor": size}))["spec"]
    for role in ("driver", "executor"):
        assert (spec[role]["memory"], spec[role]["memoryOverhead"]) == (spark, spark)


@pytest.mark.parametrize(("quantity", "spark"), [("0.5", "0.5"), ("500m", "500m"), (2, "2")])
def test_request_of_processors_is_a_quantity_for_spark_too(quantity: str | int, spark: str) -> None:
    spec = launched(backfill({"attempts": 1}, spark={"driver": {"coreRequest": quantity}}))["spec"]
    assert spec["driver"]["coreRequest"] == spark


@pytest.mark.parametrize("text", ["512MB", "1 Gi", "half"])
def test_size_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        backfill({"attempts": 1}, spark={"driver": {"memory": text}})


def test_placement_and_limits_are_the_run_s_own() -> None:
    placement = {
        "nodeSelector": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "priorityClassName": "batch",
    }
    spark = {"placement": placement, "executor": {"coreLimit": "2"}}
    group = builders.consumer_group(template={"spec": {"priorityClassName": "live", "nodeSelector": {"pool": "main"}}})
    given = backfill(spark=spark)
    made = manifests.application(given, group, builders.kafka_cluster(), SourceFiles(), image="spark:1")["spec"]
    for role in ("driver", "executor"):
        pod = made[role]["template"]["spec"]
        assert {key: pod[key] for key in placement} == placement
    assert made["executor"]["coreLimit"] == "2"
    assert "coreLimit" not in made["driver"]
    part = backfill(spark={"placement": {"priorityClassName": "batch"}})
    made = manifests.application(part, group, builders.kafka_cluster(), SourceFiles(), image="spark:1")["spec"]
    pod = made["driver"]["template"]["spec"]
    assert (pod["priorityClassName"], pod["nodeSelector"]) == ("batch", {"pool": "main"})
