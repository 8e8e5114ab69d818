"""A release that is published to a registry installs from it alone: chart, images and signatures, to a Ready fleet."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import PATIENCE_S, ROOT, Cluster, eventually
from e2e.conftest import ON_SECOND_CLUSTER, Fleets
from e2e.install import OPERATOR_NAMESPACE, Installation, version
from e2e.local_cluster.commands import run
from e2e.local_cluster.namespace import enter_command
from e2e.test_readme import examples
from release.publication import MANIFEST
from tests.release.registry import KEY_PASSWORD, PASSWORD, USER, TestRegistry, new_key, registry

pytestmark = ON_SECOND_CLUSTER
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
NAMESPACE = "released"


@pytest.fixture
def served(second: Installation, tmp_path: Path) -> Iterator[TestRegistry]:
    """A registry at the node's only neighbour, whose authority the node trusts."""
    host = json.loads(second.instance.network_file.read_text())["host"]
    with registry(tmp_path / "registry", name=host, address=host) as made:
        known = tmp_path / "authorities.crt"
        known.write_text(AUTHORITIES.read_text() + made.authority.read_text())
        run(enter_command(second.instance, ["mount", "--bind", known, AUTHORITIES]))
        try:
            yield made
        finally:
            run(enter_command(second.instance, ["umount", AUTHORITIES]))


def images(cluster: Cluster, namespace: str, name: str) -> set[str]:
    """The images, by digest, that the node runs in containers of this name."""
    statuses = [
        status
        for pod in cluster.list("pods", namespace=namespace)
        for status in pod["status"].get("containerStatuses") or ()
        if status["name"] == name
    ]
    return {str(status["imageID"]) for status in statuses}


def login(cluster: Cluster, namespace: str, host: str) -> None:
    words = [f"--docker-server={host}", f"--docker-username={USER}", f"--docker-password={PASSWORD}"]
    cluster.ensure_namespace(namespace)
    cluster.kubectl("--namespace", namespace, "create", "secret", "docker-registry", "registry", *words)


def fleet_of_the_readme() -> list[dict[str, Any]]:
    """The README's objects, with the registry's login for the workers' pods."""
    objects = list(yaml.safe_load_all(examples()[0]))
    (group,) = [each for each in objects if each["kind"] == "ConsumerGroup"]
    group["spec"]["template"] = {"spec": {"imagePullSecrets": [{"name": "registry"}]}}
    return objects


def release(*words: str, environment: dict[str, str]) -> None:
    """A command of `python -m release`, as `make release` runs it."""
    command = [sys.executable, "-m", "release", *words]
    run(command, cwd=ROOT, env={**os.environ, **environment, "COSIGN_PASSWORD": KEY_PASSWORD})


def publish(where: str, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Build, publish and verify; returns the digests of the artefacts."""
    built, key = folder / "built", new_key(folder)
    release("build", "--into", str(built), "--registry", where, environment=environment)
    release("publish", str(built), "--key", str(key), "--untagged", environment=environment)
    release("verify", version(), "--registry", where, "--key", str(folder / "cosign.pub"), environment=environment)
    digests: dict[str, str] = json.loads((built / MANIFEST).read_text())["artefacts"]
    return digests


def test_registry_alone_is_enough_for_a_ready_fleet(
    second: Installation, second_fleets: Fleets, served: TestRegistry, tmp_path: Path
) -> None:
    cluster, where, environment = second.cluster, f"{served.host}/fleet", served.environment()
    digests = publish(where, tmp_path, environment)
    cluster.helm("uninstall", "consumer-fleet", "--namespace", OPERATOR_NAMESPACE, "--wait")
    login(cluster, OPERATOR_NAMESPACE, served.host)
    # Nothing of the clone: an empty folder, the chart's address, and a client's login and authority.
    empty = tmp_path / "empty"
    empty.mkdir()
    helm: list[str | Path] = [cluster.helm_path, "--kubeconfig", cluster.kubeconfig, "install", "consumer-fleet"]
    helm += [f"oci://{where}/consumer-fleet", "--version", version(), "--namespace", OPERATOR_NAMESPACE]
    helm += ["--ca-file", served.authority, "--registry-config", Path(environment["DOCKER_CONFIG"], "config.json")]
    helm += ["--set", "imagePullSecrets[0].name=registry", "--wait", "--timeout", "5m"]
    run(helm, cwd=empty, env=os.environ)
    wanted = {f"{where}/consumer-fleet-operator@{digests['consumer-fleet-operator']}"}
    assert images(cluster, OPERATOR_NAMESPACE, "operator") == wanted

    with second_fleets.named(NAMESPACE, topics=False) as fleet:
        fleet.name, fleet.source, fleet.output = "orders", "orders", "orders-done"
        fleet.make_topics()
        login(cluster, NAMESPACE, served.host)
        cluster.apply(fleet_of_the_readme(), namespace=NAMESPACE)
        fleet.kubectl("wait", "--for=condition=Ready", "kcg/orders", "--timeout=280s")
        wanted = {f"{where}/consumer-fleet-consumer@{digests['consumer-fleet-consumer']}"}
        assert images(cluster, NAMESPACE, "worker") == wanted
        fleet.inside("write", "--topic", "orders", stdin=b"one tea\n")
        eventually(
            lambda: fleet.inside("read", "--topic", "orders-done")["values"][:1] == ["ONE TEA"],
            timeout_s=PATIENCE_S,
            what="the order is done",
        )
        fleet.kubectl("delete", "kcg/orders", "--timeout=280s")
    cluster.helm("uninstall", "consumer-fleet", "--namespace", OPERATOR_NAMESPACE, "--wait")
