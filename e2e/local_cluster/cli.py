"""The command line of the embedded cluster."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.local_cluster.access import ClusterAccess, foreign_kubeconfig
from e2e.local_cluster.cluster import LocalCluster
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.images import ensure_images, ensure_spark_images
from e2e.local_cluster.instance import Instance, select_instance
from e2e.local_cluster.kafka_pod import (
    INSIDE_BOOTSTRAP,
    SASL_BOOTSTRAP,
    ensure_foreign_kafka,
    ensure_kafka,
    host_bootstrap,
)
from e2e.local_cluster.keda import ensure_keda
from e2e.local_cluster.namespace import enter_command
from e2e.local_cluster.spark_operator import ensure_spark_operator, remove_spark_operator
from e2e.local_cluster.status import api_parts, cluster_parts

__all__ = ["main"]

DESCRIPTION = """\
A one-node Kubernetes with a real kubelet, and Kafka, on this machine: no container engine, no registry, and no change
to the host but one network link. Programs are built once and kept in FLEET_HOME (default ~/.cache/consumer-fleet)."""

EPILOG = """\
environment:
  FLEET_HOME        where programs, images and clusters are kept
  FLEET_CLUSTER     the cluster's name; without it, each checkout of the repository has its own
  FLEET_KUBECONFIG  use the cluster of this kubeconfig instead; KUBECONFIG is never read

example:
  python -m e2e.local_cluster up && python -m e2e.local_cluster kubectl get pods -A
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; exits with 1 and a message if it fails."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except ClusterError as error:
        raise SystemExit(f"error: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the next `up` continues from here") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.local_cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", help="the cluster's name (default: FLEET_CLUSTER, else derived from the checkout)")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[common], help=text, description=text)
        added.set_defaults(run=run)
        return added

    command("up", _up, "bring the cluster up, or repair it; does nothing to one that is well")
    command("down", _down, "end the cluster and remove everything of it but the shared cache")
    command("status", _status, "show the cluster part by part; exits with 1 if a part is not well")
    images = command("images", _images, "build the operator's and the worker's image and load them")
    images.add_argument("--spark", action="store_true", help="the image of Spark jobs as well")
    command("kafka", _kafka, "run Kafka in the cluster and wait until it answers")
    spark = command("spark", _spark, "run the Spark operator in the cluster, with the image of Spark jobs loaded")
    spark.add_argument("--remove", action="store_true", help="remove it with its CRDs and all Spark jobs")
    command("keda", _keda, "run KEDA in the cluster; builds it on first use")
    load = command("load-image", _load_image, "import an image archive (docker or OCI format)")
    load.add_argument("file", type=Path)
    logs = command("logs", _logs, "print the log of a component, or without one the names of the logs")
    logs.add_argument("component", nargs="?")
    shell = command("shell", _shell, "a shell (or COMMAND) inside the cluster's namespaces")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    kubectl = command("kubectl", _kubectl, "run kubectl on the cluster")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    helm = command("helm", _helm, "run helm on the cluster")
    helm.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _instance(options: argparse.Namespace) -> Instance:
    return select_instance(options.name)


def _own(options: argparse.Namespace) -> LocalCluster:
    """The embedded cluster, for commands that another cluster does not allow."""
    foreign = foreign_kubeconfig()
    if foreign:
        raise ClusterError(
            "NotOurCluster",
            f"FLEET_KUBECONFIG names another cluster ({foreign}), and this command works on the embedded one only; "
            "unset FLEET_KUBECONFIG",
        )
    return LocalCluster(_instance(options))


def _access(options: argparse.Namespace) -> ClusterAccess:
    """The embedded cluster, or the foreign one that is named."""
    return ClusterAccess(foreign_kubeconfig() or _instance(options).kubeconfig)


def _up(options: argparse.Namespace) -> None:
    foreign = foreign_kubeconfig()
    if foreign is None:
        LocalCluster(_instance(options)).up()
    else:
        print(f"using the cluster of {foreign}")
        print(ClusterAccess(foreign).kubectl("version", "--request-timeout=10s").rstrip())
    print(f"export KUBECONFIG={_access(options).kubeconfig}")


def _down(options: argparse.Namespace) -> None:
    _own(options).down()


def _status(options: argparse.Namespace) -> None:
    foreign = foreign_kubeconfig()
    parts = api_parts(ClusterAccess(foreign)) if foreign else cluster_parts(_instance(options))
    width = max(len(part.name) for part in parts)
    for part in parts:
        print(f"{'ok ' if part.healthy else 'BAD'} {part.name:<{width}}  {part.detail}")
    if not all(part.healthy for part in parts):
        raise SystemExit(1)


def _images(options: argparse.Namespace) -> None:
    cluster = _own(options)
    ensure_images(cluster)
    if options.spark:
        ensure_spark_images(cluster)


def _kafka(options: argparse.Namespace) -> None:
    foreign = foreign_kubeconfig()
    print(f"from pods:     {INSIDE_BOOTSTRAP} (plain text), {SASL_BOOTSTRAP} (SASL, user alice)")
    if foreign:
        ensure_foreign_kafka(ClusterAccess(foreign))
    else:
        cluster = _own(options)
        ensure_kafka(cluster)
        print(f"from the host: {host_bootstrap(cluster)}")


def _spark(options: argparse.Namespace) -> None:
    (remove_spark_operator if options.remove else ensure_spark_operator)(_own(options))


def _keda(options: argparse.Namespace) -> None:
    ensure_keda(_own(options))


def _load_image(options: argparse.Namespace) -> None:
    for name in _own(options).load_image(options.file):
        print(name)


def _logs(options: argparse.Namespace) -> None:
    logs = _own(options).instance.logs
    names = sorted(file.stem for file in logs.glob("*.log"))
    if options.component is None:
        print("\n".join(names))
        return
    if options.component not in names:
        raise ClusterError("NoSuchLog", f"no log of {options.component!r} in {logs}; there are: {', '.join(names)}")
    with (logs / f"{options.component}.log").open(errors="replace") as log:
        shutil.copyfileobj(log, sys.stdout)


def _shell(options: argparse.Namespace) -> None:
    instance = _own(options).instance
    command = _verbatim(options.command) or [os.environ.get("SHELL", "/bin/sh")]
    words = enter_command(instance, ["env", f"KUBECONFIG={instance.kubeconfig}", *command])
    os.execvp(words[0], words)


def _kubectl(options: argparse.Namespace) -> None:
    words = [*_access(options).kubectl_command(), *_verbatim(options.arguments)]
    os.execv(words[0], words)


def _helm(options: argparse.Namespace) -> None:
    words = [*_access(options).helm_command(), *_verbatim(options.arguments)]
    os.execv(words[0], words)


def _verbatim(arguments: list[str]) -> list[str]:
    # argparse passes on the "--" that ends our own options.
    return arguments[1:] if arguments[:1] == ["--"] else arguments
