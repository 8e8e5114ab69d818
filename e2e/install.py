"""Installation of everything a fleet needs: the cluster itself, images, Kafka, and the operator by its chart.

The differences between the embedded cluster and a foreign one are here: the source of images, and that a process can be
killed from outside its pod only on the embedded one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from e2e.cluster import ROOT, Cluster
from e2e.local_cluster.access import foreign_kubeconfig
from e2e.local_cluster.gomodules import HELM, KUBERNETES, ensure_programs
from e2e.local_cluster.images import CONSUMER, OPERATOR, SPARK, build_images
from e2e.local_cluster.instance import Instance, select_instance
from e2e.local_cluster.namespace import enter_command, find_first_process
from e2e.local_cluster.steps import step

OPERATOR_NAMESPACE: Final = "consumer-fleet"
OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=consumer-fleet"
CHART: Final = ROOT / "charts" / "consumer-fleet"


def version() -> str:
    """The version of the distribution, which is also that of its images."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def image_values(part: str, image: str) -> dict[str, str]:
    """The chart's values for an image, given by its name with a tag."""
    repository, _, tag = image.rpartition(":")
    return {f"{part}.image.repository": repository, f"{part}.image.tag": tag}


class Installation:
    """Consumer Fleet on one cluster. Every step may be repeated."""

    def __init__(self, *, name: str) -> None:
        own = select_instance()
        self.instance: Instance = select_instance(f"{own.name}-{name}")
        self.operator_image = os.environ.get("FLEET_OPERATOR_IMAGE") or f"consumer-fleet-operator:{version()}"
        self.consumer_image = os.environ.get("FLEET_CONSUMER_IMAGE") or f"consumer-fleet-consumer:{version()}"
        self.spark_image = os.environ.get("FLEET_SPARK_IMAGE") or f"consumer-fleet-spark:{version()}"
        self.max_concurrent_rollouts = 0
        self._spark = threading.Lock()
        self._has_spark = False

    @property
    def cluster(self) -> Cluster:
        """Commands on the cluster; builds `kubectl` and `helm` on first use."""
        kubeconfig = foreign_kubeconfig() or self.instance.kubeconfig
        return Cluster(
            kubectl_path=ensure_programs(KUBERNETES) / "kubectl",
            helm_path=ensure_programs(HELM) / "helm",
            kubeconfig=Path(kubeconfig),
        )

    def up(self) -> None:
        """Bring up a cluster with Kafka and a ready operator, from any state."""
        self._local_cluster("up")
        if not foreign_kubeconfig():
            self._local_cluster("images")
        self._local_cluster("kafka")
        self.install_chart()

    def build_images(self) -> None:
        """Build the images that `up` and `install_spark_operator` load; needs no cluster."""
        if not foreign_kubeconfig():
            build_images(OPERATOR, CONSUMER, SPARK)

    def install_spark_operator(self) -> None:
        """The Spark operator and the image of its jobs, once; a foreign cluster must have both."""
        with self._spark:
            if not foreign_kubeconfig() and not self._has_spark:
                self._local_cluster("spark")
                self._has_spark = True

    def install_keda(self) -> None:
        """KEDA; a foreign cluster must have it."""
        if not foreign_kubeconfig():
            self._local_cluster("keda")

    def install_chart(self) -> None:
        """Install or upgrade the operator from the checkout, and wait until it is ready."""
        values = {
            **image_values("operator", self.operator_image),
            **image_values("consumer", self.consumer_image),
            **image_values("spark", self.spark_image),
            # The tag stays the same when sources change: without this an upgrade would keep the old pods.
            "podAnnotations.consumerfleet\\.io/sources": OPERATOR.digest(),
        }
        settings = [word for key, value in values.items() for word in ("--set-string", f"{key}={value}")]
        settings += ["--set", "secrets.wholeCluster=true"]  # tests create their namespaces later
        settings += ["--set", f"upgrades.maxConcurrentRollouts={self.max_concurrent_rollouts}"]
        target = ["--namespace", OPERATOR_NAMESPACE, "--create-namespace", "--wait", "--timeout", "5m"]
        cluster = self.cluster  # may have to build helm first, which shows its own steps
        with step("operator: helm upgrade --install consumer-fleet"):
            cluster.helm("upgrade", "--install", "consumer-fleet", str(CHART), *target, *settings)

    def down(self) -> None:
        """Remove the embedded cluster with everything in it; from a foreign cluster only the operator."""
        if foreign_kubeconfig():
            uninstall = (
                "uninstall",
                "consumer-fleet",
                "--namespace",
                OPERATOR_NAMESPACE,
                "--ignore-not-found",
                "--wait",
            )
            self.cluster.helm(*uninstall)
        else:
            self._local_cluster("down")

    def _local_cluster(self, command: str, *options: str) -> None:
        words = [sys.executable, "-m", "e2e.local_cluster", command, *options, "--name", self.instance.name]
        subprocess.run(words, cwd=ROOT, check=True)

    def processor_seconds(self) -> float:
        """Processor time that the embedded cluster has used so far, in seconds; 0 for a foreign one.

        An ended process is counted by the ancestor that waited for it, at last by the first process.
        """
        first = find_first_process(self.instance)
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit():
                    words = (process / "stat").read_text().rpartition(")")[2].split()
                    parents[int(process.name)], ticks[int(process.name)] = int(words[1]), sum(map(int, words[11:15]))
            except OSError:
                continue  # it ended meanwhile
        inside = {first}
        while more := {pid for pid, parent in parents.items() if parent in inside} - inside:
            inside |= more
        return sum(ticks.get(pid, 0) for pid in inside if pid is not None) / os.sysconf("SC_CLK_TCK")

    def kill_container(self, *, namespace: str, pod: str) -> None:
        """`kill -9` of a pod's main process, from outside: inside its own namespace process 1 cannot be killed."""
        self._task("kill", "--signal", "SIGKILL", self._container(namespace, pod))

    @contextmanager
    def paused_container(self, *, namespace: str, pod: str) -> Iterator[None]:
        """Freeze a container for the block: it keeps its connections and does not answer."""
        container = self._container(namespace, pod)
        self._task("pause", container)
        try:
            yield
        finally:
            self._task("resume", container)

    def kill_operator(self) -> None:
        """`kill -9` of every replica of the operator."""
        for pod in self.cluster.list("pods", namespace=OPERATOR_NAMESPACE, selector=OPERATOR_SELECTOR):
            self.kill_container(namespace=OPERATOR_NAMESPACE, pod=pod["metadata"]["name"])

    def tag_image(self, image: str, name: str) -> None:
        """Give an image of the node a second name, as if it had been pulled under that name."""
        command = ["ctr", "--namespace", "k8s.io", "images", "tag", "--force", f"docker.io/library/{image}", name]
        subprocess.run(enter_command(self.instance, command), check=True, capture_output=True)

    def _container(self, namespace: str, pod: str) -> str:
        found = self.cluster.get("pod", pod, namespace=namespace)
        if found is None:
            raise LookupError(f"no pod {namespace}/{pod}")
        return str(found["status"]["containerStatuses"][0]["containerID"]).removeprefix("containerd://")

    def _task(self, *arguments: str) -> None:
        command = ["ctr", "--namespace", "k8s.io", "tasks", *arguments]
        subprocess.run(enter_command(self.instance, command), check=True, capture_output=True)
