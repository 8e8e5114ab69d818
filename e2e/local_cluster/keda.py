"""KEDA in the embedded cluster, for a benchmark that compares it and its HPA with our scaling."""

from e2e.local_cluster.access import await_definitions
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import KEDA, KEDA_FOLDER, ensure_programs, module_folder
from e2e.local_cluster.images import CONSUMER
from e2e.local_cluster.steps import step

__all__ = ["ensure_keda"]

MODULE = "github.com/kedacore/keda/v2"
NAMESPACE = "keda"
DEPLOYMENTS = ("keda-operator", "keda-metrics-apiserver")
START_TIMEOUT_S = 240.0


def ensure_keda(cluster: LocalCluster) -> None:
    """Build KEDA on first use, and run its operator and metrics adapter until both are ready.

    Raises ClusterError (``TimedOut``, ``NotRunning``, and those of building programs).
    """
    programs = ensure_programs(KEDA)
    crds = sorted((module_folder(MODULE, KEDA_FOLDER) / "config" / "crd" / "bases").glob("*.yaml"))
    files = [f"--filename={crd}" for crd in crds]
    with step("keda: ready") as current:
        cluster.access.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=local-cluster", *files)
        await_definitions(cluster.access.kubectl, *files, timeout_s=60)
        cluster.access.apply("keda.yaml", {"IMAGE": CONSUMER.reference, "PROGRAMS": str(programs)})
        for name in DEPLOYMENTS:
            wait = ["rollout", "status", f"deployment/{name}", f"--timeout={START_TIMEOUT_S:.0f}s"]
            try:
                cluster.access.kubectl("--namespace", NAMESPACE, *wait, timeout_s=START_TIMEOUT_S + 10)
            except ClusterError as error:
                raise ClusterError(
                    "TimedOut", f"{name} did not become ready; last seen: {_explain(cluster)}"
                ) from error
        available = "--for=condition=Available"
        cluster.access.kubectl("wait", available, "apiservice/v1beta1.external.metrics.k8s.io", "--timeout=120s")
        current.note = KEDA.version


def _explain(cluster: LocalCluster) -> str:
    try:
        pods = cluster.access.kubectl("get", "pods", "--namespace", NAMESPACE, "--output", "wide")
        logs = [
            cluster.access.kubectl("--namespace", NAMESPACE, "logs", f"deployment/{name}", "--tail=15")
            for name in DEPLOYMENTS
        ]
        return "\n".join(["", pods, *logs])
    except ClusterError as error:
        return error.message
