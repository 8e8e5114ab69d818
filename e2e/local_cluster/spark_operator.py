"""Kubeflow's Spark operator in the embedded cluster, on request only."""

from pathlib import Path

from e2e.local_cluster.access import await_definitions
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import SPARK_OPERATOR, ensure_programs, module_folder
from e2e.local_cluster.images import SPARK, ensure_spark_images
from e2e.local_cluster.steps import step

__all__ = ["ensure_spark_operator", "remove_spark_operator", "spark_operator_crds"]

MODULE = "github.com/kubeflow/spark-operator/v2"
NAMESPACE = "spark-operator"
START_TIMEOUT_S = 180.0
REMOVE_TIMEOUT_S = 180.0


def spark_operator_crds() -> list[Path]:
    """The operator's CRDs, as released. Raises ClusterError (``MissingPrograms``, ``DownloadFailed``)."""
    return sorted((module_folder(MODULE) / "config" / "crd" / "bases").glob("*.yaml"))


def ensure_spark_operator(cluster: LocalCluster) -> None:
    """Load the image of Spark jobs, and run the operator of this version until it is ready.

    Raises ClusterError (``TimedOut``, ``NotRunning``, and those of building programs and images).
    """
    programs = ensure_programs(SPARK_OPERATOR)
    ensure_spark_images(cluster)
    with step("spark operator: ready") as current:
        _apply_crds(cluster)
        variables = {"IMAGE": SPARK.reference, "PROGRAMS": str(programs), "MOUNT": "/opt/spark-operator"}
        cluster.access.apply("spark-operator.yaml", variables)
        wait = ["rollout", "status", "deployment/spark-operator", f"--timeout={START_TIMEOUT_S:.0f}s"]
        try:
            cluster.access.kubectl("--namespace", NAMESPACE, *wait, timeout_s=START_TIMEOUT_S + 10)
        except ClusterError as error:
            seen = _explain(cluster)
            raise ClusterError("TimedOut", f"the Spark operator did not become ready; last seen: {seen}") from error
        current.note = SPARK_OPERATOR.version


def remove_spark_operator(cluster: LocalCluster) -> None:
    """Remove the operator and its CRDs, all SparkApplications included; the image stays."""
    delete = ["delete", "--ignore-not-found", f"--timeout={REMOVE_TIMEOUT_S:.0f}s"]
    with step("spark operator: remove"):
        # The CRDs first: only the operator removes its finalizers.
        names = [f"--filename={crd}" for crd in spark_operator_crds()]
        cluster.access.kubectl(*delete, *names, timeout_s=REMOVE_TIMEOUT_S + 10)
        cluster.access.kubectl(*delete, "namespace", NAMESPACE, timeout_s=REMOVE_TIMEOUT_S + 10)
        cluster.access.kubectl(*delete, "clusterrole,clusterrolebinding", NAMESPACE)


def _apply_crds(cluster: LocalCluster) -> None:
    files = [f"--filename={crd}" for crd in spark_operator_crds()]
    # Server-side: a client-side apply keeps a copy in an annotation, and these objects exceed its limit.
    cluster.access.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=local-cluster", *files)
    await_definitions(cluster.access.kubectl, *files, timeout_s=60)


def _explain(cluster: LocalCluster) -> str:
    try:
        pods = cluster.access.kubectl("get", "pods", "--namespace", NAMESPACE, "--output", "wide")
        log = ["logs", "deployment/spark-operator", "--tail=15"]
        return f"\n{pods}{cluster.access.kubectl('--namespace', NAMESPACE, *log)}"
    except ClusterError as error:
        return error.message
