"""The embedded cluster: repeated, interrupted, side by side, and without a trace at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from e2e.local_cluster import versions
from e2e.local_cluster.cgroups import existing_cgroups
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.commands import output
from e2e.local_cluster.images import SPARK
from e2e.local_cluster.instance import CHECKOUT, Instance, select_instance
from e2e.local_cluster.kafka_pod import ensure_kafka, host_bootstrap
from e2e.local_cluster.namespace import enter_command, find_first_process
from e2e.local_cluster.network import link_exists
from e2e.local_cluster.node_state import NodeState
from e2e.local_cluster.spark_operator import ensure_spark_operator, remove_spark_operator
from e2e.local_cluster.status import cluster_parts
from e2e.local_cluster.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 20
KERNEL_SETTINGS = ("net.ipv4.ip_forward", "vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops")


def make_cluster(suffix: str) -> LocalCluster:
    """A cluster of this checkout's own, next to the developer's."""
    return LocalCluster(select_instance(f"{select_instance().name}-{suffix}"))


@pytest.fixture(scope="module")
def host_before() -> dict[str, object]:
    return host_state()


@pytest.fixture(scope="module")
def cluster(host_before: dict[str, object]) -> Iterator[LocalCluster]:
    made = make_cluster("first")
    made.down()
    made.up()
    yield made
    made.down()


@pytest.fixture
def second_cluster() -> Iterator[LocalCluster]:
    made = make_cluster("second")
    yield made
    made.down()


def host_state() -> dict[str, object]:
    """Everything that a cluster could leave behind or change on its host, as sorted text."""
    rules = [output([program]) for program in ("iptables-save", "ip6tables-save")]
    return {
        "firewall": [line for text in rules if text for line in text.splitlines() if not line.startswith("#")],
        "kernel": [output(["sysctl", name]) for name in KERNEL_SETTINGS],
    }


def traces(instance: Instance) -> list[str]:
    """Everything of an instance that exists on this machine, each with its kind."""
    found = [f"process {pid}" for pid in processes_of(instance)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if instance.name in line]
    found += [f"link {instance.link}"] if link_exists(instance) else []
    found += [f"control group {group}" for group in existing_cgroups(instance.cgroup)]
    found += [f"file {path}" for path in (instance.directory, instance.lock) if path.exists()]
    return found


def processes_of(instance: Instance) -> list[int]:
    """Processes that name the instance's directory, or that live in its control groups."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(instance.directory).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # It ended meanwhile.
    for group in existing_cgroups(instance.cgroup):
        for procs in group.rglob("cgroup.procs"):
            found += [int(pid) for pid in procs.read_text().split()]
    return sorted(set(found))


def first_process(cluster: LocalCluster) -> int:
    pid = find_first_process(cluster.instance)
    assert pid is not None, f"cluster {cluster.instance.name} does not run"
    return pid


def unhealthy(cluster: LocalCluster) -> list[str]:
    return [f"{part.name}: {part.detail}" for part in cluster_parts(cluster.instance) if not part.healthy]


def test_second_up_leaves_a_healthy_cluster_alone(cluster: LocalCluster) -> None:
    before = first_process(cluster)
    cluster.up()
    assert first_process(cluster) == before
    assert unhealthy(cluster) == []


def test_up_after_a_killed_init_process_restores_stored_objects(cluster: LocalCluster) -> None:
    cluster.access.kubectl("create", "configmap", "kept", "--from-literal=word=here")
    os.kill(first_process(cluster), signal.SIGKILL)
    wait_until(lambda: processes_of(cluster.instance) == [], what="every process to end", timeout_s=60)

    cluster.up()

    assert unhealthy(cluster) == []
    assert cluster.access.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.word}") == "here"


def test_ended_component_is_reported_and_next_up_restarts_the_node(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    state = NodeState.read(cluster.instance.state_file)
    assert state is not None
    kill = ["kill", "-KILL", str(state.components["kube-scheduler"].pid)]
    subprocess.run(enter_command(cluster.instance, kill), check=True)
    wait_until(lambda: unhealthy(cluster) != [], what="the status to report it", timeout_s=30)
    assert [line for line in unhealthy(cluster) if line.startswith("kube-scheduler: ended with status -9")]

    cluster.up()

    assert "kube-scheduler ended" in capfd.readouterr().err
    assert unhealthy(cluster) == []


def namespaces_exist(instance: Instance) -> bool:
    return find_first_process(instance) is not None


def components_start(instance: Instance) -> bool:
    state = NodeState.read(instance.state_file)
    return state is not None and "kube-apiserver" in state.components


@pytest.mark.parametrize("moment", [namespaces_exist, link_exists, components_start])
def test_up_killed_midway_is_completed_by_the_next(
    second_cluster: LocalCluster, moment: Callable[[Instance], bool]
) -> None:
    instance = second_cluster.instance
    words = [sys.executable, "-m", "e2e.local_cluster", "up", "--name", instance.name]
    with subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as interrupted:
        wait_until(lambda: moment(instance), what=moment.__name__, timeout_s=120, interval_s=0.002)
        interrupted.kill()

    second_cluster.up()

    assert unhealthy(second_cluster) == []


def deliver(bootstrap: str, codec: str) -> list[KafkaError | None]:
    """Produce records and return the result of each: None for one that the broker has stored."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 100})
    outcomes: list[KafkaError | None] = []
    for _ in range(RECORDS):
        producer.produce("codecs", b"flight " * 40, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(30)
    return outcomes


def test_kafka_takes_every_codec_and_keeps_records_when_its_pod_is_deleted(cluster: LocalCluster) -> None:
    """The broker loads a codec's native library when a client first uses it, from an image that holds just enough."""
    ensure_kafka(cluster)
    bootstrap = host_bootstrap(cluster)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("codecs", 1, 1)])["codecs"].result()
    for codec in CODECS:
        assert deliver(bootstrap, codec) == [None] * RECORDS, codec

    cluster.access.kubectl("delete", "pod", "kafka-0", "--namespace", "kafka")
    ensure_kafka(cluster)

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "codecs"})
    assert reader.get_watermark_offsets(TopicPartition("codecs", 0), timeout=30) == (0, RECORDS * len(CODECS))
    reader.close()


SUM = """
from pyspark.sql import SparkSession

numbers = SparkSession.builder.getOrCreate().range(1000)
print("the sum is", numbers.groupBy().sum("id").first()[0])
"""
SPARK_JOB = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: driver}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: driver}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: driver}]
---
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata: {name: sum}
spec:
  type: Python
  mode: cluster
  sparkVersion: ${VERSION}
  image: ${IMAGE}
  imagePullPolicy: Never
  mainApplicationFile: local:///app/sum.py
  restartPolicy: {type: Never}
  sparkConf: {spark.ui.enabled: "false", spark.sql.shuffle.partitions: "1"}
  driver:
    coreRequest: 100m
    memory: 512m
    memoryOverhead: 200m
    serviceAccount: driver
    template:
      spec:
        containers:
          - name: spark-kubernetes-driver
            volumeMounts: [{name: source, mountPath: /app}]
        volumes: [{name: source, configMap: {name: source}}]
  executor: {instances: 1, coreRequest: 100m, memory: 512m, memoryOverhead: 256m}
"""


def test_spark_operator_completes_a_job_and_leaves_with_its_kinds(cluster: LocalCluster) -> None:
    ensure_spark_operator(cluster)
    kubectl = cluster.access.kubectl
    kubectl("create", "configmap", "source", f"--from-literal=sum.py={SUM}")
    job = Template(SPARK_JOB).substitute(IMAGE=SPARK.reference, VERSION=versions.SPARK)
    kubectl("apply", "--namespace", "default", "--filename", "-", stdin=job)

    def state() -> str:
        return kubectl("get", "sparkapplication", "sum", "--output", "jsonpath={.status.applicationState.state}")

    wait_until(
        lambda: state() in ("COMPLETED", "FAILED"),
        what="the Spark job to end",
        timeout_s=300,
        interval_s=0.5,
        last_seen=lambda: kubectl("get", "sparkapplication,pods", "--output", "yaml"),
    )
    assert "the sum is 499500" in kubectl("logs", "sum-driver")
    assert state() == "COMPLETED"

    remove_spark_operator(cluster)

    assert "sparkoperator" not in kubectl("get", "crd", "--output", "name")
    assert kubectl("get", "namespace", "spark-operator", "--ignore-not-found") == ""


def test_two_clusters_run_side_by_side_and_one_leaves_without_a_trace(
    cluster: LocalCluster, second_cluster: LocalCluster, host_before: dict[str, object]
) -> None:
    undisturbed = first_process(cluster)
    second_cluster.up()
    assert unhealthy(second_cluster) == []
    assert unhealthy(cluster) == []
    names = {
        json.loads(each.access.kubectl("get", "namespace", "kube-system", "-o", "json"))["metadata"]["uid"]
        for each in (cluster, second_cluster)
    }
    assert len(names) == 2, "both kubeconfigs lead to one cluster"

    second_cluster.down()

    assert traces(second_cluster.instance) == []
    assert host_state() == host_before
    assert first_process(cluster) == undisturbed
    assert unhealthy(cluster) == []


def test_down_is_repeatable_and_leaves_no_trace(cluster: LocalCluster, host_before: dict[str, object]) -> None:
    assert traces(cluster.instance) != []
    cluster.down()
    cluster.down()
    assert traces(cluster.instance) == []
    assert host_state() == host_before
